"""Closed sets of names: precisions of artifacts, captures, codes of errors and of reasons."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Precision(StrEnum):
    """The precision of an artifact's weights and computation.

    INT8 and FP8 (E4M3) mean 8-bit weights and activations with static scales. INT8_WEIGHTS and INT4
    mean 8-bit and 4-bit integer weights in blocks, and activations in floating point, which
    INT8_DYNAMIC rounds to 8 bits at run time. Other layers compute in FP32, or in `--rest`.
    """

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT8_WEIGHTS = "int8-weights"
    INT8_DYNAMIC = "int8-dynamic"
    FP8 = "fp8"
    INT4 = "int4"


WEIGHTS_ONLY = frozenset({Precision.INT8_WEIGHTS, Precision.INT4})  # activations are floats
INTEGER_WEIGHTS = WEIGHTS_ONLY | {Precision.INT8_DYNAMIC}  # activations have no fixed scale
QUANTIZED = frozenset({Precision.INT8, Precision.FP8, *INTEGER_WEIGHTS})  # by a quantizer


class Capture(StrEnum):
    """How the eager model became a graph; `capture/` documents when each is sound."""

    EXPORT = "export"  # torch.export: sound or rejected, no data-dependent branches
    EXPORT_STRICT = "export-strict"  # torch.export from bytecode, by torch._dynamo
    SCRIPT = "script"  # torch.jit.script: compiled from source, keeps branches and loops
    MIXED = "mixed"  # submodules with data-dependent branches scripted, the rest traced
    TRACE = "trace"  # torch.jit.trace: one run recorded, branches frozen


TRACES = (Capture.TRACE, Capture.MIXED)  # at least a part of the model is traced


class _Code(StrEnum):
    """A code for programs, with the texts of docs/errors.md."""

    meaning: str
    remedy: str

    def __new__(cls, value: str, meaning: str, remedy: str) -> Self:
        """Make a member of its value, what it means, and what to do."""
        member = str.__new__(cls, value)
        member._value_, member.meaning, member.remedy = value, meaning, remedy
        return member


# fmt: off


class ErrorCode(_Code):
    """The code of an error; people read the message."""

    # What was asked for.
    NO_EFFECT = "no-effect", "an option has no effect here", "leave it out"
    UNKNOWN_NAME = (
        "unknown-name", "no target, model, branch, output or option has this name",
        "the hint has the nearest name, or all of them",
    )
    INVALID_VALUE = (
        "invalid-value", "a value is out of its range, or cannot be parsed",
        "the message has the position or the range",
    )
    UNSUPPORTED = (
        "unsupported", "this precision, capture, device, format, task or method is not supported",
        "choose one that the message names",
    )
    NOTHING_TO_DO = "nothing-to-do", "no model or step is selected", "select at least one"
    NOT_CALLABLE = (
        "not-callable", "an object that must be called is not callable",
        "name a function or a class: `PKG.MOD:NAME`",
    )
    CONSENT_REQUIRED = (
        "consent-required", "opening the file runs code of its author",
        "if you trust the author, `--allow-pickle` for a checkpoint, `--trust` for an artifact",
    )
    CONFLICTING_RANGES = "conflicting-ranges", "a dim has two ranges", "give its range once"
    DUPLICATE_INPUT = "duplicate-input", "an input is given twice", "name each input once"
    MISSING_DIMS = (
        "missing-dims", "an input has no dims",
        "`--input NAME:DTYPE[DIM,...]`, or a sample with `--samples`",
    )
    MISSING_DTYPE = (
        "missing-dtype", "an input has no dtype",
        "`--input NAME:DTYPE[DIM,...]`, or a sample with `--samples`",
    )
    SAMPLE_MISMATCH = (
        "sample-mismatch", "names, dtypes or sizes of a sample do not fit the inputs",
        "change the sample or `--input`",
    )
    UNKNOWN_INPUT = (
        "unknown-input", "neither the samples nor the checkpoint have this input",
        "use the names in the message",
    )
    # The checkpoint and the eager model.
    CORRUPT_FILE = (
        "corrupt-file", "a file is truncated, damaged, or not readable in its format",
        "copy, download or save it again",
    )
    NOT_A_CHECKPOINT = (
        "not-a-checkpoint", "the path is no checkpoint of a known format",
        "[Checkpoints](checkpoints.md) lists the formats",
    )
    FACTORY_REQUIRED = (
        "factory-required", "the checkpoint has weights but no code",
        "`--model PKG.MOD:NAME`, which builds the module",
    )
    STEPS_DIFFER = (
        "steps-differ", "steps inside the model compute something else than what is declared",
        "preprocess or postprocess outside of the model",
    )
    PIPELINE_DIFFERS = (
        "pipeline-differs", "the user's Python pipeline and the model give other outputs",
        "declare its steps, or correct it: [Against your pipeline](metadata.md)",
    )
    COMPOSE_FAILED = (
        "compose-failed", "the function that composes the parts raises, or returns no arrays",
        "correct it: [Models of several parts](parts.md)",
    )
    MISFIT_WEIGHTS = (
        "misfit-weights", "the weights do not fit the module",
        "build the module as it was trained (`--model-arg`), or load the rest with `--no-strict`",
    )
    AMBIGUOUS_WEIGHTS = (
        "ambiguous-weights", "several sets of weights in the file fit",
        "choose one: `--weights-key`",
    )
    INPUTS_UNKNOWN = (
        "inputs-unknown", "neither options nor the checkpoint describe the inputs",
        "`--input`, or a sample with `--samples`",
    )
    FEED_REJECTED = (
        "feed-rejected", "the eager model raised on a feed",
        "narrow the sizes or values in `--input`, or state how dims depend on each other",
    )
    UNSTABLE_OUTPUTS = (
        "unstable-outputs", "the eager model gives different values for one feed",
        "make `forward` deterministic in eval mode",
    )
    NONFINITE_OUTPUTS = (
        "nonfinite-outputs", "eager gives NaN or Inf on all feeds",
        "use an intact checkpoint, or state the range of the inputs",
    )
    NO_TENSOR = (
        "no-tensor", "the model returns no tensor",
        "return a tensor, or a tuple, dict or dataclass of tensors",
    )
    STEP_LIMIT = "step-limit", "the eager model does not end", "bound the loops of `forward`"
    HUB_ACCESS = (
        "hub-access", "the Hugging Face Hub does not give access to the repository",
        "log in (`hf auth login`), and accept its conditions on its page",
    )
    HUB_UNREACHABLE = (
        "hub-unreachable", "the Hugging Face Hub did not answer, or a download broke off",
        "run again with a network, or use a revision that is in the cache",
    )
    # Samples and labels.
    NO_SAMPLES = "no-samples", "no samples were found", "give a folder, archive or loader with some"
    SAMPLES_CHANGED = (
        "samples-changed", "samples changed while they were in use",
        "use files that nothing writes to, or a loader with a fixed seed",
    )
    SAMPLES_UNFIT = (
        "samples-unfit", "the samples cannot calibrate this model",
        "`modelc calibrate` lists all findings",
    )
    LOADER_FAILED = (
        "loader-failed", "the data loader raised, or cannot be iterated over",
        "iterate over it in Python to see the whole error",
    )
    NO_LABEL = "no-label", "a sample has no label", "[Accuracy](accuracy.md) says where labels go"
    BAD_LABEL = (
        "bad-label", "a label is not a number, or there is not one per sample",
        "store one class number per sample",
    )
    SEVERAL_LABELS = "several-labels", "a sample has several labels", "keep one"
    UNKNOWN_CLASS = (
        "unknown-class", "a label is not among the classes", "correct it, or add it to classes.txt",
    )
    CLASS_ORDER = (
        "class-order", "the order of the class folders is ambiguous",
        "write classes.txt, one folder per line in the order of the outputs",
    )
    LABELS_MISMATCH = (
        "labels-mismatch", "the labels do not fit the model's output",
        "name the right output (`--metric-output`), or all classes in classes.txt",
    )
    METRIC_UNDEFINED = (
        "metric-undefined", "the metric is not defined on these answers",
        "use labels that are not eager's own answers, or a metric without `relative`",
    )
    # Parts of a run.
    SHARD_MISSING = (
        "shard-missing", "a part of the run has no record",
        "run it: `modelc run --shard I/N` with the number that the message names",
    )
    SHARD_DUPLICATE = (
        "shard-duplicate", "two records are of the same part", "leave one of them out",
    )
    SHARD_MISMATCH = (
        "shard-mismatch", "the parts are not of one run: another project, split, name or version",
        "run all parts with the same project, N and `--run-id`",
    )
    # Files and folders.
    NOT_FOUND = "not-found", "a path, name or class does not exist", "correct the path or name"
    FILE_EXISTS = (
        "file-exists", "modelc did not write the file and does not replace it",
        "move it away, or use another name",
    )
    FILE_CHANGED = (
        "file-changed", "a file differs from its record, or changed while it was read",
        "restore it, or export again",
    )
    SAME_FILE = "same-file", "two paths are one file or folder", "give different ones"
    UNSAFE_PATH = (
        "unsafe-path", "a path is a link, or leads out of its folder",
        "use a path inside of the folder that is not a link",
    )
    NOT_AN_ARTIFACT = (
        "not-an-artifact", "the path is no artifact of a known format",
        "give a model file; [Targets](targets.md) lists the formats",
    )
    NO_MANIFEST = "no-manifest", "the folder has no manifest", "give an output folder of modelc"
    INVALID_MANIFEST = (
        "invalid-manifest", "the manifest is damaged, or of a newer version",
        "export again, or install the version that wrote it",
    )
    FOLDER_BUSY = (
        "folder-busy", "another process writes to the folder", "wait for it, or use another folder",
    )
    FOLDER_OCCUPIED = (
        "folder-occupied", "the folder holds results of another model",
        "use another folder, or `--overwrite`",
    )
    NOT_WRITABLE = (
        "not-writable", "the folder cannot be written to", "use another folder, or change its mode",
    )
    NOT_SIGNED = (
        "not-signed", "a folder has no signature of the given key",
        "give the key that signed it, or sign it: `modelc validate DIR --sign-key KEY`",
    )
    # A runtime.
    INPUT_REJECTED = (
        "input-rejected", "a runtime rejects the shape or dtype of a feed",
        "use the shapes and dtypes in the message",
    )
    OUT_OF_MEMORY = (
        "out-of-memory", "the device has too little memory to run the model",
        "free its memory, or give smaller sizes with `--input`",
    )
    RUNTIME_FAILED = (
        "runtime-failed", "a call of a runtime's API fails",
        "`--debug` shows its traceback",
    )
    SERVER_UNREACHABLE = (
        "server-unreachable", "a server does not answer, or not in time",
        "start it, check the address, or allow more time: `--request-timeout`",
    )
    SERVER_REJECTED = (
        "server-rejected", "a server rejects a request, a model or the credentials",
        "use the names in the message; `--header` sends credentials",
    )
    SERVER_REPLY = (
        "server-reply", "a server's reply is not of the V2 protocol, or too large",
        "check the address and the server",
    )
    # This machine.
    NOT_INSTALLED = (
        "not-installed", "a package, program or driver is missing", "run the command of the hint",
    )
    NO_DEVICE = (
        "no-device", "the device is not available", "use `--device cpu`, or another machine",
    )


class ReasonCode(_Code):
    """The rule behind a reason of a verdict; people read the text."""

    NOT_RUN = (
        "not-run", "the artifact could not be opened or run", "the reason has the runtime's error",
    )
    NOT_MEASURED = (
        "not-measured", "no value was compared: all outputs are empty, or rounding decides them",
        "give `--samples` on which the outputs are not empty, or decisions are clear",
    )
    CHANGED_FILE = (
        "changed-file", "a file of the artifact differs from its record",
        "restore it, or export again",
    )
    PART_DIFFERS = (
        "part-differs", "a part of the model is wrong: with eager in its place, the whole is right",
        "export that part again: [Models of several parts](parts.md)",
    )
    PART_STALE = (
        "part-stale", "the folder of a part holds another part, or one of another checkpoint",
        "export the parts again, together",
    )
    FEED_REFUSED = (
        "feed-refused", "the artifact raised on a feed that eager accepts",
        "narrow the dim in `--input`, or try another `--capture`",
    )
    DECLARED_FORM = (
        "declared-form", "a server declares other inputs or outputs than the artifact has",
        "correct the model's configuration on the server, or name the artifact: `--artifact`",
    )
    DECLARED_DOMAIN = (
        "declared-domain", "a server accepts a part of the artifact's sizes only",
        "raise the server's limit, as `max_batch_size`, or narrow the dim in `--input`",
    )
    CONCURRENT_REQUESTS = (
        "concurrent-requests", "requests at the same time give other outputs than one at a time",
        "disable dynamic batching of the model on the server",
    )
    OUTPUT_NAMES = (
        "output-names", "outputs are missing, extra or reordered", "try another `--capture`",
    )
    INPUT_IGNORED = (
        "input-ignored", "eager's outputs change with an input, the artifact's do not",
        "compute with the tensor, not with a Python value of it; try another `--capture`",
    )
    OUTPUT_CONSTANT = (
        "output-constant", "an output is the same on every feed, and eager's is not",
        "compute it from the inputs; try another `--capture`",
    )
    OUTPUT_DIFFERS = (
        "output-differs", "an output exceeds its limits on a feed, or has another form",
        "`modelc debug ARTIFACT` names the layer; [Validation](validation.md) has the limits",
    )
    CHANNEL_DIFFERS = (
        "channel-differs", "a channel is wrong at its own scale", "`modelc debug ARTIFACT`",
    )
    GROUP_DIFFERS = (
        "group-differs", "channels of an INT8 output are dead, or wrong at their own scale",
        "keep their layers in FP32: `--keep-fp`",
    )
    ROWS_DISAGREE = (
        "rows-disagree", "too few rows have their largest element where eager has it",
        "use a higher precision, or keep layers in FP32: `--keep-fp`")
    GENERATED_TOKENS = (
        "generated-tokens", "the loop of a runtime for generation gives other tokens",
        "compare its settings with `genai_config.json` and the settings of the verdict",
    )
    TOKENS_DIFFER = (
        "tokens-differ", "a decoder predicts other tokens than eager on text",
        "use a higher precision, smaller groups (`--group-size`), or keep layers: `--keep-fp`",
    )
    LOOP_DIFFERS = (
        "loop-differs", "a decoder's loop with a cache gives other tokens than a single pass",
        "look at masks, positions and the cache in the model; try another `--capture`",
    )
    EQUAL_ROWS_DIFFER = (
        "equal-rows-differ", "equal rows of a batch give different results",
        "export with a fixed batch: `--static`",
    )
    BESIDE_MASK = "beside-mask", "rows beside a fully masked one differ", "leave no row masked"
    WIDE_VALUES = (
        "wide-values", "integers of large magnitude give other results",
        "narrow the values of the input: `NAME:int64[...]{LOW..HIGH}`",
    )
    WEIGHT_ALTERED = (
        "weight-altered", "a constant is a weight of the checkpoint, but for some elements",
        "export again from this checkpoint",
    )
    GRAPH_DIFFERS = (
        "graph-differs", "it differs from eager with its own rounded weights", "`modelc debug FILE`"
    )
    DEFAULT_SESSION = (
        "default-session", "the artifact differs, or fails, in its runtime's default session",
        "open it with the settings in the reason",
    )
    BRANCH_UNCOVERED = (
        "branch-uncovered", "no feed took an outcome of a branch that a trace froze",
        "give samples that take it, or `--accept-branch FILE:LINE`",
    )
    BRANCH_FROZEN = (
        "branch-frozen", "the artifact always takes one outcome of a branch on data",
        "use `--capture script`, or `torch.where` or `torch.cond` in the model",
    )
    OUTSIDE_TORCH = (
        "outside-torch", "the model computes outside of torch, which a trace freezes",
        "use torch's operators, or replace the code in a copy: `--patch PKG.MOD:FN`",
    )
    ACCURACY = (
        "accuracy", "the metric drops by more than `--max-drop` on labelled data",
        "use a higher precision or more calibration samples, or keep layers: `--keep-fp`",
    )
    BUDGET = (
        "budget", "no choice of layers in floating point met the budget",
        "allow more trials (`--max-trials`), a larger drop, or use a higher precision",
    )
