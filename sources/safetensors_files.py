"""safetensors files, one or sharded, read a portion at a time into the factory's module."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError, Hint, Option, UsageError, first_line
from .factory import built
from .factory_inputs import loaded_from
from .identify import weight_files
from .sniff import SAFETENSORS
from .weight_sets import TOP, WeightSet, choose_set
from .weights import Filling, renaming

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import torch

    from ..core.records import Checkpoint
    from .loaded import Loaded

PORTION = 256 * 2**20  # bytes of one file that are mapped at once


def load(checkpoint: Checkpoint) -> Loaded:
    """Build the module and fill it; at most one portion is held twice."""
    if checkpoint.factory is None:
        raise UsageError(
            f"{checkpoint.path} holds weights alone: --model PKG.MOD:FACTORY is needed",
            hint=Hint(
                "add ", Option("model"), " with the function or class that builds the module"
            ),
            option="model",
        )
    files = weight_files(checkpoint)
    made = built(checkpoint.factory, checkpoint.factory_args)
    chosen, said = choose_set(
        [set_in(files)], made.module, key=checkpoint.weights_key, strict=checkpoint.strict,
        path=checkpoint.path,
    )  # fmt: skip
    filling = Filling(module=made.module, rename=renaming(chosen.shapes, made.module.state_dict()))
    for file in files:
        for portion in portions(file):
            filling.add(chosen.within(portion))
    notes = (*said, *made.notes, *filling.finish(checkpoint.path, strict=checkpoint.strict))
    return loaded_from(made.module, kind=SAFETENSORS, notes=notes)


def set_in(files: Sequence[Path]) -> WeightSet:
    """The weights of all files, of which only names and shapes are read."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    places: dict[str, Path] = {}
    for path in files:
        with _reading(path), safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                shapes[key] = tuple(file.get_slice(key).get_shape())
                places[key] = path

    def read(name: str) -> torch.Tensor:
        with _reading(places[name]), safe_open(places[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor

    return WeightSet(key=TOP, shapes=shapes, read=read)


def _keys(path: Path) -> list[str]:
    from safetensors import safe_open

    with _reading(path), safe_open(path, framework="pt") as file:
        return list(file.keys())


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Tell what the reader refuses: it raises anything at a file that changes, or a new dtype."""
    try:
        yield
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be read: {first_line(error)}", hint="download the file again"
        ) from error


def portions(path: Path, *, size: int = PORTION) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors of one file, about `size` bytes at a time; each lot has a mapping of its own."""
    from safetensors import safe_open

    keys = _keys(path)
    while keys:
        portion: dict[str, torch.Tensor] = {}
        held = 0
        with _reading(path), safe_open(path, framework="pt") as file:
            while keys and held < size:
                key = keys.pop(0)
                portion[key] = file.get_tensor(key)
                held += portion[key].nbytes
        yield portion
