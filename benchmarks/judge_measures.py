"""What judge.py measures of each case: the peers' usual checks, sizes over float32's roundoff."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from modelc.benchmarks.judge_bed import Bed
from modelc.benchmarks.judge_exact import distance
from modelc.core.contract import Array, Outputs
from modelc.core.verdict import Verdict
from modelc.validators.judge import ReferenceOutputs

ROUNDOFF = 2.0**-24  # of one rounding to float32
_CLEAR = 100  # roundings: a fault above these is distinct from roundoff in any net of the zoo
_LITTLE = 0.1  # of the fault's size: an answer that near to the good net has no fault in it
Check = Callable[[Array, Array], bool]


def _close(atol: float, rtol: float) -> Check:
    return lambda found, eager: bool(
        np.allclose(found, eager, atol=atol, rtol=rtol, equal_nan=True)
    )


def _cosine(least: float) -> Check:
    def check(found: Array, eager: Array) -> bool:
        one, other = found.ravel().astype(np.float64), eager.ravel().astype(np.float64)
        size = float(np.linalg.norm(one) * np.linalg.norm(other))
        return bool(np.array_equal(one, other)) if size == 0 else float(one @ other) / size >= least

    return check


PEERS: Mapping[str, Check] = {
    "1e-5": _close(1e-5, 1e-5),
    "1e-3": _close(1e-3, 0.0),
    "cos": _cosine(0.997),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One artifact: what it is, what was said of it, and how far it is from exact.

    `group` is good, fault or branch. `peers` are their checks' answers on one random batch (`one`)
    and on all the feeds that modelc drew (`all`). `ratio` is the artifact's largest distance from
    float64 over eager's own, `channel` that of the worst channel. Of a fault, `size` is its largest
    relative distance from the net in float64, `visible` that over eager's own distance (on drawn
    feeds), `elsewhere` the same on the fault's own feeds, and `standing` over the distance of the
    good artifact of the same format and precision, where there is one. `undone` says that the
    artifact answers as the good net does: a converter removed the fault.
    """

    group: str
    model: str
    seed: int
    target: str
    precision: str
    kind: str
    label: str
    state: str
    reason: str
    headroom: float | None = None
    peers: dict[str, bool] = field(default_factory=dict)
    ratio: float | None = None
    channel: float | None = None
    worst: str = ""
    size: float = 0.0
    visible: float = 0.0
    elsewhere: float = 0.0
    standing: float | None = None
    undone: bool = False
    seconds: float = 0.0

    @property
    def key(self) -> str:
        """What identifies it, from run to run."""
        parts = (self.group, self.model, self.seed, self.target, self.precision)
        return "/".join(map(str, (*parts, self.kind, self.label)))

    @property
    def has_passed(self) -> bool:
        """Whether modelc let it pass."""
        return self.state == "passed"

    @property
    def is_visible(self) -> bool:
        """Whether the fault shows on a feed, drawn or its own, above eager's own roundoff."""
        return not self.undone and max(self.visible, self.elsewhere) > 1

    @property
    def stands_out(self) -> bool:
        """Whether it shows above the good artifact's own error as well, on a drawn feed."""
        return self.is_visible and (self.standing or 0.0) > 1

    def record(self) -> dict[str, object]:
        """As a line of the results; floats that JSON has not are cut off."""
        return {
            name: min(value, 1e300) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def verdict_fields(verdict: Verdict) -> dict[str, object]:
    """What a Case takes of a verdict."""
    return {
        "state": str(verdict.state),
        "reason": verdict.reason,
        "headroom": verdict.headroom,
    }


def peers(bed: Bed, answers: Sequence[Outputs]) -> dict[str, bool]:
    """The peers' checks beside eager, by position of the outputs, as they compare."""
    references = bed.subject.references
    usual = next((n for n, one in enumerate(references) if one.feed.name == "opt"), 0)
    found: dict[str, bool] = {}
    for name, check in PEERS.items():
        each = [_holds(check, one, two) for one, two in zip(answers, references, strict=True)]
        found |= {f"{name} one": each[usual], f"{name} all": all(each)}
    return found


def _holds(check: Check, answer: Outputs, reference: ReferenceOutputs) -> bool:
    pairs = list(zip(answer.values(), reference.outputs.values(), strict=False))
    alike = len(answer) == len(reference.outputs) and all(a.shape == e.shape for a, e in pairs)
    return alike and all(check(one, two) for one, two in pairs)


def over_roundoff(bed: Bed, answers: Sequence[Outputs]) -> dict[str, object]:
    """The artifact's largest distance from float64 over eager's own, whole and by channel."""
    worst, place, channel = 0.0, "", 0.0
    for name, answer, eager, exact, feed in _floats(bed, answers):
        least = ROUNDOFF * _norm(exact)
        ratio = _over(distance(answer, exact), max(distance(eager, exact), least))
        if ratio > worst:
            worst, place = ratio, f"{name} on {feed}"
        channel = max(channel, _by_channel(answer, eager, exact))
    return {"ratio": worst, "channel": channel, "worst": place}


def _by_channel(answer: Array, eager: Array, exact: Array) -> float:
    """The worst channel's ratio; a channel counts as having its share of the roundoff at least."""
    if exact.ndim < 2 or answer.shape != exact.shape or not np.isfinite(exact).all():  # noqa: PLR2004
        return 0.0
    axes = tuple(range(exact.ndim - 1))
    ours = np.sqrt(((answer - exact) ** 2).sum(axes))
    floor = np.sqrt(((eager - exact) ** 2).sum(axes))
    share = distance(eager, exact) / math.sqrt(exact.shape[-1])
    least = np.maximum(ROUNDOFF * np.sqrt((exact**2).sum(axes)), share)
    return float((ours / np.maximum(np.maximum(floor, least), 1e-300)).max())


def shows(
    exact: Sequence[Outputs], faulty: Sequence[Outputs], eager: Sequence[Outputs]
) -> tuple[float, float]:
    """How far a fault is from the net in float64: (relative, over eager's own distance)."""
    size = over = 0.0
    for truth, wrong, own in zip(exact, faulty, eager, strict=True):
        for name, array in truth.items():
            off = distance(wrong[name], array)
            least = ROUNDOFF * _norm(array)
            size = max(size, _over(off, _norm(array)))
            over = max(over, _over(off, max(distance(own[name], array), least)))
    return size, over


def undone(exact: Sequence[Outputs], faulty: Sequence[Outputs], answers: Sequence[Outputs]) -> bool:
    """Whether the answers are the good net's wherever the fault is clearly above roundoff."""
    parted = False
    for truth, wrong, answer in zip(exact, faulty, answers, strict=True):
        for name, array in truth.items():
            size = distance(wrong[name], array)
            if size <= _CLEAR * ROUNDOFF * _norm(array):
                continue
            if name not in answer or distance(answer[name], array) > _LITTLE * size:
                return False
            parted = True
    return parted


def _floats(bed: Bed, answers: Sequence[Outputs]) -> Iterator[tuple[str, Array, Array, Array, str]]:
    for answer, reference, exact in zip(answers, bed.subject.references, bed.exact, strict=True):
        for name, truth in exact.items():
            if name in answer and truth.dtype.kind == "f":
                yield name, answer[name], reference.outputs[name], truth, reference.feed.name


def _norm(array: Array) -> float:
    return float(np.linalg.norm(array[np.isfinite(array)].astype(np.float64)))


def _over(one: float, other: float) -> float:
    if one == 0:
        return 0.0
    return one / other if other else math.inf
