"""safetensors files, one or sharded, read a portion at a time into the factory's module."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError, UsageError, first_line
from .factory import built
from .factory_inputs import loaded_from
from .identify import weight_files
from .sniff import SAFETENSORS
from .weights import Filling, renaming

if TYPE_CHECKING:
    from collections.abc import Iterator
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
            hint="add --model with the function or class that builds the module",
        )
    files = weight_files(checkpoint)
    made = built(checkpoint.factory, checkpoint.factory_args)
    keys = [key for file in files for key in _keys(file)]
    filling = Filling(module=made.module, rename=renaming(keys, made.module.state_dict()))
    for file in files:
        for portion in portions(file):
            filling.add(portion)
    notes = (*made.notes, *filling.finish(checkpoint.path, strict=checkpoint.strict))
    return loaded_from(made.module, kind=SAFETENSORS, notes=notes)


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
