"""Load safetensors files, one or several shards, in portions into the factory's module."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError, ErrorCode, first_line
from .checkpoint_files import needs_factory_error, weight_files
from .factory import call_factory, wrap_built_module
from .sniff import SAFETENSORS
from .weight_loading import ModuleFiller, find_renaming
from .weight_sets import TOP_KEY, WeightSet, choose_weight_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from ..core.records import Checkpoint
    from .loaded_module import LoadedModule

PORTION_BYTES = 256 * 2**20  # bytes of a file mapped at once


def load_safetensors(checkpoint: Checkpoint) -> LoadedModule:
    """Build the module and fill it; at most one portion is in memory twice."""
    if checkpoint.factory is None:
        raise needs_factory_error(Path(checkpoint.path), SAFETENSORS)
    files = weight_files(checkpoint)
    made = call_factory(checkpoint.factory, checkpoint.factory_args)
    chosen, set_notes = choose_weight_set(
        [read_weight_set(files)], made.module, key=checkpoint.weights_key, strict=checkpoint.strict,
        path=checkpoint.path,
    )  # fmt: skip
    filling = ModuleFiller(
        module=made.module, rename=find_renaming(chosen.shapes, made.module.state_dict())
    )
    for file in files:
        for portion in read_portions(file):
            filling.add(chosen.within(portion))
    notes = (*set_notes, *made.notes, *filling.finish(checkpoint.path, strict=checkpoint.strict))
    return wrap_built_module(made.module, kind=SAFETENSORS, notes=notes)


def read_weight_set(files: Sequence[Path]) -> WeightSet:
    """Return the weights of all files; only names and shapes are read."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    places: dict[str, Path] = {}
    for path in files:
        with _translate_errors(path), safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a dict
                shapes[key] = tuple(file.get_slice(key).get_shape())
                places[key] = path

    def read(name: str) -> torch.Tensor:
        with _translate_errors(places[name]), safe_open(places[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor

    return WeightSet(key=TOP_KEY, shapes=shapes, read=read)


def _tensor_names(path: Path) -> list[str]:
    from safetensors import safe_open

    with _translate_errors(path), safe_open(path, framework="pt") as file:
        return list(file.keys())


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Translate errors of the reader, which raises anything for changed files or new dtypes."""
    try:
        yield
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be read: {first_line(error)}",
            hint="download the file again",
            code=ErrorCode.CORRUPT_FILE,
        ) from error


def read_portions(path: Path, *, size: int = PORTION_BYTES) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the tensors of a file in portions of about `size` bytes, each with its own mapping."""
    from safetensors import safe_open

    keys = _tensor_names(path)
    while keys:
        portion: dict[str, torch.Tensor] = {}
        held = 0
        with _translate_errors(path), safe_open(path, framework="pt") as file:
            while keys and held < size:
                key = keys.pop(0)
                portion[key] = file.get_tensor(key)
                held += portion[key].nbytes
        yield portion
