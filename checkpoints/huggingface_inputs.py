"""Inputs from a transformers config: tokens, images, audio, series. Duck-typed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..core.dims import Dim, default_opt
from ..core.signature import InputSpec, RowOrder, ValueRange

LONGEST = 128  # tokens, unless more are requested: the usual truncation of texts
_USUAL_LENGTH = 32  # tokens of the captured feed
_BATCH = Dim(name="batch", low=1, opt=2, high=4, bounded=False)  # eager determines the bounds
_CHOICES = Dim(name="choices", low=2, opt=3, high=4)
_USUAL_SIDE = 224  # pixels, without a size in config or preprocessor
_REQUIRED_ONLY = ("position_ids", "pixel_mask", "decoder_attention_mask")
_RANK_2 = 2
_CORNERS = 4  # of a box: left, top, right, bottom


@dataclass(frozen=True, kw_only=True)
class InputQuery:
    """A model whose inputs are inferred: its class, required parameters, and preprocessor.

    `reserved` positions are not available to tokens: RoBERTa's begin after the padding's. `length`
    is the requested number of tokens, if the model has as many positions.
    """

    name: str = ""
    required: Collection[str] = ()
    reserved: int = 0
    length: int = LONGEST
    preprocessor: Mapping[str, object] = field(default_factory=dict)


def infer_inputs(
    config: object, parameters: Sequence[str], query: InputQuery | None = None
) -> dict[str, InputSpec]:
    """Return token, image, audio and time series inputs among forward's parameters, in order.

    Optional inputs without information of their own, such as positions, are omitted. Empty if the
    model has none of these inputs.
    """
    query = query or InputQuery()
    specs: dict[str, InputSpec] = {}
    if "past_values" in parameters:
        specs = series_inputs(config, parameters, _BATCH)
    else:
        if "input_ids" in parameters:
            specs.update(_token_inputs(config, query))
        elif "decoder_input_ids" in parameters:
            specs.update(_decoder_inputs(config, query))
        if "pixel_values" in parameters:
            specs.update(_image_inputs(config, query))
        specs.update(audio_inputs(config, parameters, _BATCH))
    if not getattr(config, "is_encoder_decoder", False):
        specs = {name: spec for name, spec in specs.items() if not name.startswith("decoder_")}
    return {
        name: specs[name]
        for name in parameters
        if name in specs and (name not in _REQUIRED_ONLY or name in query.required)
    }


def count_positions(config: object, reserved: int = 0) -> int | None:
    """Return the positions of a text without the reserved ones; None if it has no such limit.

    With longrope, they are those before its angles change: a text that grows beyond these has keys
    of both kinds, and `generate` starts it again there.
    """
    rope, original = config_value(config, "rope_parameters"), None
    if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
        original = rope.get("original_max_position_embeddings")
        original = original or config_number(config, "original_max_position_embeddings")
    most = original or config_number(config, "max_position_embeddings", "n_positions")
    return most and most - reserved


def _token_inputs(config: object, query: InputQuery) -> dict[str, InputSpec]:
    vocabulary = config_number(config, "vocab_size")
    if vocabulary is None:
        return {}
    most = config_number(config, "max_position_embeddings", "n_positions")
    longest = _length_limit(None if most is None else most - query.reserved, query)
    length = _length_dim("sequence", longest)
    dims = (_BATCH, _CHOICES, length) if query.name.endswith("ForMultipleChoice") else (
        _BATCH, length)  # fmt: skip
    kinds = config_number(config, "type_vocab_size") or 0
    found = {
        "input_ids": integer_spec("input_ids", dims, vocabulary - 1),
        "attention_mask": integer_spec("attention_mask", dims, 1),
        "position_ids": integer_spec("position_ids", dims, longest - 1),
    }
    if kinds >= _RANK_2:
        found["token_type_ids"] = integer_spec("token_type_ids", dims, kinds - 1)
    places = config_number(config, "max_2d_position_embeddings")
    if places is not None:  # the position of each token on the page
        corners = ValueRange(low=0, high=places - 1, order=RowOrder.ASCENDING)
        box_dims = (*dims, Dim.of_size(_CORNERS))
        found["bbox"] = InputSpec(name="bbox", dtype="int64", dims=box_dims, values=corners)
    return {**found, **_decoder_inputs(config, query)}


def _length_limit(most: int | None, query: InputQuery) -> int:
    return query.length if most is None else max(min(most, query.length), 1)


def _decoder_inputs(config: object, query: InputQuery) -> dict[str, InputSpec]:
    decoder = getattr(config, "decoder", None) or config
    vocabulary = config_number(decoder, "vocab_size") or config_number(config, "vocab_size")
    if vocabulary is None:
        return {}
    most = config_number(decoder, "max_target_positions", "max_position_embeddings", "n_positions")
    dims = (_BATCH, _length_dim("decoder_sequence", _length_limit(most, query)))
    return {
        "decoder_input_ids": integer_spec("decoder_input_ids", dims, vocabulary - 1),
        "decoder_attention_mask": integer_spec("decoder_attention_mask", dims, 1),
    }


def _image_inputs(config: object, query: InputQuery) -> dict[str, InputSpec]:
    """Return pixels, with frames for video models."""
    sides = _image_sides(config, query.preprocessor)
    channels = config_number(config, "num_channels") or 3
    frames = config_number(config, "num_frames")
    sizes = (channels, *sides) if frames is None else (frames, channels, *sides)
    dims = (_BATCH, *(Dim.of_size(size) for size in sizes))
    return {
        "pixel_values": InputSpec(name="pixel_values", dtype="float32", dims=dims),
        "pixel_mask": integer_spec(
            "pixel_mask", (_BATCH, *(Dim.of_size(side) for side in sides)), 1
        ),
    }


def _image_sides(config: object, preprocessor: Mapping[str, object]) -> tuple[int, int]:
    """Return height and width of the config, of the preprocessor, or the default."""
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


def integer_spec(name: str, dims: tuple[Dim, ...], high: int) -> InputSpec:
    """Return an input of integers from 0 to `high`."""
    return InputSpec(name=name, dtype="int64", dims=dims, values=ValueRange(low=0, high=high))


def _length_dim(name: str, longest: int) -> Dim:
    return Dim(name=name, low=1, opt=min(_USUAL_LENGTH, longest), high=longest, bounded=False)


# What a transformers config says of audio inputs: waveforms, and features of them. Duck-typed.


_FRAMES = (12, 48)  # frames of a convolutional feature extractor: enough for its masks and groups
_SAMPLES = (4_000, 16_000)  # of a waveform without extractor: a quarter of a second to one second
_STEPS = (16, 128)  # of features, unless the config fixes them
_TWICE = 2  # Whisper's second convolution halves the time


def audio_inputs(config: object, parameters: Sequence[str], batch: Dim) -> dict[str, InputSpec]:
    """Return `input_values` and `input_features`, if the model has them."""
    found: dict[str, tuple[Dim, ...]] = {}
    if "input_values" in parameters:
        dims = _spectrogram_dims(config) or _waveform_dims(config)
        found["input_values"] = (batch, *dims)
    if "input_features" in parameters:
        features = _audio_feature_dims(config)
        if features:
            found["input_features"] = (batch, *features)
    return {name: InputSpec(name=name, dtype="float32", dims=dims) for name, dims in found.items()}


def _spectrogram_dims(config: object) -> tuple[Dim, ...]:
    """Return frames and mel bins of models with spectrograms."""
    length, bins = config_number(config, "max_length"), config_number(config, "num_mel_bins")
    if length is None or bins is None or config_value(config, "conv_stride") is not None:
        return ()
    return Dim.of_size(length), Dim.of_size(bins)


def _waveform_dims(config: object) -> tuple[Dim, ...]:
    """Return samples, enough for a few frames of the convolutions."""
    kernels, strides = config_numbers(config, "conv_kernel"), config_numbers(config, "conv_stride")
    low, high = _SAMPLES
    if kernels and len(kernels) == len(strides):
        low, high = (_samples_for_frames(frames, kernels, strides) for frames in _FRAMES)
    samples = Dim(name="samples", low=low, opt=default_opt(low, high), high=high)
    channels = config_number(config, "audio_channels")
    return (samples,) if channels is None else (Dim.of_size(channels), samples)


def _samples_for_frames(frames: int, kernels: Sequence[int], strides: Sequence[int]) -> int:
    """Return the fewest samples that give so many frames of unpadded convolutions."""
    count = frames
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        count = (count - 1) * stride + kernel
    return count


def _audio_feature_dims(config: object) -> tuple[Dim, ...]:
    """Return Whisper's mel bins by time, or time by features."""
    bins, positions = (
        config_number(config, "num_mel_bins"),
        config_number(config, "max_source_positions"),
    )
    per_channel = config_number(config, "input_feat_per_channel")
    low, high = _STEPS
    steps = Dim(name="frames", low=low, opt=default_opt(low, high), high=high)
    if per_channel is not None:
        return steps, Dim.of_size(per_channel * (config_number(config, "input_channels") or 1))
    wide = config_number(config, "feature_projection_input_dim")
    if wide is not None:
        return steps, Dim.of_size(wide)
    if bins is not None and positions is not None:
        return Dim.of_size(bins), Dim.of_size(_TWICE * positions)
    return ()


# What a transformers config says of time series inputs. Duck-typed.


def series_inputs(config: object, parameters: Sequence[str], batch: Dim) -> dict[str, InputSpec]:
    """Return past and, for decoders, future values, with their time features and masks."""
    context = config_number(config, "context_length")
    if context is None:
        return {}
    if "past_time_features" not in parameters:
        channels = config_number(config, "num_input_channels") or 1
        values = (batch, Dim.of_size(context), Dim.of_size(channels))
        return {"past_values": InputSpec(name="past_values", dtype="float32", dims=values)}
    ahead = config_number(config, "prediction_length") or 1
    past = Dim.of_size(context + max(config_numbers(config, "lags_sequence"), default=0))
    width = config_number(config, "input_size") or 1
    found = {
        "past_values": _float_spec("past_values", _series_dims(batch, past, width)),
        "past_time_features": _float_spec(
            "past_time_features", (batch, past, _time_feature_dim(config))
        ),
        "past_observed_mask": InputSpec(
            name="past_observed_mask",
            dtype="float32",
            dims=_series_dims(batch, past, width),
            values=ValueRange(low=1, high=1),
        ),
        "future_values": _float_spec(
            "future_values", _series_dims(batch, Dim.of_size(ahead), width)
        ),
        "future_time_features": _float_spec(
            "future_time_features", (batch, Dim.of_size(ahead), _time_feature_dim(config))
        ),
    }
    return {**found, **_static_inputs(config, batch)}


def _series_dims(batch: Dim, length: Dim, width: int) -> tuple[Dim, ...]:
    return (batch, length) if width == 1 else (batch, length, Dim.of_size(width))


def _time_feature_dim(config: object) -> Dim:
    return Dim.of_size(max(config_number(config, "num_time_features") or 0, 1))


def _static_inputs(config: object, batch: Dim) -> dict[str, InputSpec]:
    """Return static features, if the model has any."""
    found: dict[str, InputSpec] = {}
    classes = config_numbers(config, "cardinality")
    count = config_number(config, "num_static_categorical_features") or 0
    if count:
        name = "static_categorical_features"
        values = ValueRange(low=0, high=max(min(classes, default=1) - 1, 0))
        dims = (batch, Dim.of_size(count))
        found[name] = InputSpec(name=name, dtype="int64", dims=dims, values=values)
    real = config_number(config, "num_static_real_features") or 0
    if real:
        found["static_real_features"] = _float_spec(
            "static_real_features", (batch, Dim.of_size(real))
        )
    return found


def _float_spec(name: str, dims: tuple[Dim, ...]) -> InputSpec:
    return InputSpec(name=name, dtype="float32", dims=dims)


# Looks things up in a transformers config, or in the configs of its parts. Duck-typed.


_PARTS = ("text_config", "vision_config", "audio_config", "encoder", "decoder")


def config_number(config: object, *names: str) -> int | None:
    """Return the first of these attributes that is an integer; None if none is."""
    for name in names:
        value = config_value(config, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def config_numbers(config: object, name: str) -> tuple[int, ...]:
    """Return the attribute as integers; empty if it has other values."""
    value = config_value(config, name)
    if isinstance(value, (tuple, list)) and all(isinstance(one, int) for one in value):
        return tuple(value)
    return ()


def config_value(config: object, name: str) -> object:
    """Return the attribute of the config, or of one of its parts."""
    for part in (config, *(getattr(config, part, None) for part in _PARTS)):
        value = getattr(part, name, None)
        if value is not None:
            return value
    return None
