"""A module and example inputs of a Python caller as files, so that a run can begin from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.digest import sha256_of
from ..core.errors import CheckpointError, UsageError, first_line
from .folder import check_output_path, translate_write_errors
from .manifest_file import MANIFEST_FILE

if TYPE_CHECKING:
    import torch

Example: TypeAlias = Any  # a tensor or array, or a tuple, list or dict of them
_DIGEST_DIGITS = 12  # characters of a digest in a file's name


@contextmanager
def keep_with_record(folder: Path) -> Iterator[list[Path]]:
    """Files that are written into an output folder before its run; gone where it leaves no record.

    What is added to the list is removed where the block raises and there is no manifest.
    """
    stored: list[Path] = []
    made = not folder.exists()
    try:
        yield stored
    except BaseException:
        if not (folder / MANIFEST_FILE).is_file():
            for path in stored:
                path.unlink(missing_ok=True)
            if made:
                with suppress(OSError):  # something else is in it by now
                    folder.rmdir()
        raise


def store_module(module: torch.nn.Module, folder: Path, *, isolate: bool) -> Path:
    """The module as a file of `folder`, named after its digest: a pickle, or a TorchScript archive.

    Raises:
        UsageError: another process is to open it, and cannot import its classes.
        CheckpointError: it cannot be pickled.
    """
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return _store_file(folder, "module", lambda path: torch.jit.save(module, str(path)))
    if isolate:
        _refuse_main_module(module)

    def save(path: Path) -> None:
        try:
            torch.save(module, path)
        except Exception as error:  # pickling runs the module's own code, which raises anything
            raise CheckpointError(
                f"the {type(module).__name__} cannot be pickled: {first_line(error)}",
                hint="define its classes at the top of a module, or save module.state_dict() and "
                "give that file with model='PKG.MOD:FACTORY'",
            ) from error

    return _store_file(folder, "module", save)


def _refuse_main_module(module: torch.nn.Module) -> None:
    for part in module.modules():
        if type(part).__module__ == "__main__":
            raise UsageError(
                f"isolate=True opens the module in another process, which cannot import "
                f"{type(part).__name__} from this script",
                hint="move the class into a module of its own, or leave isolate out",
            )


def store_samples(example: Example, folder: Path) -> Path:
    """Example inputs as a file of `folder`, named after its digest.

    Raises:
        UsageError: something in it is no tensor or array.
    """
    import torch

    tensors = _to_tensors(example, "inputs")
    return _store_file(folder, "sample", lambda path: torch.save(tensors, path))


def _to_tensors(value: Example, place: str) -> Any:
    """The same with every array as a tensor."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Mapping):
        return {str(key): _to_tensors(one, f"{place}[{key!r}]") for key, one in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_to_tensors(one, f"{place}[{index}]") for index, one in enumerate(value))
    raise UsageError(
        f"{place} is a {type(value).__name__}, not a tensor",
        hint="give tensors or numpy arrays, or texts as 'x:float32[batch=1..8,3,224,224]'",
    )


def _store_file(folder: Path, name: str, save: Any) -> Path:
    """`folder/NAME-DIGEST.pt`; the same content is the same file.

    Raises:
        UsageError: the folder cannot be made or written.
    """
    check_output_path(folder)
    with translate_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{name}-", dir=folder) as place:
            draft = Path(place) / f"{name}.pt"  # torch writes the stem into the archive
            save(draft)
            path = folder / f"{name}-{sha256_of(draft)[:_DIGEST_DIGITS]}.pt"
            draft.replace(path)
        return path
