"""Objects of tensors, taken apart: caches of transformers, plain attributes. Duck-typed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
