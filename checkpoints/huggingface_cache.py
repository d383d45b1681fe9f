"""Decoders with transformers' cache of keys and values as input and output tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..core.call import Parameter, ParameterKind
from ..core.dims import Dim, Relation, default_opt
from ..core.errors import ErrorCode, Hint, Option, UsageError, first_line
from ..core.generation import PAST, PRESENT
from ..core.nested_values import iterate_leaves
from ..core.signature import InputSpec, RowOrder, ValueRange
from ..core.torch_tools import is_tensor
from .huggingface_inputs import integer_spec
from .huggingface_states import (
    KEY,
    VALUE,
    States,
    check_states,
    make_cache,
    read_cache,
)
from .recurrent_scans import resume_states

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import torch
    from transformers import PreTrainedModel

_LENGTH_FACTOR = 4  # of the opt: the most that `choose_dims` tries
_RANK, _ALONG = 4, 2  # batch, heads, positions, size of a head; the axis of positions


@dataclass(frozen=True, kw_only=True)
class CacheLayer:
    """Heads and size of a layer's keys and values per position, and sizes of its other states."""

    key: tuple[int, int] | None = None
    value: tuple[int, int] | None = None
    states: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def wrap_with_cache(
    model: PreTrainedModel, *, past: bool
) -> tuple[torch.nn.Module, tuple[Parameter, ...], tuple[CacheLayer, ...]]:
    """Wrap the model with the states of its layers as outputs, and as inputs if `past`.

    Outputs are `logits` and `present.N.key`, `present.N.value`; inputs beside the tokens
    `past_key_values.N.key`, `past_key_values.N.value`. A recurrent layer has `conv_state` and
    `recurrent_state`, a layer without states is left out.

    Raises:
        UsageError: the model has no states in a cache, or unknown ones.
    """
    import inspect

    layers = _probe_layers(model)
    names = ["input_ids", "attention_mask"]
    if "position_ids" in inspect.signature(model.forward).parameters:
        names.append("position_ids")
    if past:
        names.append(PAST)
    # By name: position_ids, in the middle, may be missing.
    takes = tuple(
        Parameter(name=name, kind=ParameterKind.KEYWORD, sparse=name == PAST) for name in names
    )
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
    if not any(layer.key for layer in layers):  # no past that a mask could cover
        total = length
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
        sizes: dict[str, tuple[Dim, ...]] = {
            part: tuple(map(Dim.of_size, state)) for part, state in layer.states.items()
        }
        for part, heads in ((KEY, layer.key), (VALUE, layer.value)):
            if heads is not None:
                sizes[part] = (Dim.of_size(heads[0]), before, Dim.of_size(heads[1]))
        for part, dims in sizes.items():
            name = f"{PAST}.{index}{side}.{part}"
            found[name] = InputSpec(name=name, dtype="float32", dims=(batch, *dims))
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
    attends = any(layer.key for layer in layers)  # others have no past that a mask could cover
    total = Dim.follow("total", sums, before, prompt) if attends else prompt
    shown = ValueRange(low=0, high=1, order=RowOrder.ASCENDING)
    last = Relation(base=total.name or "", plus=-1)
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

    try:
        with torch.no_grad():
            one = torch.zeros((1, 1), dtype=torch.int64)
            cache = make_cache(model)
            model(**{"input_ids": one, "use_cache": True, _cache_parameter(model): cache})
        states = read_cache(cache)
        check_states(model, states)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise _no_cache_error(model, first_line(error)) from error
    return tuple(_layer_of(model, layer) for layer in states)


def _layer_of(model: PreTrainedModel, states: States) -> CacheLayer:
    pairs = {name: states[name] for name in (KEY, VALUE) if name in states}
    for tensor in pairs.values():
        if tensor.ndim != _RANK or tensor.shape[_ALONG] != 1:
            raise _no_cache_error(model, "a layer of its cache has no key and value per position")
    heads = {name: (one.shape[1], one.shape[3]) for name, one in pairs.items()}
    others: dict[str, tuple[int, ...]] = {
        ".".join(path): tuple(getattr(one, "shape", ())[1:])
        for path, one in iterate_leaves(states, is_tensor)
        if path[0] not in pairs
    }
    return CacheLayer(key=heads.get(KEY), value=heads.get(VALUE), states=others)


def _cache_parameter(model: PreTrainedModel) -> str:
    """Return the parameter of forward that takes the cache: Mamba's has another name."""
    import inspect

    names = inspect.signature(model.forward).parameters
    return "cache_params" if "cache_params" in names else PAST


def _no_cache_error(model: PreTrainedModel, why: str) -> UsageError:
    return UsageError(
        f"{type(model).__name__} has no past states that can be inputs: {why}",
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
            self.cache_parameter = _cache_parameter(model)

        def forward(
            self,
            input_ids: torch.Tensor,
            attention_mask: torch.Tensor,
            position_ids: torch.Tensor | None = None,
            past_key_values: dict[str, dict[str, torch.Tensor]] | None = None,
        ) -> dict[str, Any]:
            """Return logits, and the states of each layer: keys and values of all positions."""
            cache = make_cache(self.model, past_key_values)
            more: dict[str, Any] = {self.cache_parameter: cache}
            if position_ids is not None:
                more["position_ids"] = position_ids
            with resume_states(self.model, cache.next_start):
                made = self.model(
                    input_ids=input_ids, attention_mask=attention_mask, use_cache=True, **more
                )
            return {"logits": made.logits, PRESENT: read_cache(cache)}

    return Cached()
