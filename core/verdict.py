"""What the validators found about one artifact."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .findings import Histogram, WorstFeed


class State(StrEnum):
    """`failed` was judged and is wrong; `error` could not be judged."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What one output may differ by.

    Passing needs both `max_abs <= atol + rtol * peak`, where peak is the largest magnitude of
    the eager output, and `sqnr >= min_sqnr` in dB, both on one feed. Where a feed's output lies far
    below its usual scale, errors that are roundoff at that scale pass as well.
    """

    atol: float
    rtol: float
    min_sqnr: float


@dataclass(frozen=True, kw_only=True)
class OutputVerdict:
    """One output on one feed, artifact beside eager.

    Errors are over elements finite in both; None stands for "not defined here" (an empty or
    non-numeric output) and, for `sqnr`, also for "no error at all" (`exact` is then True).
    `relative_l2`, `cosine` and `sqnr` are over all of these; `sqnr` is in dB. All are of this feed
    alone. Fill (such as -1e4 in masked logits) is judged on its own and left out of them. Of a
    `loose` feed only form counted: shape, dtype, NaN/Inf. `headroom` is how far in dB the errors
    stay below the nearest limit; negative is beyond it, None where no limit applies.
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
    headroom: float | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether one artifact is eager's equal, on which feeds, within what, and why not."""

    artifact: str
    state: State
    reason: str
    device: str
    tolerance: Tolerance
    feeds: tuple[str, ...]
    outputs: tuple[OutputVerdict, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    histograms: tuple[Histogram, ...] = ()
    worst: WorstFeed | None = None

    @property
    def headroom(self) -> float | None:
        """The smallest headroom in dB over feeds that count and outputs; None where none is."""
        found = (o.headroom for o in self.outputs if o.headroom is not None and not o.loose)
        return min(found, default=None)

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
        """The largest absolute error over feeds that count and outputs; None where none is."""
        found = (o.max_abs for o in self.outputs if o.max_abs is not None and not o.loose)
        return max(found, default=None)

    @property
    def sqnr(self) -> float | None:
        """The smallest SQNR in dB over feeds that count and outputs; None when all is exact."""
        found = (o.sqnr for o in self.outputs if o.sqnr is not None and not o.loose)
        return min(found, default=None)
