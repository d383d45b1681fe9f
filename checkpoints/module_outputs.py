"""The tensors in whatever a model returns, under stable names, and the flat module of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.nested_values import ValuePath, iterate_leaves, name_parts_of

if TYPE_CHECKING:
    import torch

    from ..core.call import Binding

if TYPE_CHECKING:
    Tensor: TypeAlias = torch.Tensor
else:
    Tensor: TypeAlias = Any  # a record's fields may be read at run time, without torch

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

    pairs = list(iterate_leaves(value, _is_tensor, split_object))
    shown = _shorten_paths([path for path, _ in pairs])
    names = name_parts_of(
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


def _is_at_or_below(path: ValuePath, name: str) -> bool:
    """Whether `name` is the dotted path of this place or of one above it."""
    return f"{'.'.join(path)}.".startswith(f"{name}.")


def _shorten_paths(paths: Sequence[ValuePath]) -> list[ValuePath]:
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


# Objects of tensors, taken apart: caches of transformers, plain attributes. Duck-typed.


CACHE = "(cache)"  # in a path: what follows is a place in a cache
_MAX_DEPTH = 4  # containers in containers that are searched for tensors
_STATES = {"keys": "key", "values": "value", "conv_states": "conv_state",
           "recurrent_states": "ssm_state"}  # fmt: skip
_BOOKKEEPING = ("_sliding_window_tensor",)  # private tensors of a cache that are no state


def split_object(value: object) -> Iterable[tuple[str, object]] | None:
    """The named parts of an object that is no container of Python; None where it has none.

    A cache gives the states of its layers below `CACHE`, another object its public attributes that
    hold tensors. An object with tensors in private attributes has no parts that are known to be
    all of it.
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
    return _attribute_parts(value)


def _pair_layers(own: object, cross: object) -> dict[str, object]:
    """The layers of an encoder-decoder's two caches, side by side."""
    sides = {"decoder": _cache_parts(own), "encoder": _cache_parts(cross)}
    layers = dict.fromkeys(name for states in sides.values() for name in states)
    return {
        name: {side: states[name] for side, states in sides.items() if name in states}
        for name in layers
    }


def _cache_parts(value: object) -> dict[str, object]:
    """The layers by position, and whatever else the cache keeps tensors in."""
    layers: list[object] = getattr(value, "layers", [])
    found: dict[str, object] = {str(index): layer for index, layer in enumerate(layers)}
    rest = {name: one for name, one in _object_fields(value).items() if name != "layers"}
    return found | {name: one for name, one in rest.items() if _has_tensors(one)}


def _layer_states(value: object) -> list[tuple[str, object]] | None:
    """The states that a layer keeps; None where some of them are in private attributes."""
    found: list[tuple[str, object]] = []
    for name, state in _object_fields(value).items():
        if name in _BOOKKEEPING or not _has_tensors(state):
            continue
        if name.startswith("_"):
            return None
        alone = list(state.values()) if isinstance(state, Mapping) and len(state) == 1 else [state]
        found.append((_STATES.get(name, name), alone[0]))
    return found


def _attribute_parts(value: object) -> list[tuple[str, object]] | None:
    found = [(name, one) for name, one in _object_fields(value).items() if _has_tensors(one)]
    private = any(name.startswith("_") for name, _ in found)
    return None if private or not found else found


def _object_fields(value: object) -> dict[str, object]:
    return dict(getattr(value, "__dict__", {}))


def _has_tensors(value: object, depth: int = _MAX_DEPTH) -> bool:
    """Whether it is a tensor, or a container or object that holds one not too deep."""
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


SCOPE = "model"  # the attribute under which the flat module holds the user's


def make_flat_module(  # noqa: PLR0913 - what runs of eager showed of the module
    module: torch.nn.Module,
    binding: Binding,
    *,
    written: Iterable[int] = (),
    taken: Collection[str] = (),
    kept: Collection[str] | None = None,
    drop: Sequence[str] = (),
) -> torch.nn.Module:
    """Wrap `module` so that capture sees tensors only, in the signature's order.

    Inputs whose position is in `written` are cloned first: the module changes them in place.
    `kept` are the names of the outputs, none of `taken`, that are tensors in eager: to a tracer
    sizes are tensors as well. Names to `drop` are no outputs.
    """
    from torch import nn

    copied = frozenset(written)

    class Flat(nn.Module):
        """Binds tensors to the module's parameters and flattens what comes out."""

        def __init__(self) -> None:
            super().__init__()
            self.model = module
            self.training = False

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            """Call the module; an output that is an input, or comes twice, is cloned."""
            given = [t.clone() if i in copied else t for i, t in enumerate(tensors)]
            seen = {id(tensor) for tensor in given}
            results: list[torch.Tensor] = []
            value = binding.call(self.model, given)
            found = split_outputs(value, taken=taken, drop=drop).tensors
            for tensor in (found[name] for name in found if kept is None or name in kept):
                results.append(tensor.clone() if id(tensor) in seen else tensor)
                seen.add(id(tensor))
            return tuple(results)

    return Flat()
