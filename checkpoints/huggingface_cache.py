"""Decoders with transformers' cache of keys and values as input and output tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..core.call import Parameter, ParameterKind
from ..core.dims import Dim, Relation, default_opt
from ..core.errors import ErrorCode, Hint, Option, UsageError, first_line
from ..core.signature import InputSpec, RowOrder, ValueRange
from .huggingface_inputs import integer_spec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import torch
    from transformers import DynamicCache, PreTrainedModel

PAST, PRESENT = "past_key_values", "present"
_LENGTH_FACTOR = 4  # of the opt: the most that `choose_dims` tries
_RANK, _ALONG = 4, 2  # batch, heads, positions, size of a head; the axis of positions
# Layers with keys and values of all positions. A sliding window is applied by the mask: all keys
# are passed on, so that the past has one length.
_LAYERS = ("full_attention", "sliding_attention", "chunked_attention")


@dataclass(frozen=True, kw_only=True)
class CacheLayer:
    """Heads and size of a layer's keys and values per position."""

    key: tuple[int, int]
    value: tuple[int, int]


def wrap_with_cache(
    model: PreTrainedModel, *, past: bool
) -> tuple[torch.nn.Module, tuple[Parameter, ...], tuple[CacheLayer, ...]]:
    """Wrap the model with keys and values as outputs, and as inputs if `past`.

    Outputs are `logits` and `present.N.key`, `present.N.value`; inputs beside the tokens
    `past_key_values.N.key`, `past_key_values.N.value`.

    Raises:
        UsageError: the model has no keys and values, or other states.
    """
    import inspect

    layers = _probe_layers(model)
    names = ["input_ids", "attention_mask"]
    if "position_ids" in inspect.signature(model.forward).parameters:
        names.append("position_ids")
    if past:
        names.append(PAST)
    # By name: position_ids, in the middle, may be missing.
    takes = tuple(Parameter(name=name, kind=ParameterKind.KEYWORD) for name in names)
    return _make_cache_module(model), takes, layers


def cache_inputs(
    known: Mapping[str, InputSpec],
    names: Collection[str],
    layers: Sequence[CacheLayer],
    *,
    past: bool,
    window: int | None = None,
) -> dict[str, InputSpec]:
    """Return the inputs for a whole prompt, or for one token after a `past`.

    `known` are the inputs of the model without a cache. The mask covers the past and the token, up
    to the attention `window`: a mask that hides a whole window gives undefined results. Positions
    of a prompt are less than its length, which is at most the model's unless a longer one is
    stated.
    """
    ids = known["input_ids"]
    batch, tokens = ids.dims
    # The bounds are chosen, at most `_LENGTH_FACTOR` times the opt.
    prompt = replace(tokens, low=1, opt=max(tokens.high // _LENGTH_FACTOR, 1))
    longest = max(min(prompt.high, window or prompt.high) - 1, 1)
    before = Dim(name="past", low=1, opt=default_opt(1, longest), high=longest)
    step = Dim.follow("total", Relation(base="past", plus=1), before)
    length, total = (Dim.of_size(1), step) if past else (prompt, prompt)
    found = {
        "input_ids": InputSpec(
            name="input_ids", dtype="int64", dims=(batch, length), values=ids.values
        ),
        "attention_mask": integer_spec("attention_mask", (batch, total), 1),
    }
    if "position_ids" in names:
        places = integer_spec("position_ids", (batch, length), total.high - 1)
        last = Relation(base=prompt.name or "", plus=-1)
        below = ValueRange(low=0, high=last.size(prompt.high), high_dim=last)  # {0..sequence-1}
        found["position_ids"] = places if past else replace(places, values=below)
    return {**found, **past_inputs(layers if past else (), batch, before)}


def past_inputs(
    layers: Sequence[CacheLayer], batch: Dim, before: Dim, *, side: str = ""
) -> dict[str, InputSpec]:
    """Return keys and values of `before` positions; a `side` follows the layer in their names."""
    found: dict[str, InputSpec] = {}
    for index, layer in enumerate(layers):
        for part, (heads, size) in (("key", layer.key), ("value", layer.value)):
            name = f"{PAST}.{index}{side}.{part}"
            dims = (batch, Dim.of_size(heads), before, Dim.of_size(size))
            found[name] = InputSpec(name=name, dtype="float32", dims=dims)
    return found


def inputs_of_one_graph(
    known: Mapping[str, InputSpec],
    names: Collection[str],
    layers: Sequence[CacheLayer],
    positions: int | None,
    *,
    side: str = "",
) -> dict[str, InputSpec]:
    """Return the inputs for a prompt (no past), a step (one token), and a part of a prompt.

    The mask covers the past and the tokens, and is padded on the left within the past, so that each
    token attends at least to itself, also within a sliding window. Past and tokens together are at
    most the model's `positions`, unless larger ranges are stated.
    """
    ids = known["input_ids"]
    batch, tokens = ids.dims
    longest = min(tokens.high, positions // 2) if positions else tokens.high
    opt = max(longest // _LENGTH_FACTOR, 2)
    prompt = replace(tokens, low=1, opt=opt, high=longest)
    before = Dim(name="past", low=0, opt=opt, high=longest, bounded=False)
    sums = Relation(base="past", others=((prompt.name or "", 1),))
    total = Dim.follow("total", sums, before, prompt)
    shown = ValueRange(low=0, high=1, order=RowOrder.ASCENDING)
    last = Relation(base="total", plus=-1)
    places = ValueRange(low=0, high=last.size(total.high), high_dim=last)  # {0..total-1}
    found = {"input_ids": replace(ids, dims=(batch, prompt))}
    for name, dims, values in (
        ("attention_mask", (batch, total), shown),
        ("position_ids", (batch, prompt), places),
    ):
        if name in names:
            found[name] = InputSpec(name=name, dtype="int64", dims=dims, values=values)
    return {**found, **past_inputs(layers, batch, before, side=side)}


def _probe_layers(model: PreTrainedModel) -> tuple[CacheLayer, ...]:
    """Return each layer's shapes, by running one token."""
    import torch

    kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
    others = sorted(set(kinds) - set(_LAYERS))
    if others:
        raise _no_cache_error(model, f"its layers are {', '.join(others)}, which have other states")
    try:
        with torch.no_grad():
            one = torch.zeros((1, 1), dtype=torch.int64)
            cache = model(input_ids=one, use_cache=True).past_key_values
        pairs = [(layer.keys, layer.values) for layer in cache.layers]
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise _no_cache_error(model, first_line(error)) from error
    for key, value in pairs:
        for tensor in (key, value):
            plain = isinstance(tensor, torch.Tensor) and tensor.ndim == _RANK
            if not plain or tensor.shape[_ALONG] != 1:
                raise _no_cache_error(
                    model, "a layer of its cache has no key and value per position"
                )
    return tuple(
        CacheLayer(key=(key.shape[1], key.shape[3]), value=(value.shape[1], value.shape[3]))
        for key, value in pairs
    )


def _no_cache_error(model: PreTrainedModel, why: str) -> UsageError:
    return UsageError(
        f"{type(model).__name__} has no past keys and values that can be inputs: {why}",
        hint=Hint("convert it without them with ", Option("model-arg", "task=text-generation")),
        option="model-arg",
        code=ErrorCode.UNSUPPORTED,
    )


def _make_cache_module(model: PreTrainedModel) -> torch.nn.Module:
    from torch import nn

    class Cached(nn.Module):
        """Converts nested tensors to transformers' cache and back."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.training = model.training

        def forward(
            self,
            input_ids: torch.Tensor,
            attention_mask: torch.Tensor,
            position_ids: torch.Tensor | None = None,
            past_key_values: tuple[dict[str, torch.Tensor], ...] | None = None,
        ) -> dict[str, Any]:
            """Return logits, and the keys and values of all positions."""
            more = {} if position_ids is None else {"position_ids": position_ids}
            made = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                past_key_values=_make_cache(past_key_values),
                use_cache=True,
                **more,
            )
            present = tuple(
                {"key": layer.keys, "value": layer.values} for layer in made.past_key_values.layers
            )
            return {"logits": made.logits, PRESENT: present}

    return Cached()


def _make_cache(past: tuple[dict[str, torch.Tensor], ...] | None) -> DynamicCache:
    """Return a cache with the past, if any; without a config no layer truncates it."""
    from transformers import DynamicCache

    if past is None:
        return DynamicCache()
    return DynamicCache([(layer["key"], layer["value"]) for layer in past])
