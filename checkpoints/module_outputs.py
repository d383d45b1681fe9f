"""Name the tensors in a model's return value, and wrap the model as a flat module."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.nested_values import ValuePath, iterate_leaves, name_parts_of

if TYPE_CHECKING:
    import torch

    from ..core.call import Binding

    Tensor: TypeAlias = torch.Tensor
else:
    Tensor: TypeAlias = Any  # a record's fields may be read at run time, without torch

PRESENT = "present"  # the name for states of a cache, as in ONNX exports of decoders
_PLAIN = (bool, int, float, complex, str, bytes, Enum)


@dataclass(frozen=True, kw_only=True)
class OutputParts:
    """The parts of a return value by name.

    `constants` are numbers, texts and the like; `opaque` parts may contain tensors and cannot be
    flattened. `dropped` are the names to drop that matched a part.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)
    opaque: dict[str, object] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)


def split_outputs(
    value: object, reserved: Collection[str] = (), drop: Sequence[str] = ()
) -> OutputParts:
    """Flatten a return value into named parts, with names not in `reserved`.

    A name to `drop` is a part's name (`present.0.key`), the prefix of several (`present`), or the
    place in the return value (`past_key_values`).
    """
    import torch

    pairs = list(iterate_leaves(value, _is_tensor, split_object))
    shown = _shorten_paths([path for path, _ in pairs])
    names = name_parts_of(
        [(path, leaf) for path, (_, leaf) in zip(shown, pairs, strict=True)],
        _is_tensor,
        reserved=reserved,
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


def _is_at_or_below(path: ValuePath, name: str) -> bool:
    """Whether `name` is the dotted path of this place or of a parent."""
    return f"{'.'.join(path)}.".startswith(f"{name}.")


def _shorten_paths(paths: Sequence[ValuePath]) -> list[ValuePath]:
    """Replace the place of the cache by `present` in the paths, if there is only one cache."""
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


# Objects of tensors, reserved apart: caches of transformers, plain attributes. Duck-typed.


CACHE = "(cache)"  # in a path: the rest is a place in a cache
_MAX_DEPTH = 4  # depth of the search for tensors in nested containers
_STATES = {"keys": "key", "values": "value", "conv_states": "conv_state",
           "recurrent_states": "recurrent_state"}  # fmt: skip
_BOOKKEEPING = ("_sliding_window_tensor",)  # private tensors of a cache that are not states


def split_object(value: object) -> Iterable[tuple[str, object]] | None:
    """Return the named parts of an object that is not a Python container; None if unknown.

    A cache has the states of its layers below `CACHE`, another object its public attributes with
    tensors. The parts of an object with tensors in private attributes are unknown.
    """
    import torch

    if isinstance(value, (torch.nn.Module, type)) or callable(value):
        return None
    if hasattr(value, "self_attention_cache") and hasattr(value, "cross_attention_cache"):
        return [(CACHE, _pair_layers(value.self_attention_cache, value.cross_attention_cache))]
    if isinstance(getattr(value, "layers", None), list) and hasattr(value, "get_seq_length"):
        return [(CACHE, _cache_parts(value))]
    if isinstance(getattr(value, "conv_states", None), dict) or (
        hasattr(value, "keys") and hasattr(value, "values") and hasattr(value, "is_initialized")
    ):
        return _layer_states(value)
    found = [(name, one) for name, one in _object_fields(value).items() if _has_tensors(one)]
    private = any(name.startswith("_") for name, _ in found)
    return None if private or not found else found


def _pair_layers(own: object, cross: object) -> dict[str, object]:
    """Return the layers of an encoder-decoder's two caches, side by side."""
    sides = {"decoder": _cache_parts(own), "encoder": _cache_parts(cross)}
    layers = dict.fromkeys(name for states in sides.values() for name in states)
    return {
        name: {side: states[name] for side, states in sides.items() if name in states}
        for name in layers
    }


def _cache_parts(value: object) -> dict[str, object]:
    """Return the layers by position, and other attributes of the cache with tensors."""
    layers: list[object] = getattr(value, "layers", [])
    found: dict[str, object] = {str(index): layer for index, layer in enumerate(layers)}
    rest = {name: one for name, one in _object_fields(value).items() if name != "layers"}
    return found | {name: one for name, one in rest.items() if _has_tensors(one)}


def _layer_states(value: object) -> list[tuple[str, object]] | None:
    """Return the states of a layer; None if some are in private attributes."""
    found: list[tuple[str, object]] = []
    for name, state in _object_fields(value).items():
        if name in _BOOKKEEPING or not _has_tensors(state):
            continue
        if name.startswith("_"):
            return None
        alone = list(state.values()) if isinstance(state, Mapping) and len(state) == 1 else [state]
        found.append((_STATES.get(name, name), alone[0]))
    return found


def _object_fields(value: object) -> dict[str, object]:
    return dict(getattr(value, "__dict__", {}))


def _has_tensors(value: object, depth: int = _MAX_DEPTH) -> bool:
    """Whether it is a tensor, or contains one up to a depth."""
    import torch

    if isinstance(value, torch.Tensor):
        return True
    if depth == 0 or value is None or isinstance(value, (str, bytes, int, float, type)):
        return False
    if isinstance(value, Mapping):
        return any(_has_tensors(one, depth - 1) for one in value.values())
    if isinstance(value, (tuple, list, set, frozenset)):
        return any(_has_tensors(one, depth - 1) for one in value)
    return any(_has_tensors(one, depth - 1) for one in _object_fields(value).values())


# The flat module: the user's module behind `forward(*tensors) -> tuple of tensors`.


SCOPE = "model"  # the attribute of the flat module for the user's


def make_flat_module(  # noqa: PLR0913 - observations of eager
    module: torch.nn.Module,
    binding: Binding,
    *,
    written: Iterable[int] = (),
    reserved: Collection[str] = (),
    kept: Collection[str] | None = None,
    drop: Sequence[str] = (),
) -> torch.nn.Module:
    """Wrap `module` as `forward(*tensors) -> tuple of tensors`, in the signature's order.

    Inputs at positions in `written` are cloned: the module mutates them. `kept` are the outputs
    that are tensors in eager: in a trace, sizes are tensors as well. Names to `drop` are omitted.
    """
    from torch import nn

    copied = frozenset(written)

    class Flat(nn.Module):
        """Binds tensors to the module's parameters and flattens its outputs."""

        def __init__(self) -> None:
            super().__init__()
            self.model = module
            self.training = False

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            """Call the module; clone outputs that are inputs or duplicates."""
            given = [t.clone() if i in copied else t for i, t in enumerate(tensors)]
            seen = {id(tensor) for tensor in given}
            results: list[torch.Tensor] = []
            value = binding.call(self.model, given)
            found = split_outputs(value, reserved=reserved, drop=drop).tensors
            for tensor in (found[name] for name in found if kept is None or name in kept):
                results.append(tensor.clone() if id(tensor) in seen else tensor)
                seen.add(id(tensor))
            return tuple(results)

    return Flat()
