"""Choose the transformers class of a folder, by its config or by a task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import (
    CheckpointError,
    ErrorCode,
    Hint,
    Option,
    UsageError,
    first_line,
    unknown_name_error,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# As in --model-arg task=fill-mask --model-arg length=512 --model-arg use_cache=true
ARGUMENT, LENGTH, USE_CACHE = "task", "length", "use_cache"
PREFILL, WITH_PAST = "text-generation-prefill", "text-generation-with-past"
MERGED = "text-generation-merged"  # prompt and step, as in optimum's decoder_model_merged.onnx
_MIN_LENGTH = 2  # tokens of a sequence
CACHED = (PREFILL, WITH_PAST, MERGED)  # tasks with keys and values among the outputs
# The parts of an encoder-decoder, after the names of whole ones: text2text-generation-encoder.
ENCODER_PART, MERGED_PART = "-encoder", "-merged"
_WHOLE = {
    "text2text-generation": "AutoModelForSeq2SeqLM",
    "automatic-speech-recognition": "AutoModelForSpeechSeq2Seq",
}
PARTS = {f"{base}{part}": (table,) for base, table in _WHOLE.items()
         for part in (ENCODER_PART, MERGED_PART)}  # fmt: skip
# Task names of the Hugging Face Hub with transformers' tables; the first table with the model is
# used.
TASKS: Mapping[str, tuple[str, ...]] = {
    "feature-extraction": ("AutoModel",),
    "fill-mask": ("AutoModelForMaskedLM",),
    "text-generation": ("AutoModelForCausalLM",),
    PREFILL: ("AutoModelForCausalLM",),
    WITH_PAST: ("AutoModelForCausalLM",),
    MERGED: ("AutoModelForCausalLM",),
    "text2text-generation": ("AutoModelForSeq2SeqLM",),
    **PARTS,
    "text-classification": ("AutoModelForSequenceClassification",),
    "token-classification": ("AutoModelForTokenClassification",),
    "question-answering": ("AutoModelForQuestionAnswering",),
    "table-question-answering": ("AutoModelForTableQuestionAnswering",),
    "visual-question-answering": ("AutoModelForVisualQuestionAnswering",),
    "document-question-answering": ("AutoModelForDocumentQuestionAnswering",),
    "multiple-choice": ("AutoModelForMultipleChoice",),
    "next-sentence-prediction": ("AutoModelForNextSentencePrediction",),
    "image-classification": ("AutoModelForImageClassification",),
    "image-segmentation": (
        "AutoModelForUniversalSegmentation",
        "AutoModelForInstanceSegmentation",
        "AutoModelForImageSegmentation",
        "AutoModelForSemanticSegmentation",
    ),
    "semantic-segmentation": ("AutoModelForSemanticSegmentation",),
    "object-detection": ("AutoModelForObjectDetection",),
    "depth-estimation": ("AutoModelForDepthEstimation",),
    "keypoint-detection": ("AutoModelForKeypointDetection",),
    "mask-generation": ("AutoModelForMaskGeneration",),
    "masked-im": ("AutoModelForMaskedImageModeling",),
    "image-to-image": ("AutoModelForImageToImage",),
    "image-to-text": ("AutoModelForImageTextToText",),
    "image-text-to-text": ("AutoModelForImageTextToText",),
    "video-classification": ("AutoModelForVideoClassification",),
    "zero-shot-image-classification": ("AutoModelForZeroShotImageClassification",),
    "zero-shot-object-detection": ("AutoModelForZeroShotObjectDetection",),
    "audio-classification": ("AutoModelForAudioClassification",),
    "audio-frame-classification": ("AutoModelForAudioFrameClassification",),
    "audio-xvector": ("AutoModelForAudioXVector",),
    "automatic-speech-recognition": ("AutoModelForSpeechSeq2Seq", "AutoModelForCTC"),
    "text-to-audio": ("AutoModelForTextToSpectrogram", "AutoModelForTextToWaveform"),
    "time-series-forecasting": ("AutoModelForTimeSeriesPrediction",),
}


def task_of(arguments: Mapping[str, str]) -> str | None:
    """Return the task in the arguments of a folder, if any.

    It may be optimum's name for a part of an encoder-decoder, which `find_class` rejects.

    Raises:
        UsageError: the task is unknown, or an argument has no effect.
    """
    for name in arguments:
        if name not in (ARGUMENT, LENGTH, USE_CACHE):
            raise UsageError(
                f"--model-arg {name} has no effect: a Hugging Face folder takes {ARGUMENT}, "
                f"{LENGTH} and {USE_CACHE}",
                hint=Hint("use ", Option("model-arg", "task=NAME"), ", or change config.json"),
                option="model-arg",
                code=ErrorCode.NO_EFFECT,
            )
    task = arguments.get(ARGUMENT)
    base = (task or "").removesuffix("-with-past").removesuffix("-prefill")
    if task is not None and task not in TASKS and base not in _WHOLE:
        raise unknown_name_error("task", task, list(TASKS))
    return task


def length_of(arguments: Mapping[str, str]) -> int | None:
    """Return the requested maximum of tokens, if any.

    Raises:
        UsageError: it is not a valid number.
    """
    text = arguments.get(LENGTH)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < _MIN_LENGTH:
        raise UsageError(
            f"--model-arg {LENGTH} must be a number of tokens, not {text}",
            hint=Hint(f"use {_MIN_LENGTH} or more, such as ", Option("model-arg", f"{LENGTH}=512")),
            option="model-arg",
        )
    return int(text)


def keeps_cache(arguments: Mapping[str, str]) -> bool:
    """Whether the model's cache is an output, if config.json enables it.

    Raises:
        UsageError: the argument is neither true nor false.
    """
    text = arguments.get(USE_CACHE, "false").lower()
    if text not in ("true", "false"):
        raise UsageError(
            f"--model-arg {USE_CACHE} must be true or false, not {text}",
            hint=Hint("use ", Option("model-arg", f"{USE_CACHE}=true")),
            option="model-arg",
        )
    return text == "true"


def find_class(
    folder: Path, config: Mapping[str, object], task: str | None
) -> tuple[type[PreTrainedModel], tuple[str, ...]]:
    """Return the class of the folder's model, and notes on its choice.

    Raises:
        CheckpointError: transformers has no such class, or cannot read the config.
        UsageError: the model has no such task.
    """
    if task is not None:
        return _class_by_task(folder, task), ()
    import transformers

    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        note = "config.json has no architecture: loaded without a head, as feature-extraction"
        return _class_by_task(folder, "feature-extraction"), (note,)
    found = getattr(transformers, str(names[0]), None)
    if found is None:
        raise CheckpointError(
            f"{folder} is a {names[0]}, which transformers {transformers.__version__} does not "
            "have",
            hint=Hint(
                "add ",
                Option("model", "PKG.MOD:FACTORY"),
                "; code in a checkpoint is never run",
            ),
            option="model",
        )
    chosen: type[PreTrainedModel] = found
    return chosen, ()


def _class_by_task(folder: Path, task: str) -> type[PreTrainedModel]:
    config = _load_config(folder)
    found = _first_class(TASKS.get(task, ()), config)
    both = bool(getattr(config, "is_encoder_decoder", False))
    if found is None or (both and task in CACHED):
        raise _no_task_error(task, config)
    return found


def _no_task_error(task: str, config: Any) -> UsageError:
    """Return the error for a task that the model does not have; it names the one to use."""
    others = [name for name, tables in TASKS.items() if _first_class(tables, config) is not None]
    hint = Hint(f"choose from: {', '.join(others)}" if others else "name a factory with --model")
    if task in CACHED or task in PARTS or task not in TASKS:
        base, decoder = base_of(config), _first_class(TASKS[MERGED], config)
        if base:
            encoder, merged = (
                Option("model-arg", f"task={base}{part}") for part in (ENCODER_PART, MERGED_PART)
            )
            hint = Hint("an encoder-decoder has two parts: ", encoder, " and ", merged)
        elif decoder and decoder.__name__ in (config.architectures or ()):
            hint = Hint("use ", Option("model-arg", f"task={MERGED}"))
    return UsageError(f"a {config.model_type} model has no task {task!r}", hint=hint)


def base_of(config: Any) -> str:
    """Return the task for a whole encoder-decoder; empty for other models."""
    if not getattr(config, "is_encoder_decoder", False):
        return ""
    return next((base for base, table in _WHOLE.items() if _first_class((table,), config)), "")


def note_cache_tasks(config: Any) -> str:
    """Return the note of a model exported without its cache: the tasks that keep it."""
    base = base_of(config)
    tasks = [f"{base}{part}" for part in (ENCODER_PART, MERGED_PART)] if base else [MERGED]
    asked = " and ".join(f"--model-arg {ARGUMENT}={task}" for task in tasks)
    return (
        f"use_cache is disabled. To generate with a cache, export with {asked}; "
        f"--model-arg {USE_CACHE}=true only adds the cache to the outputs"
    )


def _load_config(folder: Path) -> Any:
    """Load the config as transformers' class for the model type."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise CheckpointError(
            f"transformers cannot load {folder}: {first_line(error)}",
            hint="try transformers' AutoConfig.from_pretrained in Python",
        ) from error


def _first_class(tables: tuple[str, ...], config: Any) -> type[PreTrainedModel] | None:
    import transformers

    for name in tables:
        auto = getattr(transformers, name, None)
        mapping = getattr(auto, "_model_mapping", {})
        if type(config) in mapping:
            found: Any = mapping[type(config)]
            chosen: type[PreTrainedModel] = found[0] if isinstance(found, tuple) else found
            return chosen
    return None
