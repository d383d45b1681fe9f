"""Caches of transformers that keep every position: filled with past states, and read afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

ResumableCache: TypeAlias = Any  # of `_resumable_class`: a DynamicCache with `next_start`
# Of a layer, by name; empty if it keeps none. A tuple has several of one kind.
States: TypeAlias = Mapping[str, Any]
KEY, VALUE = "key", "value"
# The attributes of a recurrent layer, each a dict by number, and their names in onnxruntime-genai.
_RECURRENT = {"conv_states": "conv_state", "recurrent_states": "recurrent_state"}
# Layers that keep a window only, and those that keep all positions: the mask hides the others.
_WHOLE = {
    "DynamicSlidingWindowLayer": "DynamicLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer": "LinearAttentionAndFullAttentionLayer",
}
_KNOWN = (
    "DynamicLayer",
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "DummyLayer",  # of experts or dense layers, without attention
)
_HEADS_RANK = 4  # of the states of a scan per head


class UnknownLayerError(ValueError):
    """A layer of the cache has states that are not known."""


def make_cache(model: PreTrainedModel, past: Mapping[str, States] | None = None) -> ResumableCache:
    """Return an empty cache for the model, or one with the past states of layers by position.

    Only a cache of recurrent layers is made from the config: others would cut keys to the window.

    Raises:
        UnknownLayerError: the model has other layers than those with keys, values, convolution and
            recurrent states.
    """
    cache = _empty_cache(model)
    for place, states in ((int(number), states) for number, states in (past or {}).items()):
        if KEY in states:
            cache.update(states[KEY], states[VALUE], place)
        for attribute, name in _RECURRENT.items():
            several = states.get(name, ())
            for number, state in enumerate(several if isinstance(several, tuple) else (several,)):
                _set_state(cache.layers[place], attribute, number, state)
    return cache


def _empty_cache(model: PreTrainedModel) -> ResumableCache:
    from transformers import cache_utils

    cache = _resumable_class()(config=model.config)
    for place, layer in enumerate(cache.layers):
        name = type(layer).__name__
        count = {"number_of_states": n} if (n := getattr(layer, "number_of_states", 0)) else {}
        if name in _WHOLE:
            cache.layers[place] = getattr(cache_utils, _WHOLE[name])(**count)
        elif name not in _KNOWN:
            raise UnknownLayerError(f"layer {place} keeps its states in a {name}")
    recurrent = any(hasattr(layer, "conv_states") for layer in cache.layers)
    return cache if recurrent else _resumable_class()()


def _set_state(layer: Any, attribute: str, number: int, state: torch.Tensor) -> None:
    """Set a state as if the layer had seen tokens; eager writes into it, so it is a copy."""
    getattr(layer, attribute)[number] = state.clone()
    getattr(layer, f"is_{attribute}_initialized")[number] = True
    layer.has_previous_state[number] = True
    layer.device, layer.dtype = state.device, state.dtype
    if attribute == "conv_states":
        layer.conv_kernel_size[number] = state.shape[-1]


def read_cache(cache: ResumableCache) -> tuple[dict[str, Any], ...]:
    """Return the states of each layer by name; several of a kind are a tuple."""
    found: list[dict[str, Any]] = []
    for layer in cache.layers:
        states = {KEY: getattr(layer, "keys", None), VALUE: getattr(layer, "values", None)}
        for attribute, name in _RECURRENT.items():
            several = [one for one in getattr(layer, attribute, {}).values() if one is not None]
            states[name] = tuple(several) if len(several) > 1 else next(iter(several), None)
        found.append({name: state for name, state in states.items() if state is not None})
    return tuple(found)


def _resumable_class() -> Any:
    from transformers import DynamicCache

    class Resumable(DynamicCache):
        """Remembers the recurrent state that a layer asked for, by heads if it has them."""

        _starts: Iterator[torch.Tensor] = iter(())

        def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Any:
            """Return the state of a layer; None if it has seen no tokens."""
            state: Any = super().get_recurrent_state(layer_idx, state_idx)
            alone = () if state is None else (state,)
            by_head = state is not None and state.ndim == _HEADS_RANK
            self._starts = iter(state.unbind(1) if by_head else alone)
            return state

        def next_start(self) -> torch.Tensor | None:
            """Return the state that a scan starts from; None without one."""
            return next(self._starts, None)

    return Resumable


def check_states(model: PreTrainedModel, states: Sequence[States]) -> None:
    """Check that a cache that has seen one token holds the states of every layer.

    Raises:
        UnknownLayerError: no layer has states, or a recurrent layer keeps its states elsewhere.
    """
    if not any(states):
        raise UnknownLayerError("it leaves the cache empty")
    for place, layer in enumerate(make_cache(model).layers):
        if type(layer).__name__ != "DummyLayer" and not states[place]:
            raise UnknownLayerError(f"layer {place} keeps its states outside of the cache")
