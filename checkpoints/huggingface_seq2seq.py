"""Encoder-decoders of transformers in two parts: an encoder, and a decoder with a cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from ..core.call import Parameter, ParameterKind
from ..core.dims import Dim
from ..core.errors import ErrorCode, Hint, Option, UsageError, first_line
from ..core.generation import PAST, PRESENT
from .huggingface_cache import CacheLayer, inputs_of_one_graph, past_inputs
from .huggingface_inputs import config_number, integer_spec
from .huggingface_states import read_cache
from .huggingface_tasks import ENCODER_PART, base_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from transformers import EncoderDecoderCache, PreTrainedModel

    from ..core.signature import InputSpec
    from .loaded_module import LoadedModule

    _Past: TypeAlias = tuple[dict[str, dict[str, torch.Tensor]], ...]  # by layer and side

_DECODER, _ENCODER = "decoder", "encoder"  # whose keys and values: as optimum and transformers
_MASK, _ENCODER_MASK = "attention_mask", "encoder_attention_mask"
_ENCODER_TAKES = ("input_ids", _MASK, "input_features")
_TOKENS = 3  # of the decoder, in the check of the parts
_APART = 1e-3  # of the largest logit: far above roundoff, far below a missing input


class _Sides(NamedTuple):
    """What a run of both parts shows: each layer's own and cross cache, and the latter's length."""

    own: tuple[CacheLayer, ...]
    cross: tuple[CacheLayer, ...]
    length: int


def split_part(loaded: LoadedModule, task: str) -> LoadedModule:
    """Return the encoder, or the decoder as one graph for prompt and step.

    The encoder's outputs are `last_hidden_state` and the keys and values that the decoder attends
    to, `present.N.encoder.key` and `.value`: no step computes them again. The decoder takes these
    as `past_key_values.N.encoder.key`, its own cache as `past_key_values.N.decoder.key`, the tokens
    as `input_ids`, and `encoder_attention_mask` if the encoder has a mask.

    Raises:
        UsageError: the model has no such caches, or its parts do not give its logits.
    """
    model = cast("PreTrainedModel", loaded.module.eval())
    known = {n: spec for n, spec in loaded.known.items() if not n.startswith("decoder_")}
    positions = loaded.positions
    other = next((name for name in known if name not in _ENCODER_TAKES), None)
    if other is not None:
        raise _no_parts_error(model, f"its encoder takes {other}")
    encoder, decoder = _make_encoder(model), _make_decoder(model)
    sides = _check_parts(model, encoder, decoder, known)
    if task.endswith(ENCODER_PART):
        names, module = tuple(known), encoder
    else:
        ids = replace(loaded.known["decoder_input_ids"], name="input_ids")
        part = getattr(model.config, "decoder", None) or model.config
        positions = config_number(part, "max_target_positions", "max_position_embeddings")
        known, module = _decoder_inputs(known, ids, sides, positions), decoder
        masks = (_ENCODER_MASK,) if _ENCODER_MASK in known else ()
        names = ("input_ids", *masks, PAST)
    takes = tuple(Parameter(name=name, kind=ParameterKind.KEYWORD) for name in names)
    return replace(loaded, module=module, takes=takes, known=known, positions=positions)


def _decoder_inputs(
    encoder: Mapping[str, InputSpec], ids: InputSpec, sides: _Sides, positions: int | None
) -> dict[str, InputSpec]:
    """Return the decoder's inputs; `encoder` are those of the encoder, `ids` the tokens."""
    batch, tokens = ids.dims
    ids = replace(ids, dims=(batch, replace(tokens, name="sequence")))
    found = inputs_of_one_graph({"input_ids": ids}, (), sides.own, positions, side=f".{_DECODER}")
    source = next(iter(encoder.values())).dims
    length = Dim.of_size(sides.length)
    if any(dim.dynamic for dim in source[1:]):
        longest = max(dim.high for dim in source if dim.dynamic and dim.name != batch.name)
        length = Dim(name="encoder_sequence", low=1, opt=sides.length, high=longest, bounded=False)
    if _MASK in encoder:
        found[_ENCODER_MASK] = integer_spec(_ENCODER_MASK, (batch, length), 1)
    return {**found, **past_inputs(sides.cross, batch, length, side=f".{_ENCODER}")}


def _check_parts(
    model: PreTrainedModel,
    encoder: torch.nn.Module,
    decoder: torch.nn.Module,
    known: Mapping[str, InputSpec],
) -> _Sides:
    """Compare a prompt and a step of the parts with the whole model; return their caches."""
    import torch

    random = torch.Generator().manual_seed(0)
    feed = {name: _draw_input(spec, random) for name, spec in known.items()}
    padding = getattr(model.config, "pad_token_id", None)  # no token: it may take no position
    tokens = [token for token in range(_TOKENS + 1) if token != padding][:_TOKENS]
    ids = torch.tensor([tokens, tokens[::-1]])
    try:
        with torch.no_grad():
            wanted = model(**feed, decoder_input_ids=ids, use_cache=False).logits
            cross = encoder(**feed)[PRESENT]
            masks = {_ENCODER_MASK: feed[_MASK]} if _MASK in feed else {}
            own: Sequence[Any] = [
                {_DECODER: {name: one[:, :, :0] for name, one in layer[_ENCODER].items()}}
                for layer in cross
            ]
            found = []
            for part in (ids[:, :-1], ids[:, -1:]):
                past = tuple({**a, **b} for a, b in zip(own, cross, strict=True))
                made = decoder(input_ids=part, **masks, **{PAST: past})
                own = made[PRESENT]
                found.append(made["logits"])
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError, KeyError) as error:
        raise _no_parts_error(model, first_line(error)) from error
    apart = (torch.cat(found, dim=1) - wanted).abs().max()
    if not apart <= _APART * wanted.abs().max():
        raise _no_parts_error(model, f"together they differ from its logits by {apart:.1e}")
    return _Sides(
        own=tuple(_layer_of(layer[_DECODER]) for layer in own),
        cross=tuple(_layer_of(layer[_ENCODER]) for layer in cross),
        length=cross[0][_ENCODER]["key"].shape[2],
    )


def _draw_input(spec: InputSpec, random: torch.Generator) -> torch.Tensor:
    """Return an input at its opt size for a batch of two; a mask hides the second row's end."""
    import torch

    shape = (2, *(dim.opt for dim in spec.dims[1:]))
    if spec.values is None:
        return torch.randn(shape, generator=random)
    if spec.name == _MASK:
        mask = torch.ones(shape, dtype=torch.int64)
        mask[1, (shape[1] + 1) // 2 :] = 0
        return mask
    return torch.randint(int(spec.values.high) + 1, shape, generator=random)


def _layer_of(pair: Mapping[str, torch.Tensor]) -> CacheLayer:
    (_, heads, _, size), (_, value_heads, _, value_size) = pair["key"].shape, pair["value"].shape
    return CacheLayer(key=(heads, size), value=(value_heads, value_size))


def _no_parts_error(model: PreTrainedModel, why: str) -> UsageError:
    base = base_of(model.config)
    return UsageError(
        f"{type(model).__name__} cannot be split into an encoder and a decoder with a cache: {why}",
        hint=Hint("convert the whole model with ", Option("model-arg", f"task={base}")),
        option="model-arg",
        code=ErrorCode.UNSUPPORTED,
    )


def _make_encoder(model: PreTrainedModel) -> torch.nn.Module:
    import torch
    from torch import nn

    class Encoder(nn.Module):
        """Returns the encoder's states, and the keys and values of cross attention."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.training = model.training

        def forward(
            self,
            input_ids: torch.Tensor | None = None,
            attention_mask: torch.Tensor | None = None,
            input_features: torch.Tensor | None = None,
        ) -> dict[str, Any]:
            """Run the encoder, and the decoder for one token: that makes the cross cache."""
            given = {"input_ids": input_ids, "input_features": input_features}
            given = {name: one for name, one in given.items() if one is not None}
            masks = {} if attention_mask is None else {_MASK: attention_mask}
            states = self.model.get_encoder()(**given, **masks)[0]
            token = states.new_zeros((states.shape[0], 1), dtype=torch.int64)
            made = _decode(self.model, states, token, (), masks)
            pairs = read_cache(made.past_key_values.cross_attention_cache)
            return {
                "last_hidden_state": states,
                PRESENT: tuple({_ENCODER: pair} for pair in pairs),
            }

    return Encoder()


def _make_decoder(model: PreTrainedModel) -> torch.nn.Module:
    from torch import nn

    class Decoder(nn.Module):
        """Converts nested tensors to transformers' cache and back."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.training = model.training

        def forward(
            self,
            input_ids: torch.Tensor,
            past_key_values: _Past,
            encoder_attention_mask: torch.Tensor | None = None,
        ) -> dict[str, Any]:
            """Return logits, and the decoder's keys and values of all positions."""
            key = past_key_values[0][_ENCODER]["key"]
            # The cross cache replaces the encoder's states; only their length matters.
            states = key.new_zeros((key.shape[0], key.shape[2], 1))
            masks = {} if encoder_attention_mask is None else {_MASK: encoder_attention_mask}
            made = _decode(self.model, states, input_ids, past_key_values, masks)
            pairs = read_cache(made.past_key_values.self_attention_cache)
            return {"logits": made.logits, PRESENT: tuple({_DECODER: pair} for pair in pairs)}

    return Decoder()


def _decode(
    model: PreTrainedModel, states: torch.Tensor, ids: torch.Tensor, past: _Past,
    masks: Mapping[str, torch.Tensor],
) -> Any:  # fmt: skip
    """Run the decoder on tokens after a past, with the states of the encoder and their mask."""
    from transformers.modeling_outputs import BaseModelOutput

    outputs = BaseModelOutput(last_hidden_state=states)
    outputs.router_logits = None  # mixtures of experts (Switch, NLLB-MoE) hand these on
    return model(
        encoder_outputs=outputs,
        decoder_input_ids=ids,
        past_key_values=_make_cache(past),
        use_cache=True,
        **masks,
    )


def _make_cache(past: _Past) -> EncoderDecoderCache:
    """Return both caches; without a config no layer truncates them."""
    from transformers import DynamicCache, EncoderDecoderCache

    own, cross = (
        DynamicCache([(layer[side]["key"], layer[side]["value"]) for layer in past])
        for side in (_DECODER, _ENCODER)
    )
    return EncoderDecoderCache(own, cross)
