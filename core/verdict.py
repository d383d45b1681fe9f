"""What the validators found about one artifact."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from .domain import Domain
from .findings import Histogram, Sensitivity, WorstFeed
from .kinds import ReasonCode

_FLOAT_PREFIXES = ("float", "complex", "bfloat")


class State(StrEnum):
    """`failed` was judged and is wrong; `error` could not be judged."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"


class Excuse(StrEnum):
    """Why an output passed although its SQNR is below the limit of its precision's table.

    `usual scale`: its errors are roundoff at the scale that it has on other feeds. `ill
    conditioned`: eager itself was measured to move as far under noise of 2^-24.
    """

    USUAL_SCALE = "usual scale"
    ILL_CONDITIONED = "ill conditioned"


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One thing that is wrong with an artifact.

    A `fault` is wrong at any tolerance; what is no fault follows from the measures, and is decided
    anew when the tolerance changes. `output` and `feed` are empty where it is not about one.
    """

    code: ReasonCode
    text: str
    fault: bool = False
    output: str = ""
    feed: str = ""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits that somebody asked for, in place of the usual ones; None leaves the usual."""

    atol: float | None = None
    rtol: float | None = None
    min_sqnr: float | None = None
    floor_factor: float | None = None
    min_cosine: float | None = None
    min_agreement: float | None = None

    @property
    def by_table(self) -> bool:
        """Whether a limit of the table was given, and none by the noise floor."""
        table = (self.atol, self.rtol, self.min_sqnr)
        return self.floor_factor is None and any(value is not None for value in table)


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What one output may differ by.

    Where `floor_factor` is given and eager could be run in float64, the artifact may be
    `floor_factor` times as far from float64 as eager is itself (see noise_floor.py). It may be
    below `min_sqnr` there only where eager moves as far under noise of 2^-24, and never off by more
    than a hundredth of the peak. Otherwise passing needs `max_abs <= atol + rtol * peak`, where
    peak is the largest magnitude of the eager output, and `sqnr >= min_sqnr` in dB, both on one
    feed. Where a feed's output lies far below its usual scale, errors that are roundoff at that
    scale pass as well. `min_cosine` is of each feed, `min_agreement` the share of rows over all
    feeds whose largest element is eager's. `by_output` has other limits for single outputs.
    """

    atol: float
    rtol: float
    min_sqnr: float
    floor_factor: float | None = None
    min_cosine: float | None = None
    min_agreement: float | None = None
    by_output: dict[str, Limits] = field(default_factory=dict)

    def of(self, output: str) -> Tolerance:
        """The tolerance of one output."""
        special = self.by_output.get(output)
        return replace(self, by_output={}) if special is None else self.within(special)

    def within(self, limits: Limits) -> Tolerance:
        """This tolerance with other limits; one of the table alone puts the floor aside."""
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

    Errors are over elements finite in both; None stands for "not defined here" (an empty or
    non-numeric output) and, for `sqnr`, also for "no error at all" (`exact` is then True).
    `relative_l2`, `cosine` and `sqnr` are over all of these; `sqnr` is in dB. All are of this feed
    alone. Fill (such as -1e4 in masked logits) is judged on its own and left out of them. Of a
    `loose` feed only form counted: shape, dtype, NaN/Inf. `headroom` is how far in dB the errors
    stay below the nearest limit; negative is beyond it, None where no limit applies.

    A feed that is `apart`, as those of wide integers are, is judged by itself: it counts, and is no
    part of the verdict's figures.

    `form` is what is wrong whatever the tolerance (a shape, a NaN, another integer), `clue` what a
    wrong output looks like. `times_floor` is how many times as far the artifact is from float64 as
    eager is (see noise_floor.py), `floor` eager's own relative L2 distance from it: None
    where it was not run on the feed or is another function, and eager stands for it; both are
    None without a float64 reference. `moved` is how far noise of 2^-24 in inputs and weights moves
    eager, in relative L2; None where that was not in doubt. `excuse` is why an SQNR below the limit
    passed. `top1_agreement` is the share of rows whose largest element is eager's or as large as
    that within four times the RMS error, `top5_agreement` the share of eager's five largest that
    are among the artifact's; `rows` counts the rows. `signal` and `noise` are mean squares of eager
    and of the error. Of integers and bools that are not eager's, `undecided` counts those that
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
        """Whether it is of floats, which limits are for; integers and bools must be equal."""
        return self.dtype.startswith(_FLOAT_PREFIXES)

    @property
    def is_excused(self) -> bool:
        """Whether it passed by another rule than a limit on its SQNR.

        So do ill-conditioned feeds, quiet ones and integers that roundoff decides: their SQNR is
        on record and says nothing of the artifact.
        """
        inexact = self.passed and not self.exact
        return inexact and (self.excuse is not None or not self.is_floating)


@dataclass(frozen=True, kw_only=True)
class ChannelVerdict:
    """The worst channel of one axis of an output, over all feeds that count.

    `sqnr` is in dB and None for a channel that eager leaves zero; `times_floor` as in
    OutputVerdict, where float64 is known; `allowed` is the error that is roundoff in the channel.
    """

    output: str
    axis: int
    channel: int
    sqnr: float | None
    max_abs: float
    allowed: float
    more: int = 0  # channels of the axis that are wrong beside it
    times_floor: float | None = None


@dataclass(frozen=True, kw_only=True)
class DefaultRun:
    """What an artifact gives where its runtime is left to its defaults, and these compute in less.

    `state` is by the limits of the precision `compute`; `sqnr` is the smallest in dB, None where
    all is exact. `advice` is the line of code that opens the artifact as it was judged.
    """

    compute: str
    state: State
    sqnr: float | None
    max_abs: float | None
    advice: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class GroupVerdict:
    """Channels of one axis of an INT8 artifact's output that are of one scale, over all feeds.

    `channels` are their ranges, first and last, `count` how many they are; `rms` is eager's, `sqnr`
    in dB at this scale, None without any error. `kind` says that the group is held to a limit of
    its own (see channel_metrics.py). `dead` are ranges of channels that vary in eager and are
    constant in the artifact.
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
    """Whether one artifact is eager's equal, on which feeds, within what, and why not.

    `reasons` say what is wrong, the most important first, and are empty where it passed; `reason`
    is their text in one line. `channels` are the worst ones, `groups` those of INT8.
    `restricted_values` are the least and the greatest value of inputs whose chosen range it is
    right in a part of only. `by_default` is what users get who leave the runtime to its defaults,
    where that is less. `domain` is of a file that was judged by itself; in a manifest, the
    artifact has it. `sensitivity` is what the feeds and limits would have found.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", "; ".join(one.text for one in self.reasons))

    @property
    def faults(self) -> tuple[Reason, ...]:
        """The reasons that hold at any tolerance."""
        return tuple(one for one in self.reasons if one.fault)

    def file_under(self, artifact: str, worst: WorstFeed | None) -> Verdict:
        """Return the same decision for an artifact of this name, with its worst feed."""
        return replace(self, artifact=artifact, worst=worst)

    def check_explained(self) -> None:
        """Make sure that nothing passed below its precision's SQNR without a reason on record.

        Raises:
            RuntimeError: something did: a bug of ours, whatever the artifact is.
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
        """The smallest headroom in dB over feeds that count and outputs; None where none is."""
        found = (o.headroom for o in self._outputs_that_count if o.headroom is not None)
        return min(found, default=None)

    @property
    def _outputs_that_count(self) -> list[OutputVerdict]:
        """The outputs that the figures are of."""
        return [one for one in self.outputs if not one.loose and not one.apart]

    @property
    def _outputs_with_sqnr(self) -> list[OutputVerdict]:
        """The outputs that the SQNR is of: what the judge excuses is left out, unless all is.

        Floats alone where any of them differs: a ratio of indices says nothing.
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
        """0 proven, 1 judged and wrong, 6 could not be run."""
        return {State.PASSED: 0, State.FAILED: 1, State.ERROR: 6}[self.state]

    @property
    def max_abs(self) -> float | None:
        """The absolute error that came nearest to its limit; None where none was measured.

        The largest of all would be that of the feed with the largest values.
        """
        found = [o for o in self._outputs_that_count if o.max_abs is not None]
        held = [o for o in found if o.headroom is not None]
        if held:
            return min(held, key=lambda o: o.headroom or 0.0).max_abs
        return max((o.max_abs or 0.0 for o in found), default=None)

    @property
    def sqnr(self) -> float | None:
        """The smallest SQNR in dB over outputs that are held to it; None when all is exact.

        What passed is never below its limit here. Where the judge excuses every feed, it is the
        smallest of these, and `is_excused` says so.
        """
        found = (o.sqnr for o in self._outputs_with_sqnr if o.sqnr is not None)
        return min(found, default=None)

    @property
    def sqnr_limit(self) -> float | None:
        """The limit in dB of the output that `sqnr` is of; None where there is no such output."""
        found = [one for one in self._outputs_with_sqnr if one.sqnr is not None]
        worst = min(found, key=lambda one: one.sqnr or 0.0, default=None)
        if worst is None or not worst.is_floating:
            return None
        return self.tolerance.of(worst.output).min_sqnr

    @property
    def exact(self) -> bool:
        """Whether all that the SQNR is of is eager's to the bit."""
        return bool(self._outputs_with_sqnr) and all(one.exact for one in self._outputs_with_sqnr)

    @property
    def is_excused(self) -> bool:
        """Whether no feed that counts is held to an SQNR, as all are ill-conditioned."""
        return any(one.is_excused for one in self._outputs_with_sqnr)

    @property
    def group_sqnr(self) -> float | None:
        """The smallest SQNR in dB of a kind of channels; None where no output has kinds."""
        return min((g.sqnr for g in self.groups if g.kind and g.sqnr is not None), default=None)
