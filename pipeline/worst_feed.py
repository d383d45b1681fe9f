"""The feed on which an artifact is worst: searched for, saved as .npz, replayed, judged again."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ..core.atomic_write import draft_file
from ..core.contract import Array, Feed, Runner
from ..core.errors import CheckpointError, ErrorCode, UsageError, first_line
from ..core.findings import SkippedCheck, WorstFeed
from ..core.kinds import Precision
from ..core.manifest import Manifest
from ..core.records import Artifact
from ..core.untrusted_files import read_npz
from ..core.verdict import OutputVerdict, Verdict
from ..validators.edge_case_feeds import NONFINITE
from ..validators.feed_values import check_samples, make_generator
from ..validators.feeds import FeedDrawer, NamedFeed
from ..validators.hill_climb import SEARCH, SearchPoint, hill_climb
from ..validators.judge import ArtifactOutputs, ReferenceOutputs
from ..validators.output_pairs import find_sample
from ..validators.ruling import Ruling
from ..validators.tolerance import margin_on_feed
from ..validators.wide_integer_feeds import WIDE
from .eager_reference import EagerReference, run_eager
from .judge_case import JudgeRequest
from .output_folder import WORST_FOLDER, OutputFolder
from .own_weights import find_graph_fault
from .reply_evidence import Evidence, FeedPair, JudgedEvidence, beyond_feeds
from .rounding_ties import apply_second_looks, run_artifact
from .run_progress import Clock
from .run_reference import nonfinite_outputs

# One rounding of a value, relative to it. A feed is ill-conditioned if rounding its inputs so moves
# eager itself by half of what is allowed (6 dB below the limit), and at least by half of the
# artifact's error: then the artifact is not at fault.
_UNIT_ROUNDOFF: Mapping[Precision, float] = {
    Precision.FP32: 2.0**-24,
    Precision.FP16: 2.0**-11,
    Precision.BF16: 2.0**-8,
    Precision.INT8: 2.0**-8,
    Precision.INT8_WEIGHTS: 2.0**-24,
    Precision.INT8_DYNAMIC: 2.0**-8,
    Precision.FP8: 2.0**-4,
    Precision.INT4: 2.0**-8,  # its activations are BF16 at worst
}
_STEADY_DB = 6.0  # dB
# A search takes the largest of thousands of errors, but limits are set for those of twenty feeds:
# an error counts only at twice the limit. Errors in between are ignored.
_BEYOND_DB = 6.0  # dB
_CONTEXT_FEEDS = 4  # feeds that show the usual scale of an output and of eager's own error
TOKEN_FEED = "tokens"  # the name of a feed of a decoder's loop, where tokens alone are wrong
_DRAFT_FILE = "worst.npz"  # in an artifact's workplace, until the artifact's folder is known


def find_worst_feed(request: JudgeRequest, judged: JudgedEvidence) -> JudgedEvidence:
    """Search if `--search` asks for it, then write the worst feed to the candidate's `aside`.

    `place_worst_feed` moves it from there. Of the feeds that count, it is one that was rejected or
    is of another form, else the one with the smallest margin. If every feed is exact, it is the
    first.
    """
    judged, searched = _search_worst_feed(request, judged)
    aside = request.candidate.aside
    if aside is None:
        return judged
    reference, output = _pick_worst(judged.verdict, judged.evidence)
    draft = aside.resolve() / _DRAFT_FILE
    save_feed(reference.feed.arrays, draft)
    worst = WorstFeed(
        feed=reference.feed.name,
        output="" if output is None else output.output,
        headroom=None if output is None else output.headroom,
        file=str(draft),
        replay="",
        searched=searched.tried,
        seed=searched.seed,
        seconds=searched.seconds,
        before=searched.before,
    )
    return judged.plus(Ruling(worst=keep_search_record(worst, request.recorded_worst)))


@dataclass(frozen=True, kw_only=True)
class _SearchRecord:
    """How a search went; `before` is the margin in dB of the worst feed before it."""

    tried: int = 0
    seed: int = 0
    seconds: float = 0.0
    before: float | None = None


def _search_worst_feed(
    request: JudgeRequest, judged: JudgedEvidence
) -> tuple[JudgedEvidence, _SearchRecord]:
    """Search for `judging.search` seconds, if it is set and the artifact passed.

    An artifact that is judged on held-out samples is not searched: it need not be right on feeds
    that are unlike them.
    """
    seconds, progress, evidence = request.judging.search, request.progress, judged.evidence
    if seconds is None or not judged.passed:
        return judged, _SearchRecord()
    if evidence.loose - beyond_feeds(evidence.references, evidence.precision):
        note = "not searched: judged on held-out samples, and a search draws feeds unlike them"
        return judged.plus(Ruling(notes=(note,))), _SearchRecord()
    if request.eager.skip(SkippedCheck.SEARCH):
        return judged, _SearchRecord()
    title = f"search {request.candidate.name}"
    step = progress.step(title, log=request.candidate.log, runs_artifact=True)
    with step as clock, request.case.open() as runner:
        search = _FeedSearch(eager=request.eager, runner=runner, evidence=evidence)
        judged, searched = search.run(
            judged, seconds, lambda done, total: progress.advance(title, done, total)
        )
        clock.detail, clock.passed = f"{searched.tried} feeds", judged.passed
    return judged, searched


@dataclass(frozen=True, kw_only=True)
class _FeedSearch:
    """Tries feeds on eager and on an open artifact that passed on its evidence."""

    eager: EagerReference
    runner: Runner
    evidence: Evidence

    def run(
        self, judged: JudgedEvidence, seconds: float, advance: Callable[[int, int], None]
    ) -> tuple[JudgedEvidence, _SearchRecord]:
        """Search from the worst feeds of a judgment that passed.

        A feed beyond the limits is judged again among all others, whose outputs define the usual
        scale, and eager has to be steady on it; only then does the verdict fail.
        """
        clock, seed = Clock(), self.eager.feeds.seed

        def more(tried: int) -> bool:
            del tried  # the time decides
            advance(min(int(clock.seconds), int(seconds)), math.ceil(seconds))
            return clock.seconds < seconds

        drawer = FeedDrawer.of(self.eager.signature, seed, find_sample(self.evidence.references))
        before = judged.verdict
        found = hill_climb(
            _pick_start_points(self.evidence, before), drawer, self.margin, more=more
        )
        took = clock.seconds
        if found.worst.feed.kind == SEARCH:
            now = apply_second_looks(self.evidence.plus(*self._run(found.worst.feed)), self.eager)
            # Within the limits beside few feeds, it may be slightly beyond them beside all.
            if now.passed or found.worst.headroom < 0:
                judged = judged.use_judgment(now)
        note = _describe_search(found.tried, judged.verdict, took)
        return judged.plus(Ruling(notes=(note,))), _SearchRecord(
            tried=found.tried, seed=seed, seconds=took, before=before.headroom
        )

    def _run(self, feed: NamedFeed) -> FeedPair:
        return run_artifact(run_eager(self.eager, feed), self.evidence, self.eager, self.runner)

    def margin(self, feed: NamedFeed) -> float | None:
        """Return the margin in dB on this feed; None if the feed is no evidence."""
        try:
            reference, reply = self._run(feed)
        except CheckpointError:  # eager rejects it
            return None
        if nonfinite_outputs(reference.outputs) - self._nonfinite:
            return None
        few = margin_on_feed(self._context.plus(reference, reply).verdict, feed.name)
        if few >= 0:
            return few
        longer = self.evidence.plus(reference, reply)
        margin = margin_on_feed(apply_second_looks(longer, self.eager).verdict, feed.name)
        if -_BEYOND_DB < margin < 0 or (margin < 0 and not self._is_steady(reference, margin)):
            return None
        return margin

    @cached_property
    def _nonfinite(self) -> frozenset[str]:
        """Outputs that hold NaN or Inf on the feeds of the evidence."""
        found = (nonfinite_outputs(r.outputs) - r.left_out for r in self.evidence.references)
        return frozenset().union(*found)

    @cached_property
    def _context(self) -> Evidence:
        """The evidence on its smallest feeds alone, so that judging costs less than running."""
        pairs = [p for p in self.evidence.pairs if p[0].feed.kind in ("shape", "seed", "sample")]
        pairs.sort(key=lambda pair: sum(a.size for a in pair[0].outputs.values()))
        return self.evidence.of(pairs[:_CONTEXT_FEEDS])

    def _is_steady(self, reference: ReferenceOutputs, margin: float) -> bool:
        """Whether eager's outputs move little, compared with the artifact's, on rounded inputs."""
        feed = reference.feed
        arrays = _perturb(feed.arrays, _UNIT_ROUNDOFF[self.evidence.precision])
        try:
            outputs = run_eager(self.eager, replace(feed, arrays=arrays)).outputs
        except CheckpointError:
            return False
        copies = {name: array.copy() for name, array in outputs.items()}  # `judge` demands its own
        moved = self.evidence.plus(reference, ArtifactOutputs(outputs=copies)).verdict
        return margin_on_feed(moved, feed.name) >= min(_STEADY_DB, margin + _STEADY_DB)


def _describe_search(tried: int, verdict: Verdict, seconds: float) -> str:
    margin = verdict.headroom
    least = "" if margin is None else f"; the smallest margin is {margin:.1f} dB"
    worse = next((name for name in verdict.feeds if name.startswith(f"{SEARCH}-")), "")
    found = f"the worst is {worse}" if worse else "none is worse"
    return f"a search tried {tried} feeds in {seconds:.1f} s: {found}{least}"


def _pick_start_points(evidence: Evidence, verdict: Verdict) -> list[SearchPoint]:
    """Return the feeds that count, with their margins."""
    counted = {one.feed for one in verdict.outputs if not one.loose}
    feeds = [one.feed for one in evidence.references if one.feed.name in counted]
    return [
        SearchPoint(feed=feed, headroom=max(margin_on_feed(verdict, feed.name), 0.0))
        for feed in feeds
        if not feed.beyond and feed.kind not in (WIDE, NONFINITE)
    ]


def _perturb(feed: Feed, unit: float) -> Feed:
    """Move floats by up to one rounding, up or down at random."""
    import numpy as np

    found = {}
    for name, array in feed.items():
        found[name] = array
        if array.dtype.kind == "f":
            off = make_generator("rounding", name).uniform(-unit, unit, array.shape)
            found[name] = np.asarray(array * (1 + off)).astype(array.dtype)
    return found


def keep_search_record(worst: WorstFeed, then: WorstFeed | None) -> WorstFeed:
    """Return the worst feed with how an earlier search found it, if it is still that feed."""
    if then is None or worst.searched or worst.feed != then.feed:
        return worst
    found = {key: getattr(then, key) for key in ("searched", "seed", "seconds", "before")}
    return replace(worst, **found)


def _pick_worst(
    verdict: Verdict, evidence: Evidence
) -> tuple[ReferenceOutputs, OutputVerdict | None]:
    rejected = [r for r, reply in evidence.pairs if reply.outputs is None and not r.feed.beyond]
    if rejected:
        return rejected[0], None
    counted = [one for one in verdict.outputs if not one.loose]
    fault = find_graph_fault(verdict)
    if fault is not None:  # which no margin of an output shows
        counted = [o for o in counted if (o.feed, o.output) == (fault.feed, fault.output)]
    worst = min(counted, key=_output_margin, default=None)
    name = evidence.references[0].feed.name if worst is None else worst.feed
    return next(one for one in evidence.references if one.feed.name == name), worst


def _output_margin(output: OutputVerdict) -> float:
    if output.headroom is None:
        return math.inf if output.passed else -math.inf
    return output.headroom


def save_feed(arrays: Feed, path: Path) -> None:
    """Write a feed as .npz, atomically."""
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    with draft_file(path) as draft, draft.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)


def read_feed(path: Path) -> Mapping[str, Array]:
    """Read a feed that `save_feed` wrote.

    Raises:
        UsageError: the file cannot be read as one.
    """
    try:
        return read_npz(path)
    except ValueError as error:
        raise UsageError(
            f"{path} is not a feed: {first_line(error)}",
            hint="give the artifact's .npz in out/worst/",
            code=ErrorCode.INVALID_MANIFEST,
        ) from error


def place_worst_feed(
    verdict: Verdict, place: OutputFolder, model: str, *, artifact: str, was: str = ""
) -> Verdict:
    """Store the verdict under its artifact's name, its worst feed as `worst/<artifact>.npz`.

    The record has the command that replays the feed, which is there after the folder's next commit.

    Args:
        verdict: the verdict on the artifact.
        place: the output folder, as the user named it.
        model: the artifact's model file, relative to the folder.
        artifact: the name that the artifact has now.
        was: the name that it had, whose worst feed is removed.
    """
    worst, name, folder = verdict.worst, _worst_feed_path(artifact), place.path
    if worst is not None and (folder / worst.file).is_file():
        place.put(folder / worst.file, name)
        words = ["modelc", "validate", str(folder / model), "--replay", str(folder / name)]
        worst = replace(worst, file=name, replay=shlex.join(words))
    else:
        worst = None
        drop_worst_feeds(place, artifact)
    if was and was != artifact:
        drop_worst_feeds(place, was)
    return verdict.file_under(artifact, worst)


def get_worst_feed(manifest: Manifest, artifact: Artifact) -> WorstFeed | None:
    """Return the artifact's worst feed on record."""
    verdict = manifest.verdict_of(artifact.name)
    return None if verdict is None else verdict.worst


def _worst_feed_path(artifact: str) -> str:
    """Return the path of an artifact's worst feed, relative to the output folder."""
    return f"{WORST_FOLDER}/{artifact}.npz"


def drop_worst_feeds(place: OutputFolder, *artifacts: str) -> None:
    """Remove the worst feeds of artifacts that no longer exist with the folder's next commit."""
    for artifact in artifacts:
        place.remove(_worst_feed_path(artifact))


def add_feed(
    eager: EagerReference,
    held_out: Sequence[ReferenceOutputs],
    feed: Feed,
    *,
    name: str = "replay",
) -> tuple[EagerReference, str]:
    """Return the eager reference with the feed, and the feed's name: an equal feed keeps its own.

    Raises:
        UsageError: the feed does not fit the signature.
        CheckpointError: eager rejects it.
    """
    arrays, sizes = check_samples(eager.signature, feed)
    for reference in (*eager.references, *held_out):
        if _is_same_feed(arrays, reference.feed.arrays):
            return eager, reference.feed.name
    reference = run_eager(eager, NamedFeed(name=name, arrays=arrays, sizes=sizes))
    return replace(eager, references=(*eager.references, reference)), name


def add_found_feed(
    eager: EagerReference, worst: WorstFeed | None, folder: Path
) -> tuple[EagerReference, tuple[str, ...]]:
    """Return the eager reference with the feed that an earlier search found, if there is one.

    If its file is gone, a note says so: nothing is judged on it.

    Raises:
        UsageError: the feed cannot be read, or does not fit.
        CheckpointError: eager rejects it.
    """
    if worst is None or not worst.feed.startswith(SEARCH):
        return eager, ()
    path = folder / worst.file
    if path.is_file():
        return add_feed(eager, (), read_feed(path), name=worst.feed)[0], ()
    note = f"{worst.feed}, which an earlier search found, is not judged on: no {worst.file}"
    return eager, (note,)


def _is_same_feed(one: Feed, other: Feed) -> bool:
    """Whether two feeds are equal bit for bit."""
    return all(
        array.shape == other[name].shape and array.tobytes() == other[name].tobytes()
        for name, array in one.items()
    )
