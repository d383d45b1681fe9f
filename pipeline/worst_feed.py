"""The feed on which an artifact is worst: saved as .npz, replayed, and judged again."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..core.atomic_write import draft_file
from ..core.contract import Array, Feed
from ..core.errors import ErrorCode, UsageError, first_line
from ..core.findings import WorstFeed
from ..core.manifest import Manifest
from ..core.records import Artifact
from ..core.untrusted_files import read_npz
from ..core.verdict import OutputVerdict, Verdict
from ..validators.feed_values import check_samples
from ..validators.feeds import NamedFeed
from ..validators.hill_climb import SEARCH
from ..validators.judge import ReferenceOutputs
from ..validators.ruling import Ruling
from .eager_reference import EagerReference, run_eager
from .feed_search import search_worst_feed
from .judge_case import JudgeRequest
from .output_folder import WORST_FOLDER, OutputFolder
from .reply_evidence import Evidence, JudgedEvidence

_DRAFT_FILE = "worst.npz"  # in an artifact's workplace, until it is known where the artifact goes


def find_worst_feed(asked: JudgeRequest, judged: JudgedEvidence) -> JudgedEvidence:
    """Search, where that is asked for; then write the worst feed to the candidate's `aside`.

    `place_worst_feed` takes it from there. Of the feeds that count it is one that was rejected or
    is of another form, else the one with the least headroom. Where every feed is exact it is the
    first.
    """
    found, aside = search_worst_feed(asked, judged), asked.candidate.aside
    if aside is None:
        return found.judged
    reference, output = _find_worst(found.judged.verdict, found.judged.evidence)
    draft = aside.resolve() / _DRAFT_FILE
    save_feed(reference.feed.arrays, draft)
    worst = WorstFeed(
        feed=reference.feed.name,
        output="" if output is None else output.output,
        headroom=None if output is None else output.headroom,
        file=str(draft),
        replay="",
        searched=found.tried,
        seed=found.seed,
        seconds=found.seconds,
        before=found.before,
    )
    return found.judged.plus(Ruling(worst=keep_search_record(worst, asked.recorded_worst)))


def keep_search_record(worst: WorstFeed, then: WorstFeed | None) -> WorstFeed:
    """Return the worst feed with how an earlier search found it, where it is still that feed."""
    if then is None or worst.searched or worst.feed != then.feed:
        return worst
    found = {key: getattr(then, key) for key in ("searched", "seed", "seconds", "before")}
    return replace(worst, **found)


def _find_worst(
    verdict: Verdict, evidence: Evidence
) -> tuple[ReferenceOutputs, OutputVerdict | None]:
    refused = [
        one for one, reply in evidence.pairs if reply.outputs is None and not one.feed.beyond
    ]
    if refused:
        return refused[0], None
    counted = [one for one in verdict.outputs if not one.loose]
    worst = min(counted, key=_feed_margin, default=None)
    name = evidence.references[0].feed.name if worst is None else worst.feed
    return next(one for one in evidence.references if one.feed.name == name), worst


def _feed_margin(output: OutputVerdict) -> float:
    if output.headroom is None:
        return math.inf if output.passed else -math.inf
    return output.headroom


def save_feed(arrays: Feed, path: Path) -> None:
    """Write a feed as .npz, whole or not at all."""
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    with draft_file(path) as draft, draft.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)


def read_feed(path: Path) -> Mapping[str, Array]:
    """A feed that was saved so.

    Raises:
        UsageError: the file cannot be read as one.
    """
    try:
        return read_npz(path)
    except ValueError as error:
        raise UsageError(
            f"{path} is not a feed: {first_line(error)}",
            hint="give the .npz that out/worst/ has of the artifact",
            code=ErrorCode.INVALID_MANIFEST,
        ) from error


def place_worst_feed(
    verdict: Verdict, place: OutputFolder, model: str, *, artifact: str, was: str = ""
) -> Verdict:
    """File the verdict under its artifact's name, its worst feed at `worst/<artifact>.npz`.

    The record has the command that replays the feed, which is there with the folder's next commit.

    Args:
        verdict: what was decided.
        place: the output folder, as the user named it.
        model: the artifact's model file, relative to the folder.
        artifact: the name that the artifact has now.
        was: the name that it had, whose worst feed is no more.
    """
    worst, name, folder = verdict.worst, worst_feed_path(artifact), place.path
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
    """What is on record as the artifact's worst feed."""
    verdict = manifest.verdict_of(artifact.name)
    return None if verdict is None else verdict.worst


def worst_feed_path(artifact: str) -> str:
    """Where an artifact's worst feed is, relative to the output folder."""
    return f"{WORST_FOLDER}/{artifact}.npz"


def drop_worst_feeds(place: OutputFolder, *artifacts: str) -> None:
    """Have the worst feeds of artifacts that are no more go with the folder's next commit."""
    for artifact in artifacts:
        place.remove(worst_feed_path(artifact))


REPLAY_FEED = "replay"


def add_feed(
    eager: EagerReference,
    held_out: Sequence[ReferenceOutputs],
    feed: Feed,
    *,
    name: str = REPLAY_FEED,
) -> tuple[EagerReference, str]:
    """The subject with the feed, and the feed's name: that of the same one if there is any.

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


def add_found_feed(eager: EagerReference, worst: WorstFeed | None, folder: Path) -> EagerReference:
    """The eager reference with the feed that an earlier search found, where there is one.

    Raises:
        UsageError: the feed cannot be read, or does not fit.
        CheckpointError: eager rejects it.
    """
    if worst is None or not worst.feed.startswith(SEARCH) or not (folder / worst.file).is_file():
        return eager
    return add_feed(eager, (), read_feed(folder / worst.file), name=worst.feed)[0]


def note_missing_feed(worst: WorstFeed | None, folder: Path) -> tuple[str, ...]:
    """A note where the feed that an earlier search found is no more: nothing is judged on it."""
    if worst is None or not worst.feed.startswith(SEARCH) or (folder / worst.file).is_file():
        return ()
    return (f"{worst.feed}, which an earlier search found, is not judged on: no {worst.file}",)


def _is_same_feed(one: Feed, other: Feed) -> bool:
    """Whether two feeds are equal bit for bit."""
    return all(
        array.shape == other[name].shape and array.tobytes() == other[name].tobytes()
        for name, array in one.items()
    )
