"""Compares two manifests measure by measure: worse, better, or within the margin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from ..core.findings import Accuracy
from ..core.kinds import Precision
from ..core.manifest import Manifest
from ..core.records import Coverage, Latency
from ..core.verdict import Verdict
from .result_rows import REJECTED_PREFIX, Outcome, ResultRow, make_rows
from .text_format import (
    decibel_text,
    digest_text,
    milliseconds_text,
    one_line,
    percent_text,
    ratio,
    size_text,
)

GONE_TEXT = "gone"  # what the later run says of an artifact that it has not


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """Which run one side of the comparison is."""

    name: str
    created: str
    modelc: str
    checkpoint: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All measures of two runs, by artifact; `notes` say what makes them hard to compare."""

    before: ComparedRun
    after: ComparedRun
    measures: tuple[Measure, ...]
    notes: tuple[str, ...] = ()

    def of(self, change: Change) -> tuple[Measure, ...]:
        """The measures that changed so."""
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
    """Two manifests, the older first; `names` are what to call them, `latency` judges timings."""
    then, now = _latest_rows(before), _latest_rows(after)
    measures: list[Measure] = []
    for name in dict.fromkeys((*then, *now)):
        if name not in now:
            measures.append(_artifact_lost(then[name], name))
        elif name not in then:
            measures.append(_new_artifact(now[name], name))
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
        checkpoint=manifest.checkpoint.path.replace("\\", "/").rpartition("/")[2],
        digest=manifest.checkpoint.digest,
    )


def _run_differences(before: Manifest, after: Manifest) -> Iterator[str]:
    """What differs between the runs themselves."""
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
    """Each artifact's last state by its own name: a failed step or a refusal is its latest."""
    found: dict[str, ResultRow] = {}
    for row in make_rows(manifest):
        name = row.name.removeprefix(REJECTED_PREFIX)
        known = found.get(name)
        if known is None or row.failure is not None or row.name.startswith(REJECTED_PREFIX):
            found[name] = row
    return found


def _artifact_lost(row: ResultRow, name: str) -> Measure:
    """An artifact that is no longer made is a loss, unless it was known to be bad."""
    lost = row.outcome in (Outcome.PASSED, Outcome.PENDING)
    return Measure(artifact=name, measure="verdict", change=Change.WORSE if lost else Change.TOLD,
                   before=str(row.outcome), after=GONE_TEXT)  # fmt: skip


def _new_artifact(row: ResultRow, name: str) -> Measure:
    """Proven or not, it is neither better nor worse than what there was: there was nothing."""
    return Measure(artifact=name, measure="verdict", change=Change.NEW, before="none",
                   after=str(row.outcome), why=row.reason)  # fmt: skip


# Less than this of SQNR or headroom is noise, in dB. The same weights summed in another order, as
# by another CPU or number of threads, move the worst element of an fp32 output by a factor of two
# (6 dB); half precision rounds so coarsely that the order shows less; INT8 with the same scales
# repeats.
MARGIN_DB: Mapping[Precision, float] = {
    Precision.FP32: 6.0,
    Precision.FP16: 3.0,
    Precision.BF16: 3.0,
    Precision.INT8: 1.0,
}
# Above it an SQNR is roundoff of float32 alone (good conversions measure 115 to 145 dB), so that
# exact and 120 dB are as good as each other.
CEILING_DB = 115.0
MARGIN_SIZE = 0.01  # share: versions and names in the file's metadata change a little
MARGIN_BYTES = 4096  # the same for small files
MARGIN_LATENCY = 0.10  # share: less is no reason to choose another artifact
MARGIN_MILLISECONDS = 0.05  # less is the call, not the model
_SEARCH_PREFIX = "search-"  # how the names of feeds begin that a search found
MARGIN_SHARE = 0.01  # share of the work


class Change(StrEnum):
    """What a measure did. `noise` is a difference within the margin; `told` is not judged.

    `new` is the verdict on an artifact that only the later run has.
    """

    WORSE = "worse"
    BETTER = "better"
    NEW = "new"
    NOISE = "noise"
    SAME = "same"
    TOLD = "told"


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


_OUTCOME_RANKS = {Outcome.PASSED: 2, Outcome.PENDING: 1, Outcome.FAILED: 0, Outcome.ERROR: 0}


def compare_rows(
    name: str, then: ResultRow, now: ResultRow, *, latency: bool = False
) -> Iterator[Measure]:
    """What can be compared of an artifact that both runs have; `latency` is judged if asked for."""
    step = _OUTCOME_RANKS[now.outcome] - _OUTCOME_RANKS[then.outcome]
    change = Change.SAME if now.outcome is then.outcome else Change.TOLD
    change = Change.WORSE if step < 0 else Change.BETTER if step > 0 else change
    yield Measure(artifact=name, measure="verdict", change=change, before=str(then.outcome),
                  after=str(now.outcome), why="" if step >= 0 else now.reason)  # fmt: skip
    if then.artifact is None or now.artifact is None:
        return  # a failed or pending step has nothing else to compare
    precision = now.artifact.precision
    if then.verdict is not None and now.verdict is not None:
        yield from _compare_margins(name, then.verdict, now.verdict, MARGIN_DB[precision])
    if Outcome.PASSED not in (then.outcome, now.outcome) or step:
        return  # that a wrong artifact is small or fast says nothing
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
                      why="measured before, not now")  # fmt: skip


def _judge_gain(gain: float, margin: float) -> Change:
    """By how much a measure gained, where less than the margin is noise."""
    if gain == 0 or math.isnan(gain):
        return Change.SAME if gain == 0 else Change.TOLD
    if abs(gain) <= margin:
        return Change.NOISE
    return Change.BETTER if gain > 0 else Change.WORSE


def _compare_margins(name: str, then: Verdict, now: Verdict, margin: float) -> Iterator[Measure]:
    """SQNR, the exact one above all; then headroom, where both runs have one."""
    then, now, why = _restrict_to_shared(then, now)
    was, is_ = _smallest_sqnr(then), _smallest_sqnr(now)
    if was is not None and is_ is not None:
        gain = min(is_, CEILING_DB) - min(was, CEILING_DB)
        change = _judge_gain(gain, margin)
        change = Change.NOISE if change is Change.SAME and was != is_ else change
        change = Change.TOLD if why else change
        texts = ["exact" if math.isinf(value) else ratio(value) for value in (was, is_)]
        yield Measure(artifact=name, measure="SQNR", change=change, before=texts[0], after=texts[1],
                      was=was, now=is_, why=why)  # fmt: skip
    before, after = then.headroom, now.headroom
    if before is None or after is None:
        return
    why = why if then.tolerance == now.tolerance else "judged within other tolerances"
    change = Change.TOLD if why else _judge_gain(after - before, margin)
    yield Measure(artifact=name, measure="headroom", change=change, before=decibel_text(before),
                  after=decibel_text(after), was=before, now=after, why=why)  # fmt: skip


def _restrict_to_shared(then: Verdict, now: Verdict) -> tuple[Verdict, Verdict, str]:
    """Both verdicts on the feeds that both have, and why they cannot be compared.

    A feed that a search found is left out: it lay nearer to a limit than the others because it was
    looked for, and its name tells nothing of what it holds.
    """
    shared = _feeds_that_count(then) & _feeds_that_count(now)
    if not shared:
        return then, now, "judged on other feeds"
    return _restrict_verdict(then, shared), _restrict_verdict(now, shared), ""


def _restrict_verdict(verdict: Verdict, feeds: set[str]) -> Verdict:
    return replace(verdict, outputs=tuple(o for o in verdict.outputs if o.feed in feeds))


def _feeds_that_count(verdict: Verdict) -> set[str]:
    found = (output.feed for output in verdict.outputs if not output.loose)
    return {feed for feed in found if not feed.startswith(_SEARCH_PREFIX)}


def _smallest_sqnr(verdict: Verdict) -> float | None:
    """The smallest SQNR; infinite where nothing differs, None where nothing was measured."""
    if verdict.sqnr is None:
        return math.inf if verdict.exact else None
    return None if verdict.is_excused else verdict.sqnr


def _compare_size(name: str, was: int, now: int) -> Measure:
    change = _judge_gain(was - now, max(MARGIN_BYTES, MARGIN_SIZE * was))
    return Measure(artifact=name, measure="size", change=change, before=size_text(was),
                   after=size_text(now), was=was, now=now)  # fmt: skip


def _compare_latency(name: str, was: Latency, now: Latency, *, judged: bool) -> Measure:
    """Milliseconds. Judged is the ratio to the FP32 parent, which was timed in turn with it.

    A change counts that is larger than `MARGIN_LATENCY` and than two standard errors of the
    difference of both ratios (z test at 5 %), as each record has two of its own ratio's.
    """
    texts = (milliseconds_text(was.milliseconds), milliseconds_text(now.milliseconds))
    same = was.milliseconds == now.milliseconds
    change, why = Change.SAME if same else Change.NOISE, "timings are judged with --latency"
    if was.device != now.device:
        change, why = Change.TOLD, f"on {now.device}, on {was.device} before"
    elif judged and min(was.parent, now.parent) > 0:
        before, after = was.milliseconds / was.parent, now.milliseconds / now.parent
        error = math.hypot(was.noise * before, now.noise * after)
        clock = MARGIN_MILLISECONDS / min(was.parent, now.parent)
        change = _judge_gain(before - after, max(MARGIN_LATENCY * before, error, clock))
        why = f"{before:.2f} of its fp32 before, {after:.2f} now"
    return Measure(artifact=name, measure="latency", change=change, before=texts[0], after=texts[1],
                   why=why, was=was.milliseconds, now=now.milliseconds)  # fmt: skip


def _compare_coverage(name: str, then: ResultRow, now: ResultRow) -> Iterator[Measure]:
    """The share of the work that is done in the artifact's own precision; of layers, if timed."""
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
    """Each dtype's share of the compute layers, which is the same in every run."""
    total = sum(coverage.layers.values())
    return {dtype: count / total for dtype, count in coverage.layers.items()} if total else {}


def _compare_accuracy(name: str, was: Accuracy, now: Accuracy) -> Iterator[Measure]:
    """The metric and what the artifact loses of it; less than the intervals allow is noise."""
    if (was.metric, was.samples) != (now.metric, now.samples):
        why = f"{now.metric} of {now.samples} samples, {was.metric} of {was.samples} before"
        yield Measure(artifact=name, measure="accuracy", change=Change.TOLD, why=why,
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
                  why="" if now.passed else "over the gate")  # fmt: skip
