"""Judge a decoder over tokens: the text in one pass, and every way through its loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..core.contract import Array, Feed, Outputs
from ..core.errors import RunnerError
from ..core.findings import SkippedCheck, WorstFeed
from ..core.generation import TokenReport, TokenWay, WayKind
from ..core.kinds import ReasonCode
from ..core.verdict import State
from ..validators.ruling import Judgment, Ruling
from ..validators.token_loop import LoopRunner, Run, TokenRows
from ..validators.token_metrics import (
    TokenScores,
    find_token_reasons,
    join_rows,
    join_scores,
    measure_own_kl,
    measure_way,
    perplexity_of,
    score_tokens,
    sum_log_likelihood,
)
from .judge_case import JudgeRequest
from .token_reference import TokenCase, TokenReference, find_token_reference
from .worst_feed import TOKEN_FEED, save_feed

_TINY = 1e-30
_PART_STEPS = 8  # tokens after a prompt in two parts


def check_tokens(request: JudgeRequest, judged: Judgment) -> Ruling:
    """Measure a decoder's tokens, unless a fault of its form makes them meaningless."""
    verdict, eager, progress = judged.verdict, request.eager, request.progress
    if verdict.state is State.ERROR or verdict.faults:
        return Ruling()
    if not eager.has_source:
        if eager.feeds.tokens is not None:
            eager.skip(SkippedCheck.TOKENS)
        return Ruling()
    reference = find_token_reference(eager, request.judging, progress)
    if not isinstance(reference, TokenReference):
        return Ruling(notes=(f"tokens are not judged: {reference}",) if reference else ())
    title = f"tokens {request.candidate.name}"
    limits = verdict.tolerance.of(reference.runner.loop.logits)
    try:
        with progress.step(
            title, log=request.candidate.log, attempt=True, runs_artifact=True
        ) as clock:
            clock.passed = False
            with request.case.open() as opened:
                walk = _ArtifactWalk(
                    reference=reference,
                    runner=replace(reference.runner, run=opened.run),
                    tick=_Ticker(partial(progress.advance, title), _count_runs(reference)),
                    ties=1.0 + (limits.floor_factor or 1.0),  # eager's error and the artifact's
                    exact=limits.floor_factor is not None,
                )
                report = walk.report()
            reasons = find_token_reasons(report, limits)
            clock.passed = not reasons
            clock.detail = f"{report.text.agreement:.1%} of {report.text.tokens:,} agree"
    except RunnerError as error:
        return Ruling.fault(ReasonCode.LOOP_DIFFERS, f"its loop fails: {error.message}")
    worst = _keep_worst_feed(request, judged, reference) if reasons and verdict.passed else None
    return Ruling(tokens=report, last=reasons, worst=worst)


def _keep_worst_feed(
    request: JudgeRequest, judged: Judgment, reference: TokenReference
) -> WorstFeed | None:
    """Keep the feed of eager's loop whose logits differ most, in place of a feed that passed.

    It shows the fault of tokens alone: a step with a past, padding, or more tokens than a window.
    """
    was, runner, feeds = judged.verdict.worst, reference.runner, list[dict[str, Array]]()
    if was is None:
        return None

    def record(feed: Feed) -> Outputs:
        feeds.append(dict(feed))
        return runner.run(feed)

    walks = [(case.rows, reference.sizes.parts(case.rows.length)) for case in reference.text[:1]]
    for kind in (WayKind.PADDED, WayKind.LONGEST):
        if kind in reference.cases:
            rows = reference.cases[kind].rows
            most = reference.sizes.parts(rows.length)
            steps = (reference.prompt, *[1] * (rows.length - reference.prompt))
            walks.append((rows, steps if kind is WayKind.PADDED else most))
    for rows, parts in walks:
        replace(runner, run=record).walk(rows, parts, lambda: None)
    with request.case.open() as opened:
        errors = [_logits_error(runner, opened.run, feed) for feed in feeds]
    feed = feeds[max(range(len(feeds)), key=lambda index: errors[index])]
    save_feed(feed, Path(was.file))
    logits = runner.loop.logits
    return replace(was, feed=TOKEN_FEED, output=logits, headroom=None, searched=0, before=None)


def _logits_error(runner: LoopRunner, run: Run, feed: Feed) -> float:
    """Return the artifact's error of the logits, relative to eager's."""
    import numpy as np

    eager, found = (one(feed)[runner.loop.logits].astype(np.float64) for one in (runner.run, run))
    return float(np.linalg.norm(found - eager)) / max(float(np.linalg.norm(eager)), _TINY)


class _Ticker:
    """Counts runs of the artifact for the progress."""

    def __init__(self, advance: Callable[[int, int], object], total: int) -> None:
        self._advance, self._total, self._done = advance, total, 0

    def __call__(self) -> None:
        """Report one more run."""
        self._done += 1
        self._advance(min(self._done, self._total), self._total)


def _count_runs(reference: TokenReference) -> int:
    """Estimate the number of runs of an artifact."""
    case = reference.cases.get(WayKind.PADDED)
    steps = 0 if case is None else case.rows.length - reference.prompt
    return len(reference.text) + 2 * steps + (_PART_STEPS + 8 if steps else 0)


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """Rows of a way with eager's and the artifact's logits; `own` are those of its single pass."""

    rows: TokenRows
    eager: Array
    artifact: Array
    own: Array | None = None

    def skip(self, count: int) -> _Piece:
        """Return it without the first so many tokens of each row."""
        return _Piece(
            rows=self.rows.take(tokens=slice(count, None)),
            eager=self.eager[:, count:],
            artifact=self.artifact[:, count:],
            own=None if self.own is None else self.own[:, count:],
        )


@dataclass(frozen=True, kw_only=True)
class _ArtifactWalk:
    """Takes an artifact through the ways of its reference.

    Margins within `ties` times eager's own error are ties; `exact` measures this in float64.
    """

    reference: TokenReference
    runner: LoopRunner
    tick: Callable[[], object]
    ties: float
    exact: bool

    def report(self) -> TokenReport:
        """Return how far the artifact is from eager on each way.

        Raises:
            RunnerError: the artifact rejects a feed.
        """
        scores, likely = [], [0.0, 0.0]
        for case in self.reference.text:
            logits = self._pass(case.rows)
            scores.append(score_tokens(case.logits, logits))
            likely[0] += sum_log_likelihood(case.logits, case.rows)
            likely[1] += sum_log_likelihood(logits, case.rows)
        rows = join_rows([case.rows for case in self.reference.text])
        text = self._summarise(WayKind.TEXT, scores, rows)
        ways = tuple(self._measure(kind, pieces) for kind, pieces in self._ways())
        followers = rows.ids.size - len(rows.ids)
        longest = max(rows.length, *(one.rows.length for one in self.reference.cases.values()), 0)
        return TokenReport(
            source=Path(self.reference.plan.source).name,
            ways=(text, *ways),
            eager_perplexity=perplexity_of(likely[0], followers),
            perplexity=perplexity_of(likely[1], followers),
            longest=longest,
        )

    def _summarise(self, kind: WayKind, scores: Sequence[TokenScores], rows: TokenRows) -> TokenWay:
        noise = partial(self.reference.noise, exact=self.exact)
        return measure_way(kind, join_scores(scores), rows, noise, factor=self.ties)

    def _measure(self, kind: WayKind, pieces: Sequence[_Piece]) -> TokenWay:
        scores = [score_tokens(one.eager, one.artifact) for one in pieces]
        way = self._summarise(kind, scores, join_rows([one.rows for one in pieces]))
        own = (measure_own_kl(p.own, p.artifact, p.rows) for p in pieces if p.own is not None)
        return replace(way, own_kl=max(own, default=None))

    def _pass(self, rows: TokenRows) -> Array:
        """Return the logits of all tokens in one pass."""
        logits, _ = self.runner.advance(rows, 0, self.runner.empty_cache(len(rows.ids)))
        self.tick()
        return logits

    def _in_parts(self, rows: TokenRows, eager: Array, parts: Sequence[int]) -> _Piece:
        """Run the rows in these parts, and in the largest ones that the domain allows.

        Padded rows run alone in these, so that a mask that is wrong in both is seen.
        """
        artifact = self.runner.walk(rows, parts, self.tick).logits
        own, sizes = None, self.reference.sizes
        if self.reference.alone and not rows.mask.all():
            own = self.runner.run_alone(rows, sizes, self.tick)
        elif (largest := sizes.parts(rows.length)) != tuple(parts):
            own = self.runner.walk(rows, largest, self.tick).logits
        return _Piece(rows=rows, eager=eager, artifact=artifact, own=own)

    def _ways(self) -> Iterator[tuple[WayKind, list[_Piece]]]:
        """Yield the ways beside the text in one pass."""
        reference = self.reference
        if not reference.cases:
            return
        padded, longest = reference.cases[WayKind.PADDED], reference.cases[WayKind.LONGEST]
        prompt, one = reference.prompt, slice(0, reference.sizes.rows[0])
        steps = [1] * (padded.rows.length - prompt)
        first = padded.take(rows=one)
        made = self._in_parts(first.rows, first.logits, [prompt, *steps])
        yield WayKind.STEPS, [made.skip(prompt - 1)]
        if prompt > 1:
            few, half = steps[:_PART_STEPS], prompt // 2
            part = first.take(tokens=slice(0, prompt + len(few)))
            parts = [half, prompt - half, *few]
            made = self._in_parts(part.rows, part.logits, parts)
            yield WayKind.PARTS, [made.skip(prompt - 1)]
        if len(padded.rows.ids) > len(first.rows.ids):
            yield WayKind.PADDED, [self._in_parts(padded.rows, padded.logits, [prompt, *steps])]
        yield from self._reuse()
        largest = reference.sizes.parts(longest.rows.length)
        if len(largest) > 1:
            yield WayKind.LONGEST, [self._in_parts(longest.rows, longest.logits, largest)]

    def _reuse(self) -> Iterator[tuple[WayKind, list[_Piece]]]:
        """Continue one cache by two texts, then cut the longer cache back and continue that."""
        import numpy as np

        reference, runner, cut = self.reference, self.runner, self.reference.cut
        count = reference.sizes.rows[0]
        one, other = reference.text[0].repeat(count), reference.cases[WayKind.REUSED]
        start, cache = runner.advance(
            one.rows.take(tokens=slice(0, cut)), 0, runner.empty_cache(count)
        )
        first, after = runner.advance(one.rows, cut, cache)

        def piece_of(case: TokenCase, rest: Array, own: Array) -> _Piece:
            whole = np.concatenate([start, rest], axis=1)
            return _Piece(rows=case.rows, eager=case.logits, artifact=whole, own=own)

        second, _ = runner.advance(other.rows, cut, cache)
        own = self._pass(other.rows)
        yield WayKind.REUSED, [
            piece_of(one, first, self._pass(one.rows)), piece_of(other, second, own)
        ]  # fmt: skip
        if len(runner.position_axes()) == len(runner.loop.cache):
            back = runner.cut_cache(after, cut)
            third, _ = runner.advance(other.rows, cut, back)
            yield WayKind.ROLLED_BACK, [piece_of(other, third, own)]
