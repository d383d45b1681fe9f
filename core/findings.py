"""The small records of what validation found: feeds, branches, worst feeds, layers, accuracy."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

SIZED = ("shape", "batch", "seed")  # kinds of feeds with usual values, drawn for their sizes


@dataclass(frozen=True, kw_only=True)
class FeedRecord:
    """One feed that artifacts were judged on, or why there is none.

    `kind` is what it is for: sample, shape (sizes of dynamic dims), value (hard values), wide
    (edge values of integers), nonfinite (NaN and Inf), mask (one that many attentions leave
    undefined), batch (rows that must not mix), seed (drawn at random), vary (one input redrawn),
    held-out or search.
    `skipped` is eager's own reason for rejecting it; such a feed judges nothing. `beyond` says that
    its values lie outside what the signature or the samples declare.
    """

    name: str
    kind: str
    sizes: dict[str, int] = field(default_factory=dict)
    skipped: str = ""
    beyond: bool = False

    @property
    def gap(self) -> bool:
        """Whether nothing is judged at its sizes with usual values, though they were stated."""
        return bool(self.skipped) and self.kind in SIZED


@dataclass(frozen=True, kw_only=True)
class BranchRecord:
    """A Python branch of the user's forward code, and which of its arms eager took.

    `kind` is if (conditional expressions as well), while, for, or value: a statement that keeps a
    Python value made of tensor data. `condition` is its source text. `arms` has the first feed that
    took each arm, by the arm: `true` and `false`; of a loop, `true` is a turn; a value has none.
    `same` says that every feed went the way of the feed that is captured: the same arms as often,
    the same values. `data` says that the condition depends on tensor data. `accepted` says that
    the user named it in `--accept-branch`. `file` is as short as it can be told.
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
        """The arms that no feed took."""
        if self.kind == "value":
            return ()
        return tuple(arm for arm in ("true", "false") if arm not in self.arms)

    @property
    def gap_text(self) -> str:
        """What no feed showed of it, in words; empty where the feeds went both ways."""
        if self.untaken:
            return f"no feed took the {' or the '.join(self.untaken)} arm"
        if not self.same:
            return ""
        same = "gave another value" if self.kind == "value" else "went another way"
        return f"no feed {same}"

    @property
    def label(self) -> str:
        """`gate.py:23: if x.mean() > 0`."""
        text = self.condition if self.kind == "value" else f"{self.kind} {self.condition}"
        return f"{self.place}: {text}"


@dataclass(frozen=True, kw_only=True)
class Warned:
    """A warning of a framework while it captured the model, at the user's file and line."""

    file: str
    line: int
    text: str
    kind: str = "TracerWarning"

    @property
    def converts(self) -> bool:
        """Whether it is of a tensor that became a Python value: a branch, a kept value, a size."""
        return self.text.startswith("Converting a tensor to")


class FaultOutcome(StrEnum):
    """What became of a planted fault; `equivalent` ones change no output beyond the limits."""

    FOUND = "found"
    MISSED = "missed"
    EQUIVALENT = "equivalent"


@dataclass(frozen=True, kw_only=True)
class FaultRecord:
    """A fault that was planted in a copy of an artifact.

    `kind` is weight, swap, attribute, epsilon or size; `place` names the tensor, the node or the
    output that was altered, `change` says how, and `where` for which sizes. `error` is how far the
    copy's outputs lie from the artifact's at most, in relative L2 over the feeds that were tried:
    None where a copy was found before all feeds were run, or gave outputs that cannot be
    subtracted.
    """

    kind: str
    place: str
    change: str
    outcome: FaultOutcome
    error: float | None = None
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """How many faults, planted in copies of an artifact, the same feeds and limits find.

    `planted` counts the faults that change some output within the domain beyond the limits, `found`
    those of them whose copy was rejected. `equivalent` counts the others, which are not part of
    `planted`. `seed` is the seed of the draw.
    """

    planted: int
    found: int
    equivalent: int
    seed: int
    faults: tuple[FaultRecord, ...] = ()

    @property
    def faults_missed(self) -> tuple[FaultRecord, ...]:
        """The faults that the feeds and limits do not see."""
        return tuple(one for one in self.faults if one.outcome is FaultOutcome.MISSED)


@dataclass(frozen=True, kw_only=True)
class WorstFeed:
    """The feed on which an artifact came nearest to its limits, or furthest beyond them.

    `file` is relative to the manifest's folder and holds the feed's arrays by input; `replay` is
    the command that judges the artifact on it alone. `searched` is how many feeds a search tried
    (0 without one) from `seed` in `seconds`; `before` is the headroom of the worst feed before it.
    `headroom` is in dB: negative is beyond a limit.
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
    """One module beside the artifact's tensor of the same scope.

    `local` is the SQNR in dB of the module's part of the artifact fed with eager's own inputs,
    `accumulated` that of the artifact as it runs, `before` the accumulated SQNR of its inputs; None
    stands for no error at all. `file` and `line` are where the module is called in the user's
    code, `node` and `operator` the artifact's.
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
    """What `modelc debug` found: the guilty layer, the others by rank, the growth of the error.

    `guilty` is a module path, empty where no layer is wrong by itself. `layers` are ranked, the
    worst first. `curve` is (module, accumulated SQNR in dB) in the order of execution. `runs`
    counts runs of the artifact's runtime, `memory` is the peak in bytes of what was held at once.
    `passed` is the recorded verdict on the unchanged file, None where there is none: of one that
    passed no layer is guilty, and `deviating` is one that is further off than its precision
    explains, the first of `layers`. `whole` is what is wrong where every layer alone agrees with
    eager and the artifact does not: empty where a layer is guilty, or nothing is wrong.
    `named_by` says how operators were matched with modules: by the exporter's `scopes`; where there
    are none by the names of `weights`, or by `values` alone.
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
    """What eager and the artifact answered on one labelled sample, by the classes' names."""

    sample: str
    label: str
    eager: str
    artifact: str


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """A metric on labelled data, eager beside artifact.

    `drop` is what the artifact loses, positive for worse whatever the metric's direction; `low`
    and `high` are its interval at `confidence`. All three are parts of eager's value where
    `relative`, else differences in the metric's own unit: of `top1` a share, 0.01 is one
    percentage point. `disagreeing` are names of samples on which the two answer otherwise, the
    first hundred, `answers` what they answered. `max_drop` is the gate; None where there is none.
    `digest` is the SHA-256 over the samples as they were fed, with their labels.
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
    method: str  # how the interval was found
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
        """Whether the drop is within the gate, if there is one."""
        return self.max_drop is None or self.drop <= self.max_drop


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """One point of accuracy-aware INT8: the layers kept in floating point and what that gives.

    `sqnr` is in dB, the worst of the held-out samples; `drop` of the metric, where one was asked
    for; `latency` in milliseconds beside `parent`'s, where it could be measured. `share` is the
    part of the work, 0 to 1, that stays in 8 bits; `error` is why there was nothing to judge.
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
