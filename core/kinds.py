"""Closed sets of names: precisions of artifacts, capture strategies, reasons of verdicts."""

from __future__ import annotations

from enum import StrEnum


class Precision(StrEnum):
    """The precision of an artifact's weights and computation.

    INT8 means 8-bit integer weights and activations with static scales; layers kept out of it
    compute in FP32.
    """

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"


class Capture(StrEnum):
    """How the eager model became a graph; `capture/` documents when each is sound."""

    EXPORT = "export"  # torch.export: sound or rejected, no data-dependent branches
    EXPORT_STRICT = "export-strict"  # torch.export from bytecode, by torch._dynamo
    SCRIPT = "script"  # torch.jit.script: compiled from source, keeps branches and loops
    MIXED = "mixed"  # submodules with data-dependent branches scripted, the rest traced
    TRACE = "trace"  # torch.jit.trace: one run recorded, branches frozen


TRACES = (Capture.TRACE, Capture.MIXED)  # at least a part of the model is traced


class ReasonCode(StrEnum):
    """The rule behind a reason; programs compare these, people read the text."""

    NOT_RUN = "not-run"
    NOT_MEASURED = "not-measured"
    CHANGED_FILE = "changed-file"
    FEED_REFUSED = "feed-refused"
    OUTPUT_NAMES = "output-names"
    INPUT_IGNORED = "input-ignored"
    OUTPUT_CONSTANT = "output-constant"
    OUTPUT_DIFFERS = "output-differs"
    CHANNEL_DIFFERS = "channel-differs"
    GROUP_DIFFERS = "group-differs"
    ROWS_DISAGREE = "rows-disagree"
    EQUAL_ROWS_DIFFER = "equal-rows-differ"
    BESIDE_MASK = "beside-mask"
    WIDE_VALUES = "wide-values"
    WEIGHT_ALTERED = "weight-altered"
    DEFAULT_SESSION = "default-session"
    BRANCH_UNCOVERED = "branch-uncovered"
    BRANCH_FROZEN = "branch-frozen"
    OUTSIDE_TORCH = "outside-torch"
    ACCURACY = "accuracy"
    BUDGET = "budget"
