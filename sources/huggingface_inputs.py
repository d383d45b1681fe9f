"""What a transformers config says of the model's inputs. Duck-typed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..core.dims import Dim
from ..core.signature import InputSpec, RowOrder, ValueRange
from .huggingface_audio import audio_inputs
from .huggingface_config import config_number, config_value
from .huggingface_series import series_inputs

LONGEST = 128  # tokens, unless more are asked for: what texts are cut to most often
_USUAL_LENGTH = 32  # tokens that the model is captured at
_BATCH = Dim(name="batch", low=1, opt=2, high=4, bounded=False)  # bounds are chosen by eager
_CHOICES = Dim(name="choices", low=2, opt=3, high=4)
_USUAL_SIDE = 224  # pixels, where neither config nor preprocessor says
_ONLY_IF_REQUIRED = ("position_ids", "pixel_mask", "decoder_attention_mask")
_RANK_2 = 2
_CORNERS = 4  # of a box: left, top, right, bottom


@dataclass(frozen=True, kw_only=True)
class InputQuery:
    """A model whose inputs are asked for: its class, what it requires, and its preprocessor.

    `reserved` is how many of its positions no token can have: RoBERTa's begin after the padding's.
    `length` is the most tokens that are wanted, where the model has as many positions.
    """

    name: str = ""
    required: Collection[str] = ()
    reserved: int = 0
    length: int = LONGEST
    preprocessor: Mapping[str, object] = field(default_factory=dict)


def infer_inputs(
    config: object, parameters: Sequence[str], asked: InputQuery | None = None
) -> dict[str, InputSpec]:
    """Token, image, audio and time series inputs among forward's parameters, in their order.

    What the model does without is left out where it says nothing by itself, as positions do.
    Empty where the model takes none of these: the user then says the inputs.
    """
    asked = asked or InputQuery()
    specs: dict[str, InputSpec] = {}
    if "past_values" in parameters:
        specs = series_inputs(config, parameters, _BATCH)
    else:
        if "input_ids" in parameters:
            specs.update(_token_inputs(config, asked))
        elif "decoder_input_ids" in parameters:
            specs.update(_decoder_inputs(config, asked))
        if "pixel_values" in parameters:
            specs.update(_image_inputs(config, asked))
        specs.update(audio_inputs(config, parameters, _BATCH))
    if not getattr(config, "is_encoder_decoder", False):
        specs = {name: spec for name, spec in specs.items() if not name.startswith("decoder_")}
    return {
        name: specs[name]
        for name in parameters
        if name in specs and (name not in _ONLY_IF_REQUIRED or name in asked.required)
    }


def _token_inputs(config: object, asked: InputQuery) -> dict[str, InputSpec]:
    vocabulary = config_number(config, "vocab_size")
    if vocabulary is None:
        return {}
    most = config_number(config, "max_position_embeddings", "n_positions")
    longest = _length_limit(None if most is None else most - asked.reserved, asked)
    length = _length_dim("sequence", longest)
    dims = (_BATCH, _CHOICES, length) if asked.name.endswith("ForMultipleChoice") else (
        _BATCH, length)  # fmt: skip
    kinds = config_number(config, "type_vocab_size") or 0
    found = {
        "input_ids": _integer_spec("input_ids", dims, vocabulary - 1),
        "attention_mask": _integer_spec("attention_mask", dims, 1),
        "position_ids": _integer_spec("position_ids", dims, longest - 1),
    }
    if kinds >= _RANK_2:
        found["token_type_ids"] = _integer_spec("token_type_ids", dims, kinds - 1)
    places = config_number(config, "max_2d_position_embeddings")
    if places is not None:  # where each token stands on its page
        corners = ValueRange(low=0, high=places - 1, order=RowOrder.ASCENDING)
        box_dims = (*dims, Dim.fixed(_CORNERS))
        found["bbox"] = InputSpec(name="bbox", dtype="int64", dims=box_dims, values=corners)
    return {**found, **_decoder_inputs(config, asked)}


def _length_limit(most: int | None, asked: InputQuery) -> int:
    return asked.length if most is None else max(min(most, asked.length), 1)


def _decoder_inputs(config: object, asked: InputQuery) -> dict[str, InputSpec]:
    decoder = getattr(config, "decoder", None) or config
    vocabulary = config_number(decoder, "vocab_size") or config_number(config, "vocab_size")
    if vocabulary is None:
        return {}
    most = config_number(decoder, "max_target_positions", "max_position_embeddings", "n_positions")
    dims = (_BATCH, _length_dim("decoder_sequence", _length_limit(most, asked)))
    return {
        "decoder_input_ids": _integer_spec("decoder_input_ids", dims, vocabulary - 1),
        "decoder_attention_mask": _integer_spec("decoder_attention_mask", dims, 1),
    }


def _image_inputs(config: object, asked: InputQuery) -> dict[str, InputSpec]:
    """Pixels, with frames where the model takes videos."""
    sides = _image_sides(config, asked.preprocessor)
    channels = config_number(config, "num_channels") or 3
    frames = config_number(config, "num_frames")
    sizes = (channels, *sides) if frames is None else (frames, channels, *sides)
    dims = (_BATCH, *(Dim.fixed(size) for size in sizes))
    return {
        "pixel_values": InputSpec(name="pixel_values", dtype="float32", dims=dims),
        "pixel_mask": _integer_spec(
            "pixel_mask", (_BATCH, *(Dim.fixed(side) for side in sides)), 1
        ),
    }


def _image_sides(config: object, preprocessor: Mapping[str, object]) -> tuple[int, int]:
    """Height and width: the config's, the preprocessor's, or the usual."""
    for found in (
        config_value(config, "image_size"),
        *map(preprocessor.get, ("crop_size", "size")),
    ):
        if isinstance(found, int):
            return found, found
        if isinstance(found, (tuple, list)) and len(found) == _RANK_2:
            height, width = found
            if isinstance(height, int) and isinstance(width, int):
                return height, width
        if isinstance(found, Mapping):
            height = found.get("height", found.get("shortest_edge"))
            width = found.get("width", found.get("shortest_edge"))
            if isinstance(height, int) and isinstance(width, int):
                return height, width
    return _USUAL_SIDE, _USUAL_SIDE


def _integer_spec(name: str, dims: tuple[Dim, ...], high: int) -> InputSpec:
    """Whole numbers from 0 to `high`."""
    return InputSpec(name=name, dtype="int64", dims=dims, values=ValueRange(low=0, high=high))


def _length_dim(name: str, longest: int) -> Dim:
    return Dim(name=name, low=1, opt=min(_USUAL_LENGTH, longest), high=longest, bounded=False)
