"""The validators' findings on one artifact."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from .domain import Domain
from .findings import (
    Histogram,
    ReferenceRuntime,
    Sensitivity,
    StoredComparison,
    WorstFeed,
)
from .generation import TokenReport
from .kinds import ReasonCode

_FLOAT_PREFIXES = ("float", "complex", "bfloat")


class State(StrEnum):
    """`failed` was judged and is wrong; `error` could not be judged."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"


class Excuse(StrEnum):
    """Why an output passed although its SQNR is below the limit of its precision."""

    USUAL_SCALE = "usual scale"  # roundoff at the scale of other feeds
    ILL_CONDITIONED = "ill conditioned"  # eager moves as far
    EXPERTS = "experts"  # rounding alone, which sends tokens to other experts


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One thing that is wrong with an artifact.

    A `fault` is wrong at any tolerance; any other reason follows from measurements, and is decided
    again when the tolerance changes. `output` and `feed` are empty if it is not about one.
    """

    code: ReasonCode
    text: str
    fault: bool = False
    output: str = ""
    feed: str = ""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits that the user asked for in place of the default ones; None keeps the default."""

    atol: float | None = None
    rtol: float | None = None
    min_sqnr: float | None = None
    floor_factor: float | None = None
    min_cosine: float | None = None
    min_agreement: float | None = None
    max_kl: float | None = None
    max_ppl_increase: float | None = None

    @property
    def by_table(self) -> bool:
        """Whether a limit of the table was given, and none by the noise floor."""
        table = (self.atol, self.rtol, self.min_sqnr)
        return self.floor_factor is None and any(value is not None for value in table)


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The allowed difference of one output.

    With `floor_factor`, and if eager ran in float64, the artifact may be `floor_factor` times as
    far from float64 as eager is itself (see noise_floor.py). It may then be below `min_sqnr` only
    if eager moves as far under noise of 2^-24, and never be off by more than a hundredth of the
    peak. Otherwise passing requires `max_abs <= atol + rtol * peak`, where peak is the largest
    magnitude of the eager output, and `sqnr >= min_sqnr` in dB, both on one feed. If a feed's
    output is far below its usual scale, errors that are roundoff at that scale pass as well.
    `min_cosine` applies to each feed, `min_agreement` is the share of rows over all feeds, and of
    tokens of text, whose largest element is eager's or near it. `max_kl` is the mean KL divergence
    of tokens in nats, `max_ppl_increase` a share of eager's perplexity. `by_output` has other
    limits for single outputs.
    """

    atol: float
    rtol: float
    min_sqnr: float
    floor_factor: float | None = None
    min_cosine: float | None = None
    min_agreement: float | None = None
    max_kl: float | None = None
    max_ppl_increase: float | None = None
    by_output: dict[str, Limits] = field(default_factory=dict)

    def of(self, output: str) -> Tolerance:
        """Return the tolerance of one output."""
        special = self.by_output.get(output)
        return replace(self, by_output={}) if special is None else self.within(special)

    def within(self, limits: Limits) -> Tolerance:
        """Return this tolerance with other limits; one of the table alone disables the floor."""
        given = {key: value for key, value in vars(limits).items() if value is not None}
        if limits.by_table:
            given["floor_factor"] = None
        return replace(self, by_output={}, **given)


@dataclass(frozen=True, kw_only=True)
class FillMeasures:
    """Errors among fill values, such as the -1e4 of masked logits, at their own scale."""

    max_abs: float | None
    peak: float | None
    sqnr: float | None


@dataclass(frozen=True, kw_only=True)
class OutputVerdict:
    """One output on one feed, artifact beside eager.

    Errors are over elements finite in both; None means "not defined here" (an empty or non-numeric
    output) and, for `sqnr`, also "no error at all" (`exact` is then True). `relative_l2`, `cosine`
    and `sqnr` are over all of these; `sqnr` is in dB. All are of this feed alone. Fill (such as
    -1e4 in masked logits) is judged separately and excluded. Of a `loose` feed only form counts:
    shape, dtype, NaN/Inf. `headroom` is the margin in dB between the errors and the nearest limit;
    negative beyond it, None without a limit.

    A feed that is `apart`, such as those of wide integers, counts, but is excluded from the
    verdict's figures.

    `form` is wrong at any tolerance (a shape, a NaN, another integer), `clue` describes a wrong
    output. `times_floor` is how many times as far from float64 as eager the artifact is (see
    noise_floor.py), `floor` eager's own relative L2 distance from it: None if eager in float64 was
    not run on the feed or is another function, and eager replaces it; both are None without a
    float64 reference. `moved` is how far noise of 2^-24 in inputs and weights moves eager, in
    relative L2; None if not measured. `excuse` is why an SQNR below the limit passed.
    `top1_agreement` is the share of rows whose largest element is eager's or as large as that
    within four times the RMS error, `top5_agreement` the share of eager's five largest that are
    among the artifact's; `rows` counts the rows. `signal` and `noise` are mean squares of eager and
    of the error. Of integers and bools that differ from eager's, `undecided` counts those that
    errors of this precision decide in eager too, and `wrong` the others.
    """

    feed: str
    output: str
    passed: bool
    reason: str
    shape: tuple[int, ...]
    dtype: str
    exact: bool
    max_abs: float | None = None
    mean_abs: float | None = None
    max_rel: float | None = None
    relative_l2: float | None = None
    cosine: float | None = None
    sqnr: float | None = None
    argmax_agreement: float | None = None
    nonfinite_eager: int = 0
    nonfinite_artifact: int = 0
    peak: float | None = None
    loose: bool = False
    apart: bool = False
    headroom: float | None = None
    form: str = ""
    form_kind: str = ""  # missing | structure | values
    clue: str = ""
    floor: float | None = None
    times_floor: float | None = None
    top1_agreement: float | None = None
    top5_agreement: float | None = None
    rows: int = 0
    signal: float = 0.0
    noise: float = 0.0
    undecided: int = 0
    wrong: int = 0
    fill: FillMeasures | None = None
    moved: float | None = None
    excuse: Excuse | None = None

    @property
    def is_floating(self) -> bool:
        """Whether it holds floats, which limits are for; integers and bools must be equal."""
        return self.dtype.startswith(_FLOAT_PREFIXES)

    @property
    def is_excused(self) -> bool:
        """Whether it passed by another rule than a limit on its SQNR.

        This holds for ill-conditioned feeds, quiet ones and integers that roundoff decides: their
        SQNR is recorded but means nothing.
        """
        inexact = self.passed and not self.exact
        return inexact and (self.excuse is not None or not self.is_floating)


@dataclass(frozen=True, kw_only=True)
class ChannelVerdict:
    """The worst channel of one axis of an output, over all feeds that count.

    `sqnr` is in dB and None for a channel that is zero in eager; `times_floor` as in OutputVerdict,
    if float64 is known; `allowed` is the error that is roundoff in the channel.
    """

    output: str
    axis: int
    channel: int
    sqnr: float | None
    max_abs: float
    allowed: float
    more: int = 0  # other wrong channels of the axis
    times_floor: float | None = None


@dataclass(frozen=True, kw_only=True)
class DefaultRun:
    """An artifact's outputs under its runtime's defaults, if these compute in less precision.

    `state` is by the limits of the precision `compute`; `sqnr` is the smallest in dB, None if all
    is exact. `advice` is the line of code that opens the artifact as it was judged.
    """

    compute: str
    state: State
    sqnr: float | None
    max_abs: float | None
    advice: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class GroupVerdict:
    """Channels of equal scale on an axis of an INT8 artifact's output, over all feeds.

    `channels` are their ranges, first and last, `count` their number; `rms` is eager's, `sqnr` in
    dB at this scale, None without any error. `kind` means that the group has a limit of its own
    (see channel_metrics.py). `dead` are ranges of channels that vary in eager and are constant in
    the artifact.
    """

    output: str
    axis: int
    channels: tuple[tuple[int, int], ...]
    count: int
    kind: bool
    rms: float
    sqnr: float | None
    dead: tuple[tuple[int, int], ...] = ()
    dead_count: int = 0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether one artifact equals eager, on which feeds, within which tolerance, and why not.

    `reasons` say what is wrong, the most important first, and are empty if it passed; `reason` is
    their text in one line. `channels` are the worst ones, `groups` those of INT8.
    `restricted_values` are the least and the greatest value of inputs for whose chosen range it is
    right in a part only. `by_default` is the result under the runtime's defaults, if less precise.
    `domain` is for a file judged by itself. `sensitivity` is what feeds and limits would detect,
    `stored` the references of a prepared step, `host` what ran an engine, `reference` another file.
    `tokens` are a decoder's.
    """

    artifact: str
    state: State
    device: str
    tolerance: Tolerance
    feeds: tuple[str, ...]
    outputs: tuple[OutputVerdict, ...]
    reasons: tuple[Reason, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    histograms: tuple[Histogram, ...] = ()
    worst: WorstFeed | None = None
    channels: tuple[ChannelVerdict, ...] = ()
    restricted_values: dict[str, tuple[int, int]] = field(default_factory=dict)
    by_default: DefaultRun | None = None
    domain: Domain | None = None
    groups: tuple[GroupVerdict, ...] = ()
    sensitivity: Sensitivity | None = None
    stored: StoredComparison | None = None
    host: dict[str, str] = field(default_factory=dict)
    reference: ReferenceRuntime | None = None
    tokens: TokenReport | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", "; ".join(one.text for one in self.reasons))

    def with_seconds(self, seconds: float) -> Verdict:
        """Return it with the time that judging took."""
        return replace(self, seconds=seconds)

    @property
    def faults(self) -> tuple[Reason, ...]:
        """The reasons that hold at any tolerance."""
        return tuple(one for one in self.reasons if one.fault)

    def file_under(self, artifact: str, worst: WorstFeed | None) -> Verdict:
        """Return the same decision for an artifact of this name, with its worst feed."""
        return replace(self, artifact=artifact, worst=worst)

    def check_explained(self) -> None:
        """Check that nothing passed below its precision's SQNR without a recorded reason.

        Raises:
            RuntimeError: something did, which is a bug of modelc.
        """
        for output in self.outputs if self.passed else ():
            if output.loose or output.sqnr is None or not output.is_floating or output.excuse:
                continue
            least = self.tolerance.of(output.output).min_sqnr
            if output.sqnr < least:
                raise RuntimeError(
                    f"{self.artifact} passed with output {output.output!r} at {output.sqnr:.1f} dB "
                    f"on feed {output.feed} (limit {least:g} dB), and nothing says why"
                )

    @property
    def headroom(self) -> float | None:
        """The smallest margin in dB over feeds that count and outputs; None if there is none."""
        found = (o.headroom for o in self._outputs_that_count if o.headroom is not None)
        return min(found, default=None)

    @property
    def _outputs_that_count(self) -> list[OutputVerdict]:
        """The outputs that the figures cover."""
        return [one for one in self.outputs if not one.loose and not one.apart]

    @property
    def _outputs_with_sqnr(self) -> list[OutputVerdict]:
        """The outputs that the SQNR covers: without excused ones, unless all are.

        Only floats if any of them differs: a ratio of indices means nothing.
        """
        floats = [one for one in self._outputs_that_count if one.is_floating]
        pool = floats if any(not one.exact for one in floats) else self._outputs_that_count
        return [one for one in pool if not one.is_excused] or pool

    @property
    def passed(self) -> bool:
        """Whether the artifact may be used."""
        return self.state is State.PASSED

    @property
    def exit_code(self) -> int:
        """0 passed, 1 rejected, 6 could not be run."""
        return {State.PASSED: 0, State.FAILED: 1, State.ERROR: 6}[self.state]

    @property
    def max_abs(self) -> float | None:
        """The absolute error nearest to its limit; None if none was measured.

        The largest of all would be that of the feed with the largest values.
        """
        found = [o for o in self._outputs_that_count if o.max_abs is not None]
        held = [o for o in found if o.headroom is not None]
        if held:
            return min(held, key=lambda o: o.headroom or 0.0).max_abs
        return max((o.max_abs or 0.0 for o in found), default=None)

    @property
    def sqnr(self) -> float | None:
        """The smallest SQNR in dB over outputs with a limit; None if all are exact.

        What passed is never below its limit here. If the judge excuses every feed, it is the
        smallest of these, and `is_excused` says so.
        """
        found = (o.sqnr for o in self._outputs_with_sqnr if o.sqnr is not None)
        return min(found, default=None)

    @property
    def sqnr_limit(self) -> float | None:
        """The limit in dB of the output of `sqnr`; None if there is no such output."""
        found = [one for one in self._outputs_with_sqnr if one.sqnr is not None]
        worst = min(found, key=lambda one: one.sqnr or 0.0, default=None)
        if worst is None or not worst.is_floating:
            return None
        return self.tolerance.of(worst.output).min_sqnr

    @property
    def exact(self) -> bool:
        """Whether all outputs that the SQNR covers equal eager's bit for bit."""
        return bool(self._outputs_with_sqnr) and all(one.exact for one in self._outputs_with_sqnr)

    @property
    def is_excused(self) -> bool:
        """Whether no feed that counts has an SQNR limit, as all are ill-conditioned."""
        return any(one.is_excused for one in self._outputs_with_sqnr)

    @property
    def group_sqnr(self) -> float | None:
        """Return the smallest SQNR in dB of a kind of channels; None if no output has kinds."""
        return min((g.sqnr for g in self.groups if g.kind and g.sqnr is not None), default=None)
