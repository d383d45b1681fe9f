"""The tensors in whatever a model returns, under stable names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.tree import Path, leaves, names_of
from .object_parts import CACHE, split_object

if TYPE_CHECKING:
    import torch

if not TYPE_CHECKING:
    Tensor: TypeAlias = Any  # a record's fields may be read at run time, without torch
else:
    Tensor: TypeAlias = torch.Tensor

PRESENT = "present"  # what the states of a cache are called, as in ONNX exports of decoders
_PLAIN = (bool, int, float, complex, str, bytes, Enum)


@dataclass(frozen=True, kw_only=True)
class OutputParts:
    """What a model returned, by name.

    `constants` are numbers, texts and the like, `opaque` what holds or may hold tensors and cannot
    be flattened. `dropped` are those of the names to drop that stood for anything.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)
    opaque: dict[str, object] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)


def flatten_outputs(value: object) -> dict[str, torch.Tensor]:
    """Every tensor in `value` by name, in order."""
    return split_outputs(value).tensors


def split_outputs(
    value: object, taken: Collection[str] = (), drop: Sequence[str] = ()
) -> OutputParts:
    """Flatten what a model returned into named parts, none of a name in `taken`.

    A name to `drop` is a part's own (`present.0.key`), that of all below it (`present`), or the
    place where the model returns it (`past_key_values`).
    """
    import torch

    pairs = list(leaves(value, _is_tensor, split_object))
    shown = _shorten_paths([path for path, _ in pairs])
    names = names_of(
        [(path, leaf) for path, (_, leaf) in zip(shown, pairs, strict=True)],
        _is_tensor,
        taken=taken,
    )
    plain = (*_PLAIN, torch.dtype, torch.device)
    parts = OutputParts()
    for name, path, (place, leaf) in zip(names, shown, pairs, strict=True):
        by = [
            one
            for one in drop
            if one == name or _is_at_or_below(path, one) or _is_at_or_below(place, one)
        ]
        if by:
            parts.dropped.update(by)
        elif isinstance(leaf, torch.Tensor):
            parts.tensors[name] = leaf
        elif isinstance(leaf, plain):
            parts.constants[name] = leaf
        else:
            parts.opaque[name] = leaf
    return parts


def _is_at_or_below(path: Path, name: str) -> bool:
    """Whether `name` is the dotted path of this place or of one above it."""
    return f"{'.'.join(path)}.".startswith(f"{name}.")


def _shorten_paths(paths: Sequence[Path]) -> list[Path]:
    """The paths with `present` for the place of the cache, where there is one cache alone."""
    caches = {path[: path.index(CACHE)] for path in paths if CACHE in path}
    return [
        path
        if CACHE not in path
        else (*((PRESENT,) if len(caches) == 1 else path[: path.index(CACHE)]),
              *path[path.index(CACHE) + 1 :])
        for path in paths
    ]  # fmt: skip


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
