"""`--search`: looks for a feed on which an artifact that passed is worst, or wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ..core.contract import Array, Feed, Runner
from ..core.errors import CheckpointError
from ..core.kinds import Precision
from ..core.verdict import Verdict
from ..validators.edge_case_feeds import NONFINITE
from ..validators.feed_values import make_generator
from ..validators.feeds import FeedDrawer, NamedFeed
from ..validators.hill_climb import SEARCH, SearchPoint, hill_climb
from ..validators.judge import ArtifactOutputs, ReferenceOutputs
from ..validators.output_pairs import find_sample
from ..validators.ruling import Ruling
from ..validators.tolerance import margin_on_feed
from ..validators.wide_integer_feeds import WIDE
from .eager_reference import EagerReference, run_eager
from .judge_case import JudgeRequest
from .reply_evidence import Evidence, JudgedEvidence, beyond_feeds, reply_to
from .rounding_ties import judge_evidence, mark_undecided_replies
from .run_progress import Clock
from .run_reference import nonfinite_outputs

# One rounding of a value, relative to it. Where eager itself moves by half of what is allowed (6 dB
# below the limit), and at least half as far as the artifact is off, when its inputs are rounded so,
# the feed is ill-conditioned: it accuses nobody.
_UNIT_ROUNDOFF: Mapping[Precision, float] = {
    Precision.FP32: 2.0**-24,
    Precision.FP16: 2.0**-11,
    Precision.BF16: 2.0**-8,
    Precision.INT8: 2.0**-8,
}
_STEADY_DB = 6.0  # dB
# A search looks for the largest of thousands of errors, where a limit is set for those of twenty
# feeds: what it accuses an artifact of has to be twice beyond. What lies between is passed over.
_BEYOND_DB = 6.0  # dB
_CONTEXT_FEEDS = 4  # feeds that say how large an output and eager's own error usually are


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The judgment after a search, and how it went; without one, as it was.

    `before` is the headroom in dB of the worst feed before it.
    """

    judged: JudgedEvidence
    tried: int = 0
    seed: int = 0
    seconds: float = 0.0
    before: float | None = None


def search_worst_feed(asked: JudgeRequest, judged: JudgedEvidence) -> SearchResult:
    """Search for `judging.search` seconds, where that is asked for and the artifact passed.

    An artifact that is judged on held-out samples of its calibration is not searched: feeds that
    are unlike them are none of its business.
    """
    seconds, progress, evidence = asked.judging.search, asked.progress, judged.evidence
    if seconds is None or not judged.passed:
        return SearchResult(judged=judged)
    if evidence.loose - beyond_feeds(evidence.references, evidence.precision):
        note = (
            "not searched: it is judged on held-out samples, and what a search draws is unlike them"
        )
        return SearchResult(judged=judged.plus(Ruling(notes=(note,))))
    title = f"search {asked.candidate.name}"
    step = progress.step(title, log=asked.candidate.log, runs_artifact=True)
    with step as clock, asked.case.open() as runner:
        search = _FeedSearch(
            eager=asked.eager,
            runner=runner,
            evidence=evidence,
            seconds=seconds,
            advance=lambda done, total: progress.advance(title, done, total),
        )
        found = search.on(judged)
        clock.detail, clock.passed = f"{found.tried} feeds", found.judged.passed
    return found


@dataclass(frozen=True, kw_only=True)
class _FeedSearch:
    """What a search needs: eager, the artifact opened, what is known of it, and for how long."""

    eager: EagerReference
    runner: Runner
    evidence: Evidence
    seconds: float
    advance: Callable[[int, int], None]

    def on(self, judged: JudgedEvidence) -> SearchResult:
        """Climb from the worst feeds of a judgment that passed.

        A feed beyond the limits is judged again among all the others, as an output's usual scale
        is theirs, and eager has to be steady on it; only then does the verdict fail.
        """
        clock, seed = Clock(), self.eager.feeds.seed
        trial = _FeedTrial(search=self, nan=_nan_outputs(self.evidence))

        def more(tried: int) -> bool:
            del tried  # the time decides
            self.advance(min(int(clock.seconds), int(self.seconds)), math.ceil(self.seconds))
            return clock.seconds < self.seconds

        drawer = FeedDrawer.of(self.eager.signature, seed, find_sample(self.evidence.references))
        verdict = judged.verdict
        found = hill_climb(
            _pick_start_points(self.evidence, verdict), drawer, trial.headroom, more=more
        )
        seconds = clock.seconds
        if found.worst.feed.kind == SEARCH:
            longer = self.evidence.plus(*trial.run(found.worst.feed))
            now = judge_evidence(longer, self.eager)
            # What is within the limits beside few feeds may be a little beyond beside all.
            if now.passed or found.worst.headroom < 0:
                judged = judged.use_judgment(now)
        note = _describe_search(found.tried, judged.verdict, seconds)
        return SearchResult(
            judged=judged.plus(Ruling(notes=(note,))),
            tried=found.tried,
            seed=seed,
            seconds=seconds,
            before=verdict.headroom,
        )


def _describe_search(tried: int, verdict: Verdict, seconds: float) -> str:
    room = verdict.headroom
    least = "" if room is None else f"; the least headroom is {room:.1f} dB"
    worse = next((name for name in verdict.feeds if name.startswith(f"{SEARCH}-")), "")
    found = f"the worst is {worse}" if worse else "none is worse"
    return f"a search tried {tried} feeds in {seconds:.1f} s: {found}{least}"


def _pick_start_points(evidence: Evidence, verdict: Verdict) -> list[SearchPoint]:
    """The feeds that count, with the headroom that they have."""
    counted = {one.feed for one in verdict.outputs if not one.loose}
    feeds = [one.feed for one in evidence.references if one.feed.name in counted]
    return [
        SearchPoint(feed=feed, headroom=max(margin_on_feed(verdict, feed.name), 0.0))
        for feed in feeds
        if not feed.beyond and feed.kind not in (WIDE, NONFINITE)
    ]


def _nan_outputs(evidence: Evidence) -> frozenset[str]:
    found: set[str] = set()
    return frozenset(
        found.union(*(nonfinite_outputs(one.outputs) - one.left_out for one in evidence.references))
    )


@dataclass(frozen=True, kw_only=True)
class _FeedTrial:
    """Tries feeds on eager and on the artifact; `nan` are outputs that hold NaN or Inf anyway."""

    search: _FeedSearch
    nan: frozenset[str]

    def refer(self, feed: NamedFeed) -> ReferenceOutputs:
        """Eager on the feed, in float64 as well where that is what the artifact is held to."""
        reference = run_eager(self.search.eager, feed)
        known = any(one.exact is not None for one in self.search.evidence.references)
        exact = self.search.eager.model.run_exact(feed.arrays) if known else None
        return replace(reference, exact=exact)

    def run(self, feed: NamedFeed) -> tuple[ReferenceOutputs, ArtifactOutputs]:
        """Eager's answer and the artifact's."""
        reference = self.refer(feed)
        reply = reply_to(self.search.runner, reference)
        precision, eager = self.search.evidence.precision, self.search.eager
        return reference, mark_undecided_replies([reference], [reply], precision, eager)[0]

    def headroom(self, feed: NamedFeed) -> float | None:
        """The headroom in dB on this feed; None where it is no evidence."""
        try:
            reference, reply = self.run(feed)
        except CheckpointError:  # eager rejects it
            return None
        if nonfinite_outputs(reference.outputs) - self.nan:
            return None
        few = margin_on_feed(self._context.plus(reference, reply).verdict(), feed.name)
        if few >= 0:
            return few
        longer = self.search.evidence.plus(reference, reply)
        room = margin_on_feed(judge_evidence(longer, self.search.eager).verdict, feed.name)
        if -_BEYOND_DB < room < 0 or (room < 0 and not self._steady(reference, room)):
            return None
        return room

    @cached_property
    def _context(self) -> Evidence:
        """The evidence on its smallest feeds alone: judging is to cost less than running."""
        evidence = self.search.evidence
        near = [pair for pair in evidence.pairs if pair[0].feed.kind in ("shape", "seed", "sample")]
        near = sorted(near, key=lambda pair: sum(a.size for a in pair[0].outputs.values()))
        return evidence.of(near[:_CONTEXT_FEEDS])

    def _steady(self, reference: ReferenceOutputs, room: float) -> bool:
        """Whether eager says about the same, beside the artifact, when its inputs are rounded."""
        feed = reference.feed
        arrays = _perturb(feed.arrays, _UNIT_ROUNDOFF[self.search.evidence.precision])
        try:
            outputs = self.refer(replace(feed, arrays=arrays)).outputs
        except CheckpointError:
            return False
        moved = self.search.evidence.plus(
            reference, ArtifactOutputs(outputs=_copy_outputs(outputs))
        ).verdict()
        return margin_on_feed(moved, feed.name) >= min(_STEADY_DB, room + _STEADY_DB)


def _perturb(feed: Feed, unit: float) -> Feed:
    """Floats off by up to one rounding, up or down by chance."""
    import numpy as np

    found = {}
    for name, array in feed.items():
        found[name] = array
        if array.dtype.kind == "f":
            off = make_generator("rounding", name).uniform(-unit, unit, array.shape)
            found[name] = np.asarray(array * (1 + off)).astype(array.dtype)
    return found


def _copy_outputs(outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Copies: a judge refuses arrays that are eager's own."""
    return {name: array.copy() for name, array in outputs.items()}
