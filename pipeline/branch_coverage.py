"""Find the data-dependent branches that a capture froze, and judge the artifact by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoints.data_branches import (
    BranchReport,
    DataBranch,
    shorten_path,
)
from ..core.errors import ErrorCode, UsageError
from ..core.findings import BranchRecord
from ..core.kinds import TRACES, Capture, ReasonCode
from ..core.manifest import Manifest
from ..core.records import Artifact
from ..core.verdict import Reason
from ..validators.ruling import Judgment, Ruling
from .recorded_run import has_unknown_trace

if TYPE_CHECKING:
    from .eager_reference import EagerReference
    from .judge_case import JudgeRequest
    from .order import Judging
    from .run_progress import Progress

_MAX_LISTED = 8  # branches that a message names
_MAX_SHOWN = 3  # untested branches that a reason names
_MAX_DETAILED = 3  # feeds that a message names for the other outcome
BRANCH_KEEPING = (Capture.EXPORT, Capture.SCRIPT)  # captures that may keep what a trace freezes
_PATCH_HINT = "change that line in a copy, with --patch PKG.MOD:FN"


@dataclass(frozen=True, kw_only=True)
class BranchCoverage:
    """Observed branches of the model, and the branches that the user accepts.

    Attributes:
        watched: branches observed while eager ran the feeds.
        accept: `FILE:LINE` places from `--accept-branch`.
        then: branch records of the manifest, when an artifact is judged again.
    """

    watched: BranchReport
    accept: tuple[str, ...] = ()
    then: tuple[BranchRecord, ...] = ()

    @property
    def records(self) -> tuple[BranchRecord, ...]:
        """Branch records for the manifest, each marked as accepted or not."""
        return tuple(replace(r, accepted=self.accepts(r)) for r in self._records)

    @property
    def _records(self) -> tuple[BranchRecord, ...]:
        return tuple(one.record for one in self.watched.found)

    def accepts(self, record: BranchRecord) -> bool:
        """Return whether the user accepts the branch, by its line and the end of its path."""
        before = {one.place for one in self.then if one.accepted}
        return any(self._means(text, record, then=text in before) for text in self.accept)

    def relocate_places(self, frozen: Sequence[str] | None) -> tuple[str, ...] | None:
        """Map recorded places to the current lines of the same branches.

        A place without a matching branch is returned unchanged.
        """
        if frozen is None:
            return None
        now = (
            [one.place for one in self._records if self._means(place, one, then=True)] or [place]
            for place in frozen
        )
        return tuple(dict.fromkeys(place for places in now for place in places))

    def _means(self, place: str, record: BranchRecord, *, then: bool) -> bool:
        """Return whether a place refers to the branch, in current or recorded lines.

        Lines move between runs. A recorded place (`then`) refers to the branch with the same
        condition, even if another branch now occupies its line.
        """
        old = [one for one in self.then if _matches_place(place, one.place)]
        if old and (then or not any(_matches_place(place, one.place) for one in self._records)):
            return any(
                (one.kind, one.condition) == (record.kind, record.condition)
                and Path(one.file).name == Path(record.file).name
                for one in old
            )
        return _matches_place(place, record.place)

    def is_place_of(self, place: str, record: BranchRecord) -> bool:
        """Return whether a place recorded in the manifest refers to the branch."""
        return self._means(place, record, then=True)


@dataclass(frozen=True, kw_only=True)
class CaptureEvidence:
    """Evidence on the capture of an artifact.

    Attributes:
        branches: branches of the captured model, which may be a rewritten copy.
        frozen: places that the capture froze; None if unknown.
        traced: whether the capture is a trace that may have frozen any branch, because `frozen`
            is not on record.
        untried: captures that can keep a branch and that this run does not try.
        whole: branches of the original model, if the captured model is a rewritten copy.
        patched: whether the user wrote one of the rewrites.
        is_trace: whether the artifact comes from a trace.
        outside_torch: where forward computes outside of torch, for a trace.
    """

    branches: BranchCoverage
    frozen: tuple[str, ...] | None = None
    traced: bool = False
    untried: tuple[Capture, ...] = BRANCH_KEEPING
    whole: BranchCoverage | None = None
    patched: bool = False
    is_trace: bool = False
    outside_torch: str = ""

    @property
    def frozen_branches(self) -> list[DataBranch]:
        """Branches that the capture froze; all of them for a trace with unknown places."""
        found = self.branches.watched.found
        if self.traced and self.frozen is None:
            return list(found)
        return [one for one in found if any(self._froze(place, one) for place in self.places)]

    @property
    def places(self) -> dict[str, None]:
        """Frozen places without duplicates, in order."""
        return dict.fromkeys(self.frozen or ())

    @property
    def unseen(self) -> list[str]:
        """Frozen places at which no branch was observed in eager."""
        fixed = self.frozen_branches
        return [p for p in self.places if not any(self._froze(p, one) for one in fixed)]

    def _froze(self, place: str, branch: DataBranch) -> bool:
        return self.branches.is_place_of(place, branch.record)


def check_frozen(asked: JudgeRequest, judged: Judgment) -> Ruling:
    """Reject an artifact with a frozen branch whose other outcome no feed covers.

    Accepted branches do not reject it. If the outputs already differ, name the feeds that take
    the other outcome of a frozen branch as the cause.
    """
    capture = asked.capture_evidence
    if capture is None:
        return Ruling()
    branches, fixed, unseen, passed = (
        capture.branches,
        capture.frozen_branches,
        capture.unseen,
        judged.passed,
    )
    open_ones = [one for one in fixed if not branches.accepts(one.record)]
    faults = [_describe_untested(one) for one in open_ones if one.record.gap_text]
    if passed:
        faults += [_describe_unseen(one) for one in open_ones if _is_masked_value(one)]
    faults += [
        f"{place}: the capture froze tensor data there, and eager could not be watched doing it"
        for place in unseen
        if not any(_matches_place(text, place) for text in branches.accept)
    ]
    others = [_describe_frozen(one) for one in fixed if one.others]
    first: tuple[Reason, ...] = ()
    if not passed and others:
        hint = f"{_alternative_captures(capture.untried)}: --accept-branch does not apply"
        first = Ruling.fault(ReasonCode.BRANCH_FROZEN, *_with_hint(others, hint)).first
    if faults:
        texts = _with_hint(_first_texts(faults), _suggest_fix(fixed, branches, capture.untried))
        first = (*Ruling.fault(ReasonCode.BRANCH_UNCOVERED, *texts).first, *first)
    return Ruling(first=first, notes=tuple(_branch_notes(capture)) if passed else ())


def check_rewritten(asked: JudgeRequest, judged: Judgment) -> Ruling:
    """Check branches that a rewritten copy of the model lacks.

    A removed branch may have lost the outcome that no feed covers. It rejects a user's patch
    unless the user accepts the branch. For a built-in rewrite, which is designed to preserve the
    results, it adds a note.
    """
    capture = asked.capture_evidence
    whole = None if capture is None else capture.whole
    if capture is None or whole is None:
        return Ruling()
    left = {one.place for one in capture.branches.records}
    untested = [one for one in whole.watched.found if one.record.gap_text]
    gone = [one for one in untested if one.record.place not in left]
    faults = [one for one in gone if capture.patched and not whole.accepts(one.record)]
    if faults:
        hint = f"cover it with a feed, or --accept-branch {faults[0].record.place}"
        texts = _with_hint(_first_texts(list(map(_describe_removed, faults))), hint)
        return Ruling.fault(ReasonCode.BRANCH_UNCOVERED, *texts)
    return Ruling(notes=tuple(map(_describe_removed, gone)) if judged.passed else ())


def check_trace(asked: JudgeRequest, judged: Judgment) -> Ruling:
    """Report where a trace depends on tensor data in torch's own code or outside of torch.

    If the trace is wrong, computation outside of torch is the first reason. If it passed, calls
    into torch code that branches on data become a note.
    """
    capture = asked.capture_evidence
    if capture is None or not capture.is_trace:
        return Ruling()
    if judged.passed:
        within = capture.branches.watched.within
        found = sorted(f"{shorten_path(file)}:{line}" for file, line in within)
        called = f"torch's own code, called at {', '.join(found[:_MAX_LISTED])}"
        text = f"{called}, decides by tensor data: only feeds judge that"
        return Ruling(notes=(text,) if found else ())
    if not capture.outside_torch:
        return Ruling()
    text = (
        f"{capture.outside_torch}, and a trace keeps what that gave once (write it with torch's "
        "operators, or change it in a copy, with --patch PKG.MOD:FN)"
    )
    return Ruling(first=(Reason(code=ReasonCode.OUTSIDE_TORCH, text=text),))


def _branch_notes(capture: CaptureEvidence) -> Iterator[str]:
    """Yield notes on the branches of an artifact that passed."""
    branches, fixed = capture.branches, capture.frozen_branches
    for one in fixed:
        if one.others:
            yield f"{_describe_frozen(one)}; it agrees all the same"
    for one in fixed:
        if one.record.gap_text and branches.accepts(one.record):
            yield f"{_describe_untested(one)}; accepted"
    yield from (f"{place}: frozen by the capture; accepted" for place in capture.unseen)
    free = [
        one for one in branches.watched.found if one not in fixed and one.record.kind != "value"
    ]
    yield from (f"{one.record.label}: {one.record.gap_text}" for one in free if one.record.untaken)
    if free and capture.frozen is None:
        yield "how it was captured is not on record: a trace would have frozen these"
    if branches.watched.incomplete:
        yield f"branches on tensor data could not be looked for: {branches.watched.incomplete}"


def capture_from_record(
    branches: BranchCoverage, artifact: Artifact, manifest: Manifest
) -> CaptureEvidence:
    """Return the capture evidence that the manifest holds for an existing artifact."""
    return CaptureEvidence(
        branches=branches,
        frozen=artifact.frozen,
        traced=has_unknown_trace(artifact, manifest),
        is_trace=artifact.capture in TRACES,
    )


def branch_coverage(
    eager: EagerReference, accept: Sequence[str] = (), *, then: Manifest | None = None
) -> BranchCoverage:
    """Return the model's branches on the feeds of the eager reference.

    Eager is watched once; later calls reuse the result.

    Args:
        eager: the eager reference.
        accept: branches that the user accepts, as `FILE:LINE`.
        then: the manifest of the artifacts that are judged again. If its seed differs, the
            example is not the feed that was captured, so it is not compared.
    """
    feeds = [(one.feed.name, one.feed.arrays) for one in eager.references]
    same = then is None or then.feeds.seed == eager.feeds.seed
    return BranchCoverage(
        watched=eager.model.branches(feeds, eager.example if same else None),
        accept=tuple(accept),
        then=() if then is None else then.branches,
    )


def watch_branches(
    eager: EagerReference,
    accept: Sequence[str],
    progress: Progress,
    *,
    then: Manifest | None = None,
) -> tuple[BranchRecord, ...]:
    """Watch eager on every feed as a separate progress step, and return the branch records.

    Args:
        eager: the eager reference.
        accept: branches that the user accepts, as `FILE:LINE`.
        progress: receives the progress events.
        then: the existing manifest; branches accepted in it stay accepted.

    Raises:
        UsageError: an entry of `accept` matches no branch that depends on tensor data.
    """
    with progress.step("look at branches", log="eager") as clock:
        found = branch_coverage(eager, accept, then=then)
        reason = found.watched.incomplete
        clock.passed = not reason
        clock.detail = f"{len(found.records) or 'none'} on tensor data"
        if reason:  # the branches found so far may be incomplete
            clock.detail = f"not watched: {reason}"
    before = () if then is None else get_accepted_branches(then)
    if not reason:
        _check_accepted([text for text in accept if text not in before], found.records)
    return replace(found, accept=(*found.accept, *before)).records


def update_branches(
    manifest: Manifest, eager: EagerReference, accept: Sequence[str], progress: Progress
) -> Manifest:
    """Return the manifest with current branch records, and frozen places at current lines."""
    records = watch_branches(eager, accept, progress, then=manifest)
    seen = branch_coverage(eager, accept, then=manifest)
    artifacts = (replace(a, frozen=seen.relocate_places(a.frozen)) for a in manifest.artifacts)
    return replace(manifest, branches=records, artifacts=tuple(artifacts))


def _check_accepted(accept: Sequence[str], records: Sequence[BranchRecord]) -> None:
    """Raise UsageError if an accepted place matches no branch."""
    places = [record.place for record in records]
    for text in accept:
        if not any(_matches_place(text, place) for place in places):
            known = ", ".join(places[:_MAX_LISTED])
            raise UsageError(
                f"--accept-branch {text} names no branch that depends on tensor data",
                hint=f"these do: {known}" if known else "this model has none: leave it out",
                option="accept-branch",
                code=ErrorCode.UNKNOWN_NAME,
            )


def get_accepted_branches(manifest: Manifest) -> tuple[str, ...]:
    """Return the places of the branches that the manifest records as accepted."""
    return tuple(record.place for record in manifest.branches if record.accepted)


def accept_recorded(judging: Judging, manifest: Manifest) -> Judging:
    """Return `judging` extended by the branches that the manifest records as accepted.

    An untrusted manifest adds nothing.
    """
    if not judging.trusts_record:
        return judging
    return replace(judging, accept=(*judging.accept, *get_accepted_branches(manifest)))


def _matches_place(text: str, place: str) -> bool:
    """Return whether `text` (`FILE:LINE`) and `place` are equal, or one ends with the other."""
    text = text.removeprefix("./")
    return place == text or place.endswith(f"/{text}") or text.endswith(f"/{place}")


def _first_texts(texts: Sequence[str]) -> list[str]:
    """Return the first `_MAX_SHOWN` texts and a count of the rest."""
    more = [f"and {len(texts) - _MAX_SHOWN} more"] if len(texts) > _MAX_SHOWN else []
    return [*texts[:_MAX_SHOWN], *more]


def _with_hint(texts: Sequence[str], hint: str) -> list[str]:
    """Append the hint to the last text."""
    return [*texts[:-1], f"{texts[-1]} ({hint})"]


def _describe_untested(found: DataBranch) -> str:
    return f"{found.record.label}: {found.record.gap_text}"


def _describe_removed(found: DataBranch) -> str:
    return f"{_describe_untested(found)}, and the rewritten copy lacks it"


def _is_masked_value(found: DataBranch) -> bool:
    """Return whether a frozen value differs between feeds without affecting their outputs.

    An operation such as `max(1, value)` may mask the difference, but not on other feeds.
    """
    return found.record.kind == "value" and bool(found.others)


def _describe_unseen(found: DataBranch) -> str:
    return f"{found.record.label}: it differs between feeds, and no feed shows what it decides"


def _describe_frozen(found: DataBranch) -> str:
    what = "value" if found.record.kind == "value" else "branch"
    on = "with another value" if what == "value" else "on its other branch"
    more = (
        f" and {len(found.others) - _MAX_DETAILED} more"
        if len(found.others) > _MAX_DETAILED
        else ""
    )
    feeds = f"{', '.join(found.others[:_MAX_DETAILED])}{more}"
    return f"the trace froze the {what} at {found.record.place}; {on}: {feeds}"


def _alternative_captures(untried: Sequence[Capture]) -> str:
    return f"capture it with {' or '.join(untried)}" if untried else _PATCH_HINT


def _suggest_fix(
    fixed: Sequence[DataBranch], branches: BranchCoverage, untried: Sequence[Capture]
) -> str:
    """Return the hint for frozen branches whose other outcome no feed covers."""
    open_ones = [one for one in fixed if one.record.gap_text or _is_masked_value(one)]
    left = [one for one in open_ones if not branches.accepts(one.record)]
    if not left:
        return _alternative_captures(untried)
    place = left[0].record.place
    return f"the capture froze it: cover it with a feed, or --accept-branch {place}"
