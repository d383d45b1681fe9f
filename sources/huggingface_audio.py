"""What a transformers config says of audio inputs: waveforms, and features of them. Duck-typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.dims import Dim, default_opt
from ..core.signature import InputSpec
from .huggingface_config import config_number, config_numbers, config_value

if TYPE_CHECKING:
    from collections.abc import Sequence

# What a transformers config says of audio inputs: waveforms, and features of them. Duck-typed.


_FRAMES = (12, 48)  # of a convolutional feature extractor: enough for its masks and its groups
_SAMPLES = (4_000, 16_000)  # of a waveform, where no extractor says: a quarter of a second to one
_STEPS = (16, 128)  # of features, where the config does not fix them
_TWICE = 2  # Whisper's second convolution halves the time


def audio_inputs(config: object, parameters: Sequence[str], batch: Dim) -> dict[str, InputSpec]:
    """`input_values` and `input_features`, where the model takes them."""
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
    """Frames and mel bins, of models that take a picture of the sound."""
    length, bins = config_number(config, "max_length"), config_number(config, "num_mel_bins")
    if length is None or bins is None or config_value(config, "conv_stride") is not None:
        return ()
    return Dim.fixed(length), Dim.fixed(bins)


def _waveform_dims(config: object) -> tuple[Dim, ...]:
    """Samples, as many as the convolutions make a few frames of."""
    kernels, strides = config_numbers(config, "conv_kernel"), config_numbers(config, "conv_stride")
    low, high = _SAMPLES
    if kernels and len(kernels) == len(strides):
        low, high = (_samples_for_frames(frames, kernels, strides) for frames in _FRAMES)
    samples = Dim(name="samples", low=low, opt=default_opt(low, high), high=high)
    channels = config_number(config, "audio_channels")
    return (samples,) if channels is None else (Dim.fixed(channels), samples)


def _samples_for_frames(frames: int, kernels: Sequence[int], strides: Sequence[int]) -> int:
    """The least samples from which unpadded convolutions make so many frames."""
    count = frames
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        count = (count - 1) * stride + kernel
    return count


def _audio_feature_dims(config: object) -> tuple[Dim, ...]:
    """Whisper's mel bins by time, or time by features."""
    bins, positions = (
        config_number(config, "num_mel_bins"),
        config_number(config, "max_source_positions"),
    )
    per_channel = config_number(config, "input_feat_per_channel")
    low, high = _STEPS
    steps = Dim(name="frames", low=low, opt=default_opt(low, high), high=high)
    if per_channel is not None:
        return steps, Dim.fixed(per_channel * (config_number(config, "input_channels") or 1))
    wide = config_number(config, "feature_projection_input_dim")
    if wide is not None:
        return steps, Dim.fixed(wide)
    if bins is not None and positions is not None:
        return Dim.fixed(bins), Dim.fixed(_TWICE * positions)
    return ()
