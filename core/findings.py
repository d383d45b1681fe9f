"""Records of what validation found: feeds, branches, worst feeds, layers, accuracy."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

SIZED = ("shape", "batch", "seed")  # kinds of feeds with usual values, drawn for their sizes


class SkippedCheck(StrEnum):
    """A check that needs the source, skipped where an artifact is judged by stored references."""

    SECOND_LOOK = "second-look"
    FLOAT64 = "float64"
    SWEEP = "sweep"
    SEARCH = "search"
    VALUE_RANGES = "value-ranges"
    WEIGHTS = "weights"
    SENSITIVITY = "sensitivity"
    ACCURACY = "accuracy"
    DIAGNOSIS = "diagnosis"
    FEEDS = "feeds"
    TOKENS = "tokens"


@dataclass(frozen=True, kw_only=True)
class FeedRecord:
    """One feed that artifacts were judged on, or the reason why it is missing.

    `kind` is its purpose: sample, shape (sizes of dynamic dims), value (extreme values), wide (edge
    values of integers), nonfinite (NaN and Inf), mask (one that many attentions leave undefined),
    batch (rows that must not mix), seed (drawn at random), vary (one input redrawn), held-out or
    search. `skipped` is eager's reason for rejecting it; such a feed judges nothing. `beyond` means
    that its values lie outside what the signature or the samples declare.
    """

    name: str
    kind: str
    sizes: dict[str, int] = field(default_factory=dict)
    skipped: str = ""
    beyond: bool = False

    @property
    def gap(self) -> bool:
        """Whether nothing judges its stated sizes with usual values."""
        return bool(self.skipped) and self.kind in SIZED


@dataclass(frozen=True, kw_only=True)
class BranchRecord:
    """A Python branch of the user's forward code, and the outcomes that eager took.

    `kind` is if (including conditional expressions), while, for, or value: a statement that keeps a
    Python value made of tensor data. `condition` is its source text. `arms` has the first feed of
    each outcome: `true` and `false`; for a loop, `true` is an iteration; a value has none. `same`
    means that every feed took the outcomes of the captured feed: as often, with the same values.
    `data` means that the condition depends on tensor data. `accepted` means that the user named it
    in `--accept-branch`. `file` is as short as is unambiguous.
    """

    file: str
    line: int
    condition: str
    module: str = ""
    arms: dict[str, str] = field(default_factory=dict)
    data: bool = False
    accepted: bool = False
    kind: str = "if"
    same: bool = False

    @property
    def place(self) -> str:
        """`gate.py:23`."""
        return f"{self.file}:{self.line}"

    @property
    def untaken(self) -> tuple[str, ...]:
        """The outcomes that no feed took."""
        if self.kind == "value":
            return ()
        return tuple(arm for arm in ("true", "false") if arm not in self.arms)

    @property
    def gap_text(self) -> str:
        """Describe what no feed showed; empty if the feeds took both outcomes."""
        if self.untaken:
            return f"no feed took the {' or the '.join(self.untaken)} branch"
        if not self.same:
            return ""
        same = "gave another value" if self.kind == "value" else "took another branch"
        return f"no feed {same}"

    @property
    def label(self) -> str:
        """`gate.py:23: if x.mean() > 0`."""
        text = self.condition if self.kind == "value" else f"{self.kind} {self.condition}"
        return f"{self.place}: {text}"


@dataclass(frozen=True, kw_only=True)
class Warned:
    """A framework's warning during capture, at the user's file and line."""

    file: str
    line: int
    text: str
    kind: str = "TracerWarning"

    @property
    def converts(self) -> bool:
        """Whether it is about a tensor that became a Python value: a branch, a value or a size."""
        return self.text.startswith("Converting a tensor to")


class FaultOutcome(StrEnum):
    """The outcome of a planted fault; `equivalent` ones change no output beyond the limits."""

    FOUND = "found"
    MISSED = "missed"
    EQUIVALENT = "equivalent"


@dataclass(frozen=True, kw_only=True)
class FaultRecord:
    """A fault planted in a copy of an artifact.

    `kind` is weight, swap, attribute, epsilon or size; `place` names the altered tensor, node or
    output, `change` describes the change, `where` the sizes. `error` is the largest relative L2
    distance of the copy's outputs from the artifact's, over the tried feeds: None if the copy was
    rejected before all feeds ran, or its outputs cannot be subtracted.
    """

    kind: str
    place: str
    change: str
    outcome: FaultOutcome
    error: float | None = None
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """How many faults, planted in copies of an artifact, the same feeds and limits detect.

    `planted` counts the faults that change an output within the domain beyond the limits, `found`
    those whose copy was rejected. `equivalent` counts the others, outside `planted`. `seed` is the
    seed of the draw.
    """

    planted: int
    found: int
    equivalent: int
    seed: int
    faults: tuple[FaultRecord, ...] = ()

    @property
    def faults_missed(self) -> tuple[FaultRecord, ...]:
        """The faults that the feeds and limits miss."""
        return tuple(one for one in self.faults if one.outcome is FaultOutcome.MISSED)


@dataclass(frozen=True, kw_only=True)
class WorstFeed:
    """The feed on which an artifact came nearest to its limits, or exceeded them most.

    `file` is relative to the manifest's folder and holds the feed's arrays by input; `replay` is
    the command that judges the artifact on it alone. `searched` is how many feeds a search tried (0
    without one) from `seed` in `seconds`; `before` is the margin of the worst feed before it.
    `headroom` is the margin in dB: negative beyond a limit.
    """

    feed: str
    output: str
    headroom: float | None
    file: str
    replay: str
    searched: int = 0
    seed: int = 0
    seconds: float = 0.0
    before: float | None = None


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A module compared with the artifact's tensor of the same scope.

    `local` is the SQNR in dB of the module's part of the artifact on eager's inputs, `accumulated`
    that of the artifact as it runs, `before` the accumulated SQNR of its inputs; None means no
    error at all. `file` and `line` are the module's call in the user's code, `node` and `operator`
    the artifact's.
    """

    module: str
    kind: str  # the module's class
    file: str
    line: int
    node: str
    operator: str
    local: float | None = None
    accumulated: float | None = None
    before: float | None = None
    cause: str = ""


@dataclass(frozen=True, kw_only=True)
class Localisation:
    """The result of `modelc debug`: the faulty layer, the others by rank, the growth of the error.

    `guilty` is a module path, empty if no layer is wrong by itself. `layers` are ranked, the worst
    first. `curve` is (module, accumulated SQNR in dB) in execution order. `runs` counts runs of the
    artifact's runtime, `memory` is the peak in bytes. `passed` is the recorded verdict on the
    unchanged file, None without one: an artifact that passed has no guilty layer, and `deviating`
    is a layer with more error than its precision explains, the first of `layers`. `whole` is what
    is wrong if every layer alone agrees with eager and the artifact does not: empty if a layer is
    guilty, or nothing is wrong. `named_by` says how operators were matched with modules: by the
    exporter's `scopes`; without those, by the names of `weights`, or by `values` alone.
    """

    artifact: str
    feed: str
    guilty: str
    cause: str
    layers: tuple[Layer, ...]
    curve: tuple[tuple[str, float | None], ...]
    runs: int
    seconds: float
    memory: int
    reproducer: str = ""  # a folder, relative to the manifest's
    notes: tuple[str, ...] = ()
    passed: bool | None = None
    deviating: str = ""
    whole: str = ""
    named_by: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answers of eager and the artifact on one labelled sample, as class names."""

    sample: str
    label: str
    eager: str
    artifact: str


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """A metric on labelled data, eager beside artifact.

    `drop` is the artifact's loss, positive for worse in any metric; `low` and `high` are its
    interval at `confidence`. All three are shares of eager's value if `relative`, else in the
    metric's own unit: for `top1` a share, 0.01 is one percentage point. `disagreeing` are names of
    samples with different answers, the first hundred, `answers` those answers. `max_drop` is the
    gate, or None. `digest` is the SHA-256 over the samples as fed, with their labels.
    """

    metric: str
    higher_is_better: bool
    samples: int
    eager: float
    artifact: float
    drop: float
    low: float
    high: float
    confidence: float
    method: str  # the method of the interval
    disagreements: int = 0
    disagreeing: tuple[str, ...] = ()
    max_drop: float | None = None
    data: str = ""
    relative: bool = False
    output: str = ""  # that the metric reads
    answers: tuple[Answer, ...] = ()
    digest: str = ""
    preprocess: str = ""  # of images

    @property
    def passed(self) -> bool:
        """Whether the drop is within the gate, if any."""
        return self.max_drop is None or self.drop <= self.max_drop


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """A point of accuracy-aware INT8: the layers kept in floating point, and the result.

    `sqnr` is in dB, the worst of the held-out samples; `drop` of the metric, if requested;
    `latency` in milliseconds beside `parent`'s, if measurable. `share` is the part of the work, 0
    to 1, that stays in 8 bits; `error` is why there is no result.
    """

    kept: tuple[str, ...]
    passed: bool
    sqnr: float | None = None
    drop: float | None = None
    latency: float | None = None
    parent: float | None = None
    seconds: float = 0.0
    chosen: bool = False
    share: float | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """An output's values on one feed: counts of eager's and the artifact's between `edges`."""

    output: str
    feed: str
    edges: tuple[float, ...]
    eager: tuple[int, ...]
    artifact: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PipelineDrift:
    """How far an output of eager is from the user's Python pipeline, on the feed nearest its limit.

    `sqnr` and `allowed`, its limit, are in dB; None if both are equal or there is no signal. Over
    all feeds, `differing` of `compared` best classes differ, or of all values if these are whole
    numbers (`is_whole`).
    """

    output: str
    feed: str
    max_abs: float | None
    sqnr: float | None
    allowed: float | None
    is_whole: bool = False
    compared: int = 0
    differing: int = 0


@dataclass(frozen=True, kw_only=True)
class PipelineComparison:
    """A Python pipeline that agrees with eager: `package.module:function`, and its file's digest.

    `drifts` has an entry for each output, over `feeds` feeds.
    """

    function: str
    sha256: str
    feeds: int
    drifts: tuple[PipelineDrift, ...]


@dataclass(frozen=True, kw_only=True)
class ReferenceRuntime:
    """A reference that is not eager: a model file, and the runtime that ran it with its version."""

    file: str
    runtime: str

    def __str__(self) -> str:
        return f"{self.file} in {self.runtime}, not eager"


@dataclass(frozen=True, kw_only=True)
class StoredComparison:
    """The references that a prepared step was finished with.

    `created` is the time of the manifest; `modelc` and `torch` are those of the run that stored
    them. With `source`, eager ran on this host too; `differing` are then the feeds on which its
    outputs and the stored ones are farther apart than FP32 allows. Without it, the stored outputs
    took eager's place, and `skipped` are the checks that did not run.
    """

    created: str
    modelc: str
    torch: str
    feeds: int
    source: bool = False
    differing: tuple[str, ...] = ()
    skipped: tuple[SkippedCheck, ...] = ()
