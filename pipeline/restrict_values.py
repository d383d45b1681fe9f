"""Restrict artifacts that are wrong only on wide integers to the values they are right for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.contract import Runner, no_progress
from ..core.dims import bisect_boundary
from ..core.errors import CheckpointError
from ..core.findings import SkippedCheck
from ..core.kinds import ReasonCode
from ..core.signature import InputSpec, Signature, ValueRange
from ..core.verdict import State
from ..validators.edge_case_feeds import draw_few_rows
from ..validators.feeds import FeedDrawer, NamedFeed
from ..validators.output_pairs import find_sample
from ..validators.ruling import Ruling
from ..validators.wide_integer_feeds import SMALL, WIDE, draw_wide_feeds, find_wide_inputs
from .eager_reference import EagerReference, run_eager
from .reply_evidence import Evidence, FeedPair, JudgedEvidence
from .rounding_ties import run_artifact
from .run_reference import finite_part, run_reference

if TYPE_CHECKING:
    from ..validators.judge import ArtifactOutputs, ReferenceOutputs
    from .judge_case import JudgeRequest

# Ends to try, largest first: int32, 30 bits (the difference of two fits in 31), 16 bits and small
# numbers. 2^20 stands for float32 instead of 2^24: up to it, a quotient by at most 16 has an error
# smaller than its distance from a whole number.
_VALUE_BOUNDS = (2**31 - 1, 2**30 - 1, 2**20, 2**16, SMALL, 255, 15)
_FP32_UNIT = 2.0**-24
_LUCK_FACTOR = 8.0  # times the movement of eager's own draws; roundoff explains no more
_MAX_WRONG_PAIRS = 3
_NOISE_DRAWS = 6  # of wide feeds, to judge an artifact in a range


def restrict_values(request: JudgeRequest, judged: JudgedEvidence) -> JudgedEvidence:
    """Judge an artifact that is wrong only on wide integers within narrower ranges.

    With `request.restrict`, ranges that modelc chose are narrowed, one input after another, to the
    largest in which the artifact is right. `restricted_values` holds them, and wide feeds are drawn
    from them. If even small numbers are wrong, or the user stated the range, the artifact is
    rejected with a reason that names the input and a wrong value.
    """
    specs = find_wide_inputs(request.eager.signature)
    if judged.verdict.state is not State.FAILED or not specs:
        return judged
    evidence = judged.evidence
    plain = evidence.of([pair for pair in evidence.pairs if pair[0].feed.kind != WIDE])
    stated = [
        spec
        for spec in specs
        if not request.restrict or (spec.values is not None and not spec.values.chosen)
    ]
    chosen = [spec for spec in specs if spec not in stated]
    if not stated and not plain.verdict.passed:
        return judged
    if request.eager.skip(SkippedCheck.VALUE_RANGES):
        return judged
    with request.case.open() as runner:
        trial = _RangeTrial(evidence=evidence, eager=request.eager, runner=runner)
        judged = judged.plus(*map(trial.find_wrong_value, stated))
        if stated or not any(name.startswith(f"{WIDE}-") for name in judged.verdict.feeds):
            return judged
        return _judge_narrowed(trial, chosen, plain, judged)


def _judge_narrowed(
    trial: _RangeTrial, specs: Sequence[InputSpec], plain: Evidence, judged: JudgedEvidence
) -> JudgedEvidence:
    ranges: dict[str, tuple[int, int]] = {}
    for spec in specs:
        found = trial.widest(spec)
        if found is None:
            return judged.plus(trial.find_wrong_value(spec))
        ranges[spec.name] = found
    for together in _narrower_together(ranges, specs):
        now = JudgedEvidence.of(plain.of([*plain.pairs, *(trial.pairs(together) or ())]))
        if now.passed:
            break
    else:
        return judged
    whole = {spec.name: spec.values for spec in specs if spec.values is not None}
    kept = {n: r for n, r in together.items() if r != (int(whole[n].low), int(whole[n].high))}
    notes = tuple(f"{name}: values within {low}..{high}" for name, (low, high) in kept.items())
    return judged.use_judgment(now).plus(Ruling(restricted_values=kept, notes=notes))


def _narrower_together(
    ranges: Mapping[str, tuple[int, int]], specs: Sequence[InputSpec]
) -> Iterator[dict[str, tuple[int, int]]]:
    """Yield the widest range of each input, then without negative values, then narrower ones.

    Differences of two inputs may exceed what a format represents although each input does not.
    """
    yield dict(ranges)
    if len(ranges) == 1:
        return
    usual = {spec.name: _usual_range(spec.values) for spec in specs if spec.values is not None}
    floors = {name: max(low, min(usual[name][0], 0)) for name, (low, _) in ranges.items()}
    above = {name: (floors[name], high) for name, (_, high) in ranges.items()}
    if above != ranges:
        yield above
    for bound in _VALUE_BOUNDS:
        held = {
            name: (max(low, min(-bound, floors[name])), min(high, max(bound, usual[name][1])))
            for name, (low, high) in ranges.items()
        }
        if held != ranges:
            yield held


def restrict_reference(eager: EagerReference, inputs: Sequence[InputSpec]) -> EagerReference:
    """Return the eager reference with other ranges of wide inputs; only wide feeds rerun."""
    signature = replace(eager.signature, inputs=tuple(inputs))
    within = replace(eager, signature=signature)
    wide = run_reference(
        draw_wide_feeds(signature, seed=eager.feeds.seed, samples=eager.sample),
        lambda feed: run_eager(within, feed),
        no_progress,
    )
    usual = (one for one in eager.references if one.feed.kind != WIDE)
    return replace(within, references=(*usual, *wide.references))


def restrict_inputs(
    inputs: Sequence[InputSpec], ranges: Mapping[str, tuple[int, int]]
) -> tuple[InputSpec, ...]:
    """Replace the chosen ranges of the inputs with these."""

    def within(spec: InputSpec) -> InputSpec:
        if spec.values is None or spec.name not in ranges:
            return spec
        low, high = ranges[spec.name]
        return replace(spec, values=replace(spec.values, low=low, high=high))

    return tuple(map(within, inputs))


@dataclass(frozen=True, kw_only=True)
class _RangeTrial:
    """Tries ranges on eager and on the open artifact."""

    evidence: Evidence
    eager: EagerReference
    runner: Runner

    def widest(self, spec: InputSpec) -> tuple[int, int] | None:
        """Return the largest range in which the artifact is right, other inputs at usual values.

        The upper end is searched first, without negative values, then the lower one. If no range
        is right but eager itself is unstable on small numbers, the usual values are returned.
        """
        if spec.values is None:
            return None
        low, high = int(spec.values.low), int(spec.values.high)
        least, most = _usual_range(spec.values)
        floor = max(low, min(least, 0))
        highs = [high, *(b for b in _VALUE_BOUNDS if most <= b < high)]
        upper = next((b for b in highs if self._right({spec.name: (floor, b)})), None)
        if upper is None:
            return (least, most) if self._is_unsteady(spec) else None
        lows = [low, *(-b for b in _VALUE_BOUNDS if low < -b < floor)]
        lower = (b for b in lows if -b <= upper or b == low)
        found = next((b for b in lower if self._right({spec.name: (b, upper)})), floor)
        return found, upper

    def find_wrong_value(self, spec: InputSpec) -> Ruling:
        """Reject the artifact if there is a small value of the input at which it is wrong.

        Smaller wrong values may exist: with rounded quotients, right and wrong values alternate.
        """
        value = self._wrong_value(spec)
        texts = [] if value is None else [f"input {spec.name!r}: wrong at the value {value}"]
        return Ruling.fault(ReasonCode.WIDE_VALUES, *texts)

    def pairs(
        self, ranges: Mapping[str, tuple[int, int]], *, draw: int = 0
    ) -> list[FeedPair] | None:
        """Run wide feeds within these ranges on both; None if eager rejects one."""
        signature = _restrict_signature(self.eager.signature, ranges)
        samples = find_sample(self.evidence.references)
        feeds = draw_wide_feeds(signature, seed=self.eager.feeds.seed + draw, samples=samples)
        found = [self._run(feed) for feed in feeds]
        pairs = [pair for pair in found if pair is not None]
        return pairs if len(pairs) == len(found) else None

    def _right(self, ranges: Mapping[str, tuple[int, int]]) -> bool:
        """Return whether the artifact is right in these ranges on several draws."""
        drawn = (self.pairs(ranges, draw=draw) for draw in range(_NOISE_DRAWS))
        return all(
            one is not None and self.evidence.of(one).is_right_on_wide_feeds for one in drawn
        )

    def _run(self, feed: NamedFeed) -> FeedPair | None:
        try:
            reference = finite_part(run_eager(self.eager, feed), ())
        except CheckpointError:
            return None
        if reference is None:
            return None
        return run_artifact(reference, self.evidence, self.eager, self.runner)

    def _is_unsteady(self, spec: InputSpec) -> bool:
        """Return whether float roundoff moves eager as far as the artifact deviates.

        If so, small numbers of the input have no meaning to the model, as in a mask used as floats.
        """
        values = spec.values
        if values is None:
            return False
        least = _usual_range(values)[0]
        if least > SMALL:  # a sample of only large numbers, such as timestamps, is meaningful
            return False
        pairs = self.pairs({spec.name: (least, min(SMALL, int(values.high)))})
        return bool(pairs) and all(self._explains(*pair) for pair in pairs or ())

    def _explains(self, reference: ReferenceOutputs, reply: ArtifactOutputs) -> bool:
        import numpy as np

        if self.evidence.of([(reference, reply)]).is_right_on_wide_feeds:
            return True
        draws = list(
            self.eager.model.draw_perturbed(
                reference.feed.arrays, _FP32_UNIT, pairs=_MAX_WRONG_PAIRS
            )
        )
        for name, eager in reference.outputs.items():
            answer = (reply.outputs or {}).get(name)
            if answer is None or answer.shape != eager.shape:
                return False
            error = float(np.abs(answer.astype(np.float64) - eager).max(initial=0.0))
            moved = [np.abs(one[name].astype(np.float64) - eager).max(initial=0.0) for one in draws]
            if error > _LUCK_FACTOR * max(moved, default=0.0):
                return False
        return True

    def _wrong_value(self, spec: InputSpec) -> int | None:
        """Find by bisection a value of small magnitude at which the artifact is wrong.

        The input is filled with the value. Values above the start are searched first, then below.
        """
        if spec.values is None:
            return None
        low, high = int(spec.values.low), int(spec.values.high)
        start = max(low, min(high, 0))
        for end in (high, low):
            good, bad = start, end
            if good == bad or self._is_right_at(spec, end):
                continue
            for step in _value_steps(start, end):
                if not self._is_right_at(spec, step):
                    bad = step
                    break
                good = step
            good = bisect_boundary(lambda value: self._is_right_at(spec, value), good, bad)
            return good + (1 if end > start else -1)
        return None

    def _is_right_at(self, spec: InputSpec, value: int) -> bool:
        import numpy as np

        drawer = FeedDrawer.of(
            _restrict_signature(self.eager.signature, {}),
            self.eager.feeds.seed,
            find_sample(self.evidence.references),
        )
        base = draw_few_rows(drawer)
        array = np.full_like(base.arrays[spec.name], value)
        feed = replace(base, name=WIDE, kind=WIDE, arrays={**base.arrays, spec.name: array})
        pair = self._run(feed)
        return pair is None or self.evidence.of([pair]).is_right_on_wide_feeds


def _value_steps(start: int, end: int) -> Iterator[int]:
    """Yield trial values outward from `start` to `end`."""
    sign = 1 if end > start else -1
    for bound in (*reversed(_VALUE_BOUNDS), end * sign):
        if min(start, end) <= sign * bound <= max(start, end):
            yield sign * bound


def _usual_range(values: ValueRange) -> tuple[int, int]:
    low, high = values.usual or (values.low, values.high)
    return int(low), int(high)


def _restrict_signature(signature: Signature, ranges: Mapping[str, tuple[int, int]]) -> Signature:
    """Set chosen wide inputs to these ranges, and those without one to their usual values."""
    ends = {
        spec.name: ranges.get(spec.name, _usual_range(spec.values))
        for spec in find_wide_inputs(signature)
        if spec.values is not None and spec.values.chosen
    }
    return replace(signature, inputs=restrict_inputs(signature.inputs, ends))
