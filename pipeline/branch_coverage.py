"""Check branches on tensor data: what a capture froze, and what that means for the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoints.data_branches import BranchReport, DataBranch
from ..checkpoints.user_code import shorten_path
from ..core.errors import ErrorCode, UsageError, join_some
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

_MAX_LISTED = 8  # branches to list in a message
_MAX_SHOWN = 3  # untested branches to name in a reason
_MAX_DETAILED = 3  # feeds to name that take the other branch
BRANCH_KEEPING = (Capture.EXPORT, Capture.SCRIPT)  # captures that may keep what a trace freezes
_PATCH_HINT = "change that line in a copy, with --patch PKG.MOD:FN"


@dataclass(frozen=True, kw_only=True)
class BranchCoverage:
    """The observed branches of the model, and those that the user accepts."""

    watched: BranchReport
    accept: tuple[str, ...] = ()
    then: tuple[BranchRecord, ...] = ()

    @property
    def records(self) -> tuple[BranchRecord, ...]:
        """The records for the manifest."""
        found = (one.record for one in self.watched.found)
        return tuple(replace(record, accepted=self.accepts(record)) for record in found)

    def accepts(self, record: BranchRecord) -> bool:
        """Return whether the user accepts the branch, by its line and the end of its path."""
        before = {one.place for one in self.then if one.accepted}
        return any(self._means(text, record, then=text in before) for text in self.accept)

    def relocate_places(self, frozen: Sequence[str] | None) -> tuple[str, ...] | None:
        """Map places in the manifest to their current lines; keep places that are gone."""
        if frozen is None:
            return None
        records = [one.record for one in self.watched.found]
        now = (
            [one.place for one in records if self.is_place_of(place, one)] or [place]
            for place in frozen
        )
        return tuple(dict.fromkeys(place for places in now for place in places))

    def _means(self, place: str, record: BranchRecord, *, then: bool) -> bool:
        """Whether a place refers to the branch now, or did when the manifest was written.

        Lines move: a place from that time (`then`) refers to the branch with the same condition,
        wherever it is now, and not to another branch that moved to its line.
        """
        old = [one for one in self.then if _matches_place(place, one.place)]
        found = (one.record.place for one in self.watched.found)
        if old and (then or not any(_matches_place(place, one) for one in found)):
            return any(
                (one.kind, one.condition) == (record.kind, record.condition)
                and Path(one.file).name == Path(record.file).name
                for one in old
            )
        return _matches_place(place, record.place)

    def is_place_of(self, place: str, record: BranchRecord) -> bool:
        """Whether a place in the manifest refers to the branch."""
        return self._means(place, record, then=True)


@dataclass(frozen=True, kw_only=True)
class CaptureEvidence:
    """The facts about how an artifact was captured.

    `branches` are those of the captured model, which may be a rewritten copy. `whole` are then
    those of the original model, and `patched` says whether the user wrote the rewrite. `frozen` are
    the places that the capture froze, None if unknown; `traced` says that it was nevertheless a
    trace, which may have frozen any. `untried` are captures that may keep a branch and that this
    run does not try. `is_trace` says whether the artifact comes from a trace, and `outside_torch`
    where its forward computes outside of torch.
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
        places = self.frozen or ()
        return [
            one
            for one in found
            if any(self.branches.is_place_of(place, one.record) for place in places)
        ]

    @property
    def unseen(self) -> list[str]:
        """The frozen places at which eager could not be observed."""
        fixed, is_place_of = self.frozen_branches, self.branches.is_place_of
        places = dict.fromkeys(self.frozen or ())
        return [p for p in places if not any(is_place_of(p, one.record) for one in fixed)]


def check_frozen(request: JudgeRequest, judged: Judgment) -> Ruling:
    """Reject an artifact with an unaccepted frozen branch whose other outcome no feed covers.

    If its outputs are wrong already, add which feeds take the other branch.
    """
    capture = request.capture
    if capture is None:
        return Ruling()
    branches, fixed, passed = capture.branches, capture.frozen_branches, judged.passed
    open_ones = [one for one in fixed if not branches.accepts(one.record)]
    faults = [_describe_untested(one) for one in open_ones if one.record.gap_text]
    if passed:
        faults += [
            f"{one.record.label}: it differs between feeds, and no feed shows its effect"
            for one in open_ones
            if _is_masked_value(one)
        ]
    faults += [
        f"{place}: the capture froze tensor data there, and eager could not be observed there"
        for place in capture.unseen
        if not any(_matches_place(text, place) for text in branches.accept)
    ]
    others = [_describe_frozen(one) for one in fixed if one.others]
    first: tuple[Reason, ...] = ()
    if not passed and others:
        other = _alternative_captures(capture.untried)
        hint = f"{other}; --accept-branch does not apply to a branch that feeds take"
        first = Ruling.fault(ReasonCode.BRANCH_FROZEN, *_with_hint(others, hint)).first
    if faults:
        texts = _with_hint(_first_texts(faults), _suggest_fix(fixed, branches, capture.untried))
        first = (*Ruling.fault(ReasonCode.BRANCH_UNCOVERED, *texts).first, *first)
    return Ruling(first=first, notes=tuple(_branch_notes(capture)) if passed else ())


def check_rewritten(request: JudgeRequest, judged: Judgment) -> Ruling:
    """Check branches of the model that are missing from its rewritten copy.

    A branch with only one observed outcome may have lost the other: a user's patch is rejected for
    it, unless it is accepted. A built-in rewrite preserves what the model computes, so it only gets
    a note.
    """
    capture = request.capture
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


def check_trace(request: JudgeRequest, judged: Judgment) -> Ruling:
    """Report where Python decided by tensor data in a trace: in torch's code or outside of torch.

    If the trace is wrong, computation outside of torch is the first reason.
    """
    capture = request.capture
    if capture is None or not capture.is_trace:
        return Ruling()
    if judged.passed:
        within = capture.branches.watched.within
        found = sorted(f"{shorten_path(file)}:{line}" for file, line in within)
        called = f"torch's own code, called at {', '.join(found[:_MAX_LISTED])}"
        text = f"{called}, decides by tensor data: only feeds test that"
        return Ruling(notes=(text,) if found else ())
    if not capture.outside_torch:
        return Ruling()
    text = (
        f"{capture.outside_torch}, and a trace keeps one result of that (write it with torch's "
        "operators, or change it in a copy, with --patch PKG.MOD:FN)"
    )
    return Ruling(first=(Reason(code=ReasonCode.OUTSIDE_TORCH, text=text),))


def _branch_notes(capture: CaptureEvidence) -> Iterator[str]:
    """Yield the remaining notes on the branches of an artifact that passed."""
    branches, fixed = capture.branches, capture.frozen_branches
    for one in fixed:
        if one.others:
            yield f"{_describe_frozen(one)}; the outputs agree nevertheless"
    for one in fixed:
        if one.record.gap_text and branches.accepts(one.record):
            yield f"{_describe_untested(one)}; accepted"
    yield from (f"{place}: frozen by the capture; accepted" for place in capture.unseen)
    free = [
        one for one in branches.watched.found if one not in fixed and one.record.kind != "value"
    ]
    yield from (f"{one.record.label}: {one.record.gap_text}" for one in free if one.record.untaken)
    if free and capture.frozen is None:
        yield "its capture is not on record: a trace would have frozen these"
    if branches.watched.incomplete:
        yield f"branches on tensor data could not be observed: {branches.watched.incomplete}"


def capture_from_record(
    branches: BranchCoverage, artifact: Artifact, manifest: Manifest
) -> CaptureEvidence:
    """Return the recorded facts about the capture of an existing artifact."""
    return CaptureEvidence(
        branches=branches,
        frozen=artifact.frozen,
        traced=has_unknown_trace(artifact, manifest),
        is_trace=artifact.capture in TRACES,
    )


def branch_coverage(
    eager: EagerReference, accept: Sequence[str] = (), *, then: Manifest | None = None
) -> BranchCoverage:
    """Return the model's branches on the eager reference's feeds; they are observed once.

    `then` is the manifest of artifacts that are judged again. With another seed, the example of the
    reference is not the feed that was captured, so it is not used.
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
    """Observe eager's branches on every feed, as a step of the run, and return the records.

    Args:
        eager: the eager reference.
        accept: branches that the user accepts.
        progress: the progress reporter.
        then: the manifest so far; branches accepted for its artifacts stay accepted.

    Raises:
        UsageError: an entry of `accept` matches no branch that depends on tensor data.
    """
    with progress.step("look at branches", log="eager") as clock:
        found = branch_coverage(eager, accept, then=then)
        reason = found.watched.incomplete
        clock.passed = not reason
        clock.detail = f"{len(found.records) or 'none'} on tensor data"
        if reason:  # the branches seen before the failure may be incomplete
            clock.detail = f"not observed: {reason}"
    before = () if then is None else get_accepted_branches(then)
    if not reason:
        check_accepted([text for text in accept if text not in before], found.records)
    return replace(found, accept=(*found.accept, *before)).records


def update_branches(
    manifest: Manifest, eager: EagerReference, accept: Sequence[str], progress: Progress
) -> Manifest:
    """Return the manifest with the current branches, and frozen places at their current lines."""
    records = watch_branches(eager, accept, progress, then=manifest)
    seen = branch_coverage(eager, accept, then=manifest)
    artifacts = (replace(a, frozen=seen.relocate_places(a.frozen)) for a in manifest.artifacts)
    return replace(manifest, branches=records, artifacts=tuple(artifacts))


def check_accepted(accept: Sequence[str], records: Sequence[BranchRecord]) -> None:
    """Check that each accepted branch exists."""
    places = [record.place for record in records]
    for text in accept:
        if not any(_matches_place(text, place) for place in places):
            known = ", ".join(places[:_MAX_LISTED])
            raise UsageError(
                f"--accept-branch {text} is not a branch that depends on tensor data",
                hint=f"these are: {known}" if known else "this model has none: omit the option",
                option="accept-branch",
                code=ErrorCode.UNKNOWN_NAME,
            )


def get_accepted_branches(manifest: Manifest) -> tuple[str, ...]:
    """Return the branches that were accepted when the artifacts were built."""
    return tuple(record.place for record in manifest.branches if record.accepted)


def accept_recorded(judging: Judging, manifest: Manifest) -> Judging:
    """Extend the accepted branches with those recorded in the manifest.

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
    """Return the first texts, and the number of others."""
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
    """Whether a frozen value differs between feeds without an effect on the outputs.

    Something removes the difference, as `max(1, value)` does, but may not on other feeds.
    """
    return found.record.kind == "value" and bool(found.others)


def _describe_frozen(found: DataBranch) -> str:
    what = "value" if found.record.kind == "value" else "branch"
    on = "with another value" if what == "value" else "on its other branch"
    feeds = join_some(found.others, _MAX_DETAILED)
    return f"the trace froze the {what} at {found.record.place}; {on}: {feeds}"


def _alternative_captures(untried: Sequence[Capture]) -> str:
    return f"capture it with {' or '.join(untried)}" if untried else _PATCH_HINT


def _suggest_fix(
    fixed: Sequence[DataBranch], branches: BranchCoverage, untried: Sequence[Capture]
) -> str:
    """Return the hint for branches of which no feed covers the other outcome."""
    open_ones = [one for one in fixed if one.record.gap_text or _is_masked_value(one)]
    left = [one for one in open_ones if not branches.accepts(one.record)]
    if not left:
        return _alternative_captures(untried)
    place = left[0].record.place
    return f"the capture froze it: cover it with a feed, or --accept-branch {place}"
