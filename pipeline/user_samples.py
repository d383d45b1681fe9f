"""Modules, example inputs and samples of the user: stored as files and loaded as feeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

from ..checkpoints.loaded_module import LoadedModule
from ..checkpoints.sample_inputs import read_loader, read_samples
from ..core.call import Parameter, ParameterKind
from ..core.contract import Array, Feed
from ..core.errors import CheckpointError, UsageError, first_line
from ..core.grammar import parse_input
from ..core.nested_values import is_loader_spec
from ..core.records import sha256_of
from ..core.signature import FLOATS, Signature
from ..validators.feed_values import check_samples
from ..validators.feeds import LEAST_FEEDS, SAMPLE, NamedFeed
from .image_samples import digest_samples, list_images, raw_images, read_images
from .manifest_file import MANIFEST_FILE
from .order import Judging, Source
from .output_folder import check_output_path, translate_write_errors

if TYPE_CHECKING:
    import torch

Example: TypeAlias = Any  # tensor, array, or a nested tuple, list or dict of them
_DIGEST_DIGITS = 12  # characters of a digest in a file's name


@contextmanager
def keep_with_record(folder: Path) -> Iterator[list[Path]]:
    """Track files written into an output folder before its run, and remove them on failure.

    If the block raises and the folder has no manifest, the files in the yielded list are
    removed, and the folder too if it is new and empty.
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
                with suppress(OSError):  # not empty
                    folder.rmdir()
        raise


def store_module(module: torch.nn.Module, folder: Path, *, isolate: bool) -> Path:
    """Save the module to `folder` under its digest: a pickle, or a TorchScript archive.

    Raises:
        UsageError: `isolate` is set and a child process cannot import its classes.
        CheckpointError: it cannot be pickled.
    """
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return _store_file(folder, "module", lambda path: torch.jit.save(module, str(path)))
    if isolate:
        _check_importable(module)

    def save(path: Path) -> None:
        try:
            torch.save(module, path)
        except Exception as error:  # pickling runs the module's own code, which may raise anything
            raise CheckpointError(
                f"the {type(module).__name__} cannot be pickled: {first_line(error)}",
                hint="define its classes at the top of a module, or save module.state_dict() and "
                "give that file with model='PKG.MOD:FACTORY'",
            ) from error

    return _store_file(folder, "module", save)


def _check_importable(module: torch.nn.Module) -> None:
    for part in module.modules():
        if type(part).__module__ == "__main__":
            raise UsageError(
                f"isolate=True opens the module in another process, which cannot import "
                f"{type(part).__name__} from this script",
                hint="move the class into a module of its own, or omit isolate",
            )


def store_samples(example: Example, folder: Path) -> Path:
    """Save example inputs to `folder` under their digest.

    Raises:
        UsageError: a leaf is neither a tensor nor an array.
    """
    import torch

    tensors = _to_tensors(example, "inputs")
    return _store_file(folder, "sample", lambda path: torch.save(tensors, path))


def _to_tensors(value: Example, place: str) -> Any:
    """Convert every array in a nested value to a CPU tensor."""
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
    """Write `folder/NAME-DIGEST.pt`; equal content gives the same file.

    Raises:
        UsageError: the folder cannot be created or written.
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


@dataclass(frozen=True, kw_only=True)
class UserSamples:
    """The first sample, which defines the form of the inputs, and more that only judge."""

    origin: str
    digest: str
    first: Feed
    more: tuple[Feed, ...] = ()
    notes: tuple[str, ...] = ()


def load_user_samples(
    source: Source, loaded: LoadedModule, judging: Judging, signature: Signature | None
) -> UserSamples | None:
    """Load the samples of `--samples`; None without it. A loader provides `--feeds` samples.

    Raises:
        UsageError: they cannot be read, or lack an input.
    """
    if source.samples is None:
        return None
    origin = str(source.samples)
    if source.preprocess and list_images(source.samples):
        return _load_images(source, source.samples, loaded)
    if not is_loader_spec(origin):
        first = read_samples(source.samples, loaded.parameters)
        return UserSamples(origin=origin, digest=sha256_of(source.samples), first=first)
    if signature is None:
        names = [parse_input(text).name for text in source.inputs]
    else:
        names = [spec.name for spec in signature.inputs]
    found = read_loader(
        origin,
        loaded.takes,
        inputs=names,
        settled=signature is not None,
        most=LEAST_FEEDS if judging.feeds is None else judging.feeds,
    )
    first, *more = found.items
    return UserSamples(
        origin=origin, digest=found.digest, first=first, more=tuple(more), notes=found.notes
    )


def read_first_sample(source: Source, path: Path, names: Sequence[str]) -> Feed:
    """Read the first sample of a file or folder, by the names of the inputs.

    Raises:
        UsageError: it cannot be read.
    """
    if source.preprocess and list_images(path):
        return read_images(path, names[0], raw_images(source.preprocess))[0]
    return read_samples(path, names)


def _load_images(source: Source, path: Path, loaded: LoadedModule) -> UserSamples:
    """Load an image, or those of a folder, for a model that does the preprocessing itself.

    Raises:
        UsageError: one cannot be read, or the model has other inputs that must be given.
    """
    others = [one.name for one in loaded.takes if one.required][1:]
    if others:
        raise UsageError(
            f"{path} holds images alone, and the model also takes {', '.join(others)}",
            hint="save the samples as .npz with one array per input",
            option="samples",
        )
    name = source.preprocess_input or loaded.parameters[0]
    first, *more = read_images(path, name, raw_images(source.preprocess))
    return UserSamples(origin=str(path), digest=digest_samples(path), first=first, more=tuple(more))


def sample_without_model(samples: Path, names: Sequence[str]) -> dict[str, Array]:
    """Load the first sample by the names in `--input`, without the parameters of a model.

    Raises:
        UsageError: it cannot be read, or a loader yields unnamed values and `names` is empty.
    """
    if not is_loader_spec(str(samples)):
        return read_samples(samples, names)
    anything = Parameter(name="kwargs", kind=ParameterKind.REST_BY_NAME, required=False)
    takes = () if names else (anything,)
    return read_loader(str(samples), takes, inputs=names, settled=bool(names)).items[0]


def further_feeds(
    samples: UserSamples | None, signature: Signature
) -> tuple[tuple[NamedFeed, ...], tuple[str, ...]]:
    """Return the samples after the first as feeds, and notes on those that do not fit."""
    feeds: list[NamedFeed] = []
    misfits: list[str] = []
    for number, arrays in enumerate(() if samples is None else samples.more, start=2):
        name = f"{SAMPLE}-{number}"
        try:
            fitted, sizes = check_samples(signature, arrays)
        except UsageError as error:
            misfits.append(f"{name}: {error.message}")
            continue
        feeds.append(NamedFeed(name=name, arrays=fitted, sizes=sizes, kind="sample"))
    if not misfits:
        return tuple(feeds), ()
    note = f"1 sample does not match the inputs and is omitted: {misfits[0]}"
    if len(misfits) > 1:
        more = f"{misfits[0]}; and {len(misfits) - 1} more"
        note = f"{len(misfits)} samples do not match the inputs and are omitted: {more}"
    return tuple(feeds), (note,)


def describe_outliers(feeds: Iterable[NamedFeed], signature: Signature) -> tuple[str, ...]:
    """Return a note on each input of which a sample holds values outside the input's range.

    Such samples are fed, but the domain of the artifacts does not contain them.
    """
    notes: dict[str, str] = {}
    for feed in feeds:
        for spec in signature.inputs if feed.name.startswith(SAMPLE) else ():
            array = feed.arrays[spec.name]
            if spec.values is None or not array.size:
                continue
            values = spec.values.at(signature.sizes_by_name(feed.sizes))
            low, high = array.min().item(), array.max().item()
            ends = [values.low, values.high]
            if spec.dtype in FLOATS:
                ends = [array.dtype.type(end).item() for end in ends]
            if low < ends[0] or high > ends[1]:
                notes.setdefault(
                    spec.name,
                    f"{spec.name} of {feed.name} lies in {low:g}..{high:g}, outside the domain "
                    f"{values}: state its range with --input",
                )
    return tuple(notes.values())
