"""Encoder and decoder of a Whisper as one model of onnxruntime-genai."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.errors import ErrorCode, UsageError
from ..core.generation import PAST, PRESENT, DecoderLoop
from ..core.signature import Signature
from ..runtimes.generation_files import (
    FRAMES,
    GENERATION_CONFIG,
    ONNXRUNTIME_GENAI,
    WHISPER,
    GenerationSettings,
    make_whisper_config,
)
from .onnx_folder import join_members
from .repository_records import ServedModel

_FEATURES = "input_features"
_SUPPRESSED = ("suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids")
_OWN_LOOP = "run it with onnxruntime, in a loop of your own"
_TASKS = "automatic-speech-recognition-encoder and -merged"
_OWN_FEATURES = (
    "audio_processor_config.json is left out: the features that onnxruntime-genai 0.18 makes of a "
    "sound are up to 1.4 from those of transformers; give it input_features"
)


def is_speech_part(signature: Signature) -> bool:
    """Whether this is the encoder of sounds, or its decoder, with the cache between them."""
    return _is_encoder(signature) or _is_decoder(signature)


def _is_encoder(signature: Signature) -> bool:
    names = [spec.name for spec in signature.inputs]
    return names == [_FEATURES] and f"{PRESENT}.0.encoder.key" in signature.outputs


def _is_decoder(signature: Signature) -> bool:
    names = [spec.name for spec in signature.inputs]
    loop = DecoderLoop.find(names, signature.outputs)
    crossed = loop is not None and f"{PAST}.0.encoder.key" in loop.constant
    return loop is not None and crossed and loop.mask is None and not _takes_mask(loop)


def _takes_mask(loop: DecoderLoop) -> bool:
    """Whether the decoder takes the mask of the encoder, as that of a text does."""
    return any(not name.startswith(f"{PAST}.") for name in loop.constant)


def join_parts(models: Sequence[ServedModel]) -> Iterator[ServedModel]:
    """Yield the models, with the encoder of each Whisper as the twin of its decoder.

    Raises:
        UsageError: one of the two is missing, or takes another number of frames.
    """
    encoders = {_key(one): one for one in models if _is_encoder(one.signature)}
    for one in models:
        if _is_decoder(one.signature):
            encoder = encoders.pop(_key(one), None)
            if encoder is None:
                raise _lone_part_error(one, "encoder")
            _check_frames(encoder)
            yield join_members(one.name, {"decoder": one, "encoder": encoder})
        elif not _is_encoder(one.signature):
            yield one
    for one in encoders.values():
        raise _lone_part_error(one, "decoder")


def _key(model: ServedModel) -> tuple[str, str]:
    """Parts that belong together have the same checkpoint and the same format and precision."""
    return model.record.checkpoint, model.record.artifact


def _lone_part_error(model: ServedModel, part: str) -> UsageError:
    return UsageError(
        f"{model.name}: {ONNXRUNTIME_GENAI} runs it with its {part} of the same checkpoint, as "
        f"{model.record.artifact} too, which is not here",
        hint=f"give the output folders of both tasks: {_TASKS}",
        code=ErrorCode.NOTHING_TO_DO,
    )


def _check_frames(encoder: ServedModel) -> None:
    """Check that the features are of 30 seconds.

    Raises:
        UsageError: they are not.
    """
    dim = encoder.signature.inputs[0].dims[-1]
    if not dim.low <= FRAMES <= dim.high:
        raise UsageError(
            f"{encoder.name}: {ONNXRUNTIME_GENAI} gives {FRAMES} frames, {_FEATURES} takes {dim}",
            hint=_OWN_LOOP,
            code=ErrorCode.UNSUPPORTED,
        )


def make_speech_config(model: ServedModel, settings: GenerationSettings) -> dict[str, object]:
    """Return `genai_config.json` of a decoder with its encoder.

    Raises:
        UsageError: it is no Whisper.
    """
    if settings.kind != WHISPER:
        raise UsageError(
            f"{model.name}: of encoder-decoders, {ONNXRUNTIME_GENAI} runs {WHISPER} alone, not "
            f"{settings.kind}",
            hint=_OWN_LOOP,
            code=ErrorCode.UNSUPPORTED,
        )
    decoder, encoder = model.record.members
    return make_whisper_config(settings, model.signature, encoder, decoder)


def list_notes(settings: GenerationSettings) -> Iterator[str]:
    """Yield what the runtime does otherwise than transformers."""
    yield _OWN_FEATURES
    if settings.unused:
        yield (
            f"{ONNXRUNTIME_GENAI} ignores {' and '.join(settings.unused)} of {GENERATION_CONFIG}: "
            "its tokens can differ from those of generate"
        )
