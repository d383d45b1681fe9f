"""Compares two manifests measure by measure: worse, better, or within the margin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from ..core.findings import Accuracy
from ..core.kinds import Precision
from ..core.manifest import Manifest
from ..core.records import Coverage, Latency, size_text
from ..core.verdict import Verdict
from .result_rows import REJECTED_PREFIX, Outcome, ResultRow, make_rows
from .text_format import (
    decibel_text,
    digest_text,
    milliseconds_text,
    one_line,
    percent_text,
    ratio,
)

GONE_TEXT = "gone"  # the state of an artifact that the later run lacks


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One side of the comparison."""

    name: str
    created: str
    modelc: str
    checkpoint: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The measures of two runs, by artifact; `notes` name differences between the runs."""

    before: ComparedRun
    after: ComparedRun
    measures: tuple[Measure, ...]
    notes: tuple[str, ...] = ()

    def of(self, change: Change) -> tuple[Measure, ...]:
        """Return the measures with this change."""
        return tuple(measure for measure in self.measures if measure.change is change)

    @property
    def artifacts_lost(self) -> tuple[str, ...]:
        """The artifacts that only the earlier run has."""
        return tuple(one.artifact for one in self.measures if one.after == GONE_TEXT)

    @property
    def has_regressions(self) -> bool:
        """Whether anything got worse beyond its margin."""
        return bool(self.of(Change.WORSE))


def compare_manifests(
    before: Manifest,
    after: Manifest,
    names: tuple[str, str] = ("A", "B"),
    *,
    latency: bool = False,
) -> Comparison:
    """Compare two manifests, the older first; `latency` includes timings in the judgement."""
    then, now = _latest_rows(before), _latest_rows(after)
    measures: list[Measure] = []
    for name in dict.fromkeys((*then, *now)):
        if name not in now:
            row = then[name]
            lost = row.outcome in (Outcome.PASSED, Outcome.PENDING)  # others are no loss
            measures.append(Measure(
                artifact=name, measure="verdict", change=Change.WORSE if lost else Change.INFO,
                before=str(row.outcome), after=GONE_TEXT,
            ))  # fmt: skip
        elif name not in then:
            row = now[name]
            measures.append(Measure(
                artifact=name, measure="verdict", change=Change.NEW, before="none",
                after=str(row.outcome), why=row.reason,
            ))  # fmt: skip
        else:
            measures += compare_rows(name, then[name], now[name], latency=latency)
    return Comparison(
        before=_describe_run(before, names[0]),
        after=_describe_run(after, names[1]),
        measures=tuple(measures),
        notes=tuple(_run_differences(before, after)),
    )


def _describe_run(manifest: Manifest, name: str) -> ComparedRun:
    return ComparedRun(
        name=name,
        created=manifest.created,
        modelc=manifest.modelc,
        checkpoint=manifest.checkpoint.title,
        digest=manifest.checkpoint.digest,
    )


def _run_differences(before: Manifest, after: Manifest) -> Iterator[str]:
    """Yield the differences between the runs themselves."""
    pairs = (
        ("checkpoint", digest_text(before.checkpoint.digest), digest_text(after.checkpoint.digest)),
        ("modelc", before.modelc, after.modelc),
        ("inputs", _inputs_text(before), _inputs_text(after)),
        ("seed", str(before.feeds.seed), str(after.feeds.seed)),
    )
    for what, then, now in pairs:
        if then != now:
            yield one_line(f"{what}: {then} before, {now} now")
    for name in dict.fromkeys((*before.environment, *after.environment)):
        then, now = before.environment.get(name, "none"), after.environment.get(name, "none")
        if then != now:
            yield one_line(f"{name}: {then} before, {now} now")


def _inputs_text(manifest: Manifest) -> str:
    return "  ".join(map(str, manifest.signature.inputs))


def _latest_rows(manifest: Manifest) -> dict[str, ResultRow]:
    """Return the last state by artifact; a failed step or a rejection replaces a passed one."""
    found: dict[str, ResultRow] = {}
    for row in make_rows(manifest):
        name = row.name.removeprefix(REJECTED_PREFIX)
        known = found.get(name)
        if known is None or row.failure is not None or row.name.startswith(REJECTED_PREFIX):
            found[name] = row
    return found


# Smaller differences of SQNR or margin are noise, in dB. A different order of summation (another
# CPU or number of threads) changes the worst element of an fp32 output by a factor of two (6 dB);
# half precision rounds too coarsely to show it as much; quantized with the same scales,
# artifacts are reproducible.
MARGIN_DB: Mapping[Precision, float] = {
    Precision.FP32: 6.0,
    Precision.FP16: 3.0,
    Precision.BF16: 3.0,
    Precision.INT8: 1.0,
    Precision.INT8_WEIGHTS: 1.0,
    Precision.INT8_DYNAMIC: 1.0,
    Precision.FP8: 1.0,
    Precision.INT4: 1.0,
}
# A higher SQNR is float32 roundoff (good conversions measure 115 to 145 dB): exact and 120 dB are
# equally good.
CEILING_DB = 115.0
MARGIN_SIZE = 0.01  # share: the metadata of the file varies
MARGIN_BYTES = 4096  # the same for small files
MARGIN_LATENCY = 0.10  # share: smaller differences do not matter for a choice
MARGIN_MILLISECONDS = 0.05  # smaller differences are call overhead
_SEARCH_PREFIX = "search-"  # of the names of feeds that a search found
MARGIN_SHARE = 0.01  # share of the work


class Change(StrEnum):
    """How a measure changed. `noise` is within the margin; `told` is for information only.

    `new` is the verdict on an artifact that only the later run has.
    """

    WORSE = "worse"
    BETTER = "better"
    NEW = "new"
    NOISE = "noise"
    SAME = "same"
    INFO = "told"  # the value in --json


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One measure of one artifact before and after, as text and as figures."""

    artifact: str
    measure: str
    change: Change
    before: str
    after: str
    why: str = ""
    was: float | None = None
    now: float | None = None


_OUTCOME_RANKS = {Outcome.PASSED: 2, Outcome.PENDING: 1}  # the others: 0


def compare_rows(
    name: str, then: ResultRow, now: ResultRow, *, latency: bool = False
) -> Iterator[Measure]:
    """Yield the measures of an artifact that both runs have."""
    step = _OUTCOME_RANKS.get(now.outcome, 0) - _OUTCOME_RANKS.get(then.outcome, 0)
    change = Change.SAME if now.outcome is then.outcome else Change.INFO
    change = Change.WORSE if step < 0 else Change.BETTER if step > 0 else change
    yield Measure(artifact=name, measure="verdict", change=change, before=str(then.outcome),
                  after=str(now.outcome), why="" if step >= 0 else now.reason)  # fmt: skip
    if then.artifact is None or now.artifact is None:
        return  # a failed or pending step has no other measure
    precision = now.artifact.precision
    if then.verdict is not None and now.verdict is not None:
        yield from _compare_margins(name, then.verdict, now.verdict, MARGIN_DB[precision])
    if Outcome.PASSED not in (then.outcome, now.outcome) or step:
        return  # size and speed of a rejected artifact do not matter
    yield _compare_size(name, then.artifact.size, now.artifact.size)
    if then.artifact.latency is not None and now.artifact.latency is not None:
        yield _compare_latency(name, then.artifact.latency, now.artifact.latency, judged=latency)
    yield from _compare_coverage(name, then, now)
    if then.artifact.accuracy is not None and now.artifact.accuracy is not None:
        yield from _compare_accuracy(name, then.artifact.accuracy, now.artifact.accuracy)
    elif then.artifact.accuracy is not None:
        was = then.artifact.accuracy
        yield Measure(artifact=name, measure=was.metric, change=Change.WORSE,
                      before=f"{was.artifact:.5g}", after="not measured",
                      why="no accuracy in the later run")  # fmt: skip


def _judge_gain(gain: float, margin: float) -> Change:
    """Classify a gain; less than the margin is noise."""
    if gain == 0 or math.isnan(gain):
        return Change.SAME if gain == 0 else Change.INFO
    if abs(gain) <= margin:
        return Change.NOISE
    return Change.BETTER if gain > 0 else Change.WORSE


def _compare_margins(name: str, then: Verdict, now: Verdict, margin: float) -> Iterator[Measure]:
    """Yield the SQNR, then the margin if both runs have one."""
    then, now, why = _restrict_to_shared(then, now)
    was, is_ = _smallest_sqnr(then), _smallest_sqnr(now)
    if was is not None and is_ is not None:
        gain = min(is_, CEILING_DB) - min(was, CEILING_DB)
        change = _judge_gain(gain, margin)
        change = Change.NOISE if change is Change.SAME and was != is_ else change
        change = Change.INFO if why else change
        texts = ["exact" if math.isinf(value) else ratio(value) for value in (was, is_)]
        yield Measure(artifact=name, measure="SQNR", change=change, before=texts[0], after=texts[1],
                      was=was, now=is_, why=why)  # fmt: skip
    before, after = then.headroom, now.headroom
    if before is None or after is None:
        return
    why = why if then.tolerance == now.tolerance else "different tolerances"
    change = Change.INFO if why else _judge_gain(after - before, margin)
    yield Measure(artifact=name, measure="margin", change=change, before=decibel_text(before),
                  after=decibel_text(after), was=before, now=after, why=why)  # fmt: skip


def _restrict_to_shared(then: Verdict, now: Verdict) -> tuple[Verdict, Verdict, str]:
    """Restrict both verdicts to their common feeds; the text says why they cannot be compared.

    Feeds that a search found are left out: each search finds others, all close to a limit.
    """
    shared = _feeds_that_count(then) & _feeds_that_count(now)
    if not shared:
        return then, now, "no common feeds"
    before, after = (
        replace(one, outputs=tuple(o for o in one.outputs if o.feed in shared))
        for one in (then, now)
    )
    return before, after, ""


def _feeds_that_count(verdict: Verdict) -> set[str]:
    found = (output.feed for output in verdict.outputs if not output.loose)
    return {feed for feed in found if not feed.startswith(_SEARCH_PREFIX)}


def _smallest_sqnr(verdict: Verdict) -> float | None:
    """Return the smallest SQNR: infinite if exact, None if not measured."""
    if verdict.sqnr is None:
        return math.inf if verdict.exact else None
    return None if verdict.is_excused else verdict.sqnr


def _compare_size(name: str, was: int, now: int) -> Measure:
    change = _judge_gain(was - now, max(MARGIN_BYTES, MARGIN_SIZE * was))
    return Measure(artifact=name, measure="size", change=change, before=size_text(was),
                   after=size_text(now), was=was, now=now)  # fmt: skip


def _compare_latency(name: str, was: Latency, now: Latency, *, judged: bool) -> Measure:
    """Compare latencies in ms, judged by the ratio to the FP32 parent timed alongside.

    A change counts if it exceeds `MARGIN_LATENCY`, and if the intervals of both ratios lie apart.
    """
    texts = (milliseconds_text(was.milliseconds), milliseconds_text(now.milliseconds))
    same = was.milliseconds == now.milliseconds
    change, why = Change.SAME if same else Change.NOISE, "add --latency to judge timings"
    if was.device != now.device:
        change, why = Change.INFO, f"on {now.device}, on {was.device} before"
    elif judged and min(was.parent, now.parent) > 0:
        before, after = was.ratio, now.ratio
        clock = MARGIN_MILLISECONDS / min(was.parent, now.parent)
        apart = was.interval.is_above(now.interval) or now.interval.is_above(was.interval)
        margin = max(MARGIN_LATENCY * before, clock) if apart else math.inf
        change = _judge_gain(before - after, margin)
        why = f"{before:.2f} x fp32 before, {after:.2f} x now"
    return Measure(artifact=name, measure="latency", change=change, before=texts[0], after=texts[1],
                   why=why, was=was.milliseconds, now=now.milliseconds)  # fmt: skip


def _compare_coverage(name: str, then: ResultRow, now: ResultRow) -> Iterator[Measure]:
    """Yield the share of the work in the artifact's precision; of the layers, if work is time."""
    before = then.artifact.coverage if then.artifact else None
    after = now.artifact.coverage if now.artifact else None
    if before is None or after is None or now.artifact is None:
        return
    dtype = str(now.artifact.precision)
    timed = "time" in (before.work, after.work)
    shares = [_layer_shares(one) if timed else one.share for one in (before, after)]
    was, is_ = (share.get(dtype, 0.0) for share in shares)
    change = _judge_gain(is_ - was, MARGIN_SHARE)
    what = f"{'layers' if timed else 'work'} in {dtype}"
    yield Measure(artifact=name, measure=what, change=change, before=percent_text(was),
                  after=percent_text(is_), was=was, now=is_)  # fmt: skip


def _layer_shares(coverage: Coverage) -> dict[str, float]:
    """Return each dtype's share of the compute layers, which does not vary between runs."""
    total = sum(coverage.layers.values())
    return {dtype: count / total for dtype, count in coverage.layers.items()} if total else {}


def _compare_accuracy(name: str, was: Accuracy, now: Accuracy) -> Iterator[Measure]:
    """Yield the metric and its drop; differences within the intervals are noise."""
    if (was.metric, was.samples) != (now.metric, now.samples):
        why = f"{now.metric} of {now.samples} samples, {was.metric} of {was.samples} before"
        yield Measure(artifact=name, measure="accuracy", change=Change.INFO, why=why,
                      before=f"{was.artifact:.5g}", after=f"{now.artifact:.5g}")  # fmt: skip
        return
    margin = max(was.high - was.low, now.high - now.low) / 2
    sign = 1 if now.higher_is_better else -1
    gain = sign * (now.artifact - was.artifact)
    yield Measure(artifact=name, measure=now.metric, change=_judge_gain(gain, margin),
                  before=f"{was.artifact:.5g}", after=f"{now.artifact:.5g}",
                  was=was.artifact, now=now.artifact)  # fmt: skip
    change = _judge_gain(was.drop - now.drop, margin)
    if was.passed != now.passed and was.max_drop == now.max_drop:
        change = Change.BETTER if now.passed else Change.WORSE
    yield Measure(artifact=name, measure=f"drop of {now.metric}", change=change,
                  before=f"{was.drop:.4g}", after=f"{now.drop:.4g}", was=was.drop, now=now.drop,
                  why="" if now.passed else "drop over the limit")  # fmt: skip
