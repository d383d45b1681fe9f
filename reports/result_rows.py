"""Turn a manifest into rows of artifacts and feeds, and into a lineage tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from ..core.domain import Domain
from ..core.manifest import Failure, Manifest, Pending
from ..core.records import Artifact, size_text
from ..core.signature import Signature
from ..core.verdict import Excuse, OutputVerdict, State, Verdict
from .text_format import NO_VALUE, readable_sizes

REJECTED_PREFIX = "rejected/"  # of the names of rejected artifacts
EXAMPLE_FOLDER = "out"  # placeholder in commands: a manifest does not know its folder


@dataclass(frozen=True, kw_only=True)
class ReplayCommand:
    """A command line that repeats a part of the run, and its purpose."""

    purpose: str
    text: str


class Outcome(StrEnum):
    """State of an artifact, step or feed. `failed`: no verdict was reached."""

    PASSED = "passed"
    REJECTED = "rejected"
    FAILED = "failed"
    PENDING = "pending"
    SKIPPED = "skipped"


# Values of the manifest, of verdicts and of attempts.
STATE_OUTCOMES: Mapping[str, Outcome] = {
    State.PASSED: Outcome.PASSED,
    State.FAILED: Outcome.REJECTED,
    State.ERROR: Outcome.FAILED,
}

WORST_FIRST = (
    Outcome.REJECTED, Outcome.FAILED, Outcome.SKIPPED, Outcome.PENDING, Outcome.PASSED,
)  # fmt: skip
_EXCUSE_TEXTS = {
    Excuse.ILL_CONDITIONED: "ill-conditioned",
    Excuse.USUAL_SCALE: "far below its usual scale",
    Excuse.EXPERTS: "with tokens of other experts",
}


@dataclass(frozen=True, kw_only=True)
class FeedCase:
    """One artifact on one feed."""

    feed: str
    outcome: Outcome
    reason: str = ""
    outputs: tuple[OutputVerdict, ...] = ()

    @property
    def headroom(self) -> float | None:
        """Return the smallest margin in dB over the judged outputs, or None."""
        found = (o.headroom for o in self.outputs if o.headroom is not None and not o.loose)
        return min(found, default=None)

    @property
    def exact(self) -> bool:
        """Whether every output equals eager's bit for bit."""
        return bool(self.outputs) and all(output.exact for output in self.outputs)

    @property
    def loose(self) -> bool:
        """Whether only shape, dtype and NaN/Inf were compared."""
        return bool(self.outputs) and all(output.loose for output in self.outputs)


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One artifact, failed step or pending step, with its cases by feed."""

    name: str
    outcome: Outcome
    reason: str = ""
    cases: tuple[FeedCase, ...] = ()
    artifact: Artifact | None = None
    verdict: Verdict | None = None
    failure: Failure | None = None
    pending: Pending | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes of the verdict and the artifact, without duplicates."""
        verdict = () if self.verdict is None else self.verdict.notes
        artifact = () if self.artifact is None else self.artifact.notes
        return tuple(dict.fromkeys(map(readable_sizes, (*verdict, *artifact))))

    @property
    def is_unexplained(self) -> bool:
        """Whether the reason concerns the whole artifact rather than one feed."""
        return self.outcome not in {case.outcome for case in self.cases}


def pending_reason(pending: Pending) -> str:
    """Return why a step is pending, and which file is built already."""
    if not pending.files:
        return pending.reason
    model = pending.files[0]
    built = f"{model.name} is built ({size_text(model.size)}) and not judged yet"
    return f"{built}: {pending.reason}"


def make_rows(manifest: Manifest) -> tuple[ResultRow, ...]:
    """Return the artifacts in the manifest's order, then failed and pending steps."""
    return (
        *(_artifact_row(artifact, manifest) for artifact in manifest.artifacts),
        *(_failure_row(failure) for failure in manifest.failures),
        *(
            ResultRow(
                name=one.step, outcome=Outcome.PENDING, reason=pending_reason(one), pending=one
            )
            for one in manifest.steps_pending
        ),
    )


def verdict_outcome(verdict: Verdict | None) -> Outcome:
    """Return the outcome of a verdict; an artifact without one has failed."""
    return Outcome.FAILED if verdict is None else STATE_OUTCOMES[verdict.state]


def failure_outcome(failure: Failure) -> Outcome:
    """Return skipped if the parent is missing, rejected if only a part of the domain is valid."""
    if failure.orphan_of:
        return Outcome.SKIPPED
    return Outcome.REJECTED if failure.exit_code == 1 else Outcome.FAILED


def domain_lines(artifacts: Iterable[Artifact], asked: Signature) -> list[str]:
    """Describe the domain of the verdicts: one line if all artifacts share it.

    A narrowed dim is shown with the bounds that were requested.
    """
    by_domain: dict[str, list[str]] = {}
    for artifact in artifacts:
        if artifact.domain is not None:
            text = "; ".join([artifact.domain.describe(), *_narrow_inputs(artifact.domain, asked)])
            by_domain.setdefault(text, []).append(artifact.name)
    if len(by_domain) == 1:
        return [f"domain: {text}" for text in by_domain]
    return [f"domain of {', '.join(names)}: {text}" for text, names in by_domain.items()]


def _narrow_inputs(domain: Domain, asked: Signature) -> Iterator[str]:
    for name, dim in asked.free_dims.items():
        kept = domain.free_dims.get(name, dim)
        if not dim.chosen and (kept.low, kept.high) != (dim.low, dim.high):
            yield f"{name} narrowed from {dim.low}..{dim.high}"


def sensitivity_lines(verdicts: Iterable[Verdict | None]) -> list[str]:
    """Count the planted faults that were found, and list those that were missed."""
    known = {
        one.artifact: one.sensitivity
        for one in verdicts
        if one is not None and one.sensitivity is not None and one.sensitivity.planted
    }
    if not known:
        return []
    counts = ", ".join(f"{name} {one.found} of {one.planted}" for name, one in known.items())
    by_fault: dict[str, list[str]] = {}
    sizes: dict[str, None] = {}
    for name, one in known.items():
        for fault in one.faults_missed:
            if fault.where:
                sizes[fault.where] = None
            else:
                by_fault.setdefault(f"{fault.place} {fault.change}", []).append(name)
    more = "; --feeds N judges more sizes"
    return [
        f"planted faults found: {counts}",
        *(
            [f"  not found: faults that act only where {', or '.join(sizes)}{more}"]
            if sizes
            else []
        ),
        *(f"  not found in {', '.join(names)}: {text}" for text, names in by_fault.items()),
    ]


def sqnr_text(verdict: Verdict | None, unit: str = "") -> str:
    """Format the SQNR of an artifact in dB, as every table shows it."""
    if verdict is None:
        return NO_VALUE
    if verdict.sqnr is None:
        return "exact" if verdict.exact else NO_VALUE
    return f"{verdict.sqnr:.1f}{unit}{' (excused)' if verdict.is_excused else ''}"


def excuse_text(output: OutputVerdict) -> str:
    """Return why an output is excluded from the SQNR, or an empty string."""
    if not output.is_excused:
        return ""
    why = "roundoff decides" if output.excuse is None else _EXCUSE_TEXTS[output.excuse]
    return f"{why}, excluded from the SQNR"


def feed_names(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of the feeds in the plan, then of further feeds in verdicts."""
    drawn = (feed.name for feed in manifest.feeds.drawn)
    judged = (feed for verdict in manifest.verdicts for feed in _verdict_feeds(verdict))
    return tuple(dict.fromkeys((*drawn, *judged)))


def count_outcomes(rows: tuple[ResultRow, ...]) -> Counter[Outcome]:
    """Count the rows by outcome."""
    return Counter(row.outcome for row in rows)


def overall_outcome(rows: tuple[ResultRow, ...]) -> Outcome:
    """Return the worst outcome; a run without rows counts as failed."""
    found = {row.outcome for row in rows}
    return next((outcome for outcome in WORST_FIRST if outcome in found), Outcome.FAILED)


def _artifact_row(artifact: Artifact, manifest: Manifest) -> ResultRow:
    verdict = manifest.verdict_of(artifact.name)
    if verdict is None:
        reason = "no verdict in the manifest"
        return ResultRow(
            name=artifact.name, outcome=Outcome.FAILED, reason=reason, artifact=artifact
        )
    return ResultRow(
        name=artifact.name,
        outcome=verdict_outcome(verdict),
        reason=verdict.reason,
        cases=tuple(_verdict_cases(verdict, manifest)),
        artifact=artifact,
        verdict=verdict,
    )


def _failure_row(failure: Failure) -> ResultRow:
    reason = f"{failure.message} (hint: {failure.hint})" if failure.hint else failure.message
    outcome = failure_outcome(failure)
    return ResultRow(name=failure.step, outcome=outcome, reason=reason, failure=failure)


def _verdict_feeds(verdict: Verdict) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*verdict.feeds, *(o.feed for o in verdict.outputs))))


def _verdict_cases(verdict: Verdict, manifest: Manifest) -> Iterator[FeedCase]:
    """Yield a case for each judged feed and for each feed that eager rejects."""
    by_feed: dict[str, list[OutputVerdict]] = {}
    for output in verdict.outputs:
        by_feed.setdefault(output.feed, []).append(output)
    skipped = {feed.name: feed.skipped for feed in manifest.feeds.drawn if feed.skipped}
    for name in _verdict_feeds(verdict):
        if name not in skipped or name in by_feed:
            yield _feed_case(name, tuple(by_feed.get(name, ())), verdict)
    for name, why in skipped.items():
        if name not in by_feed:
            yield FeedCase(feed=name, outcome=Outcome.SKIPPED, reason=f"eager rejects it: {why}")


def _feed_case(feed: str, outputs: tuple[OutputVerdict, ...], verdict: Verdict) -> FeedCase:
    """Return the result on one feed; a feed without measurements never counts as passed."""
    if not outputs:
        passed = verdict.state is State.PASSED
        reason = "no output was measured on this feed" if passed else verdict.reason
        outcome = Outcome.SKIPPED if passed else Outcome.FAILED
        return FeedCase(feed=feed, outcome=outcome, reason=reason)
    wrong = [output for output in outputs if not output.passed]
    reason = "; ".join(f"output {o.output!r}: {o.reason}" for o in wrong)
    return FeedCase(
        feed=feed,
        outcome=Outcome.REJECTED if wrong else Outcome.PASSED,
        reason=reason,
        outputs=outputs,
    )


_MAX_DEPTH = 24  # levels; deeper nodes start a tree of their own


@dataclass(frozen=True, kw_only=True)
class LineageNode:
    """A checkpoint, artifact or pending step, with its descendants."""

    name: str
    description: str = ""
    digest: str = ""
    outcome: Outcome | None = None
    children: tuple[LineageNode, ...] = ()


def lineage_tree(manifest: Manifest) -> tuple[LineageNode, ...]:
    """Return the tree below the checkpoint, then the rows without a known parent.

    Parents are matched by digest. Each row appears once, even if the manifest contains cycles.
    """
    rows = [row for row in make_rows(manifest) if row.artifact or row.pending]
    left = dict(enumerate(rows))
    checkpoint = manifest.checkpoint
    root = LineageNode(
        name=checkpoint.title or "checkpoint",
        description=f"{checkpoint.kind} {checkpoint.factory or ''}".strip(),
        digest=checkpoint.digest,
        children=_take_children(checkpoint.digest, left, 1),
    )
    detached = []
    while left:
        index = next(
            (i for i, row in left.items() if not _has_parent_row(row, rows)), next(iter(left))
        )
        row = left.pop(index)
        detached.append(_make_node(row, left, 1, origin=_parent_text(row, rows)))
    return (root, *detached)


def _take_children(digest: str, left: dict[int, ResultRow], depth: int) -> tuple[LineageNode, ...]:
    """Move the descendants of `digest` from `left` into the tree."""
    if depth > _MAX_DEPTH:
        return ()
    mine = [
        left.pop(index) for index in [i for i, row in left.items() if _parent_digest(row) == digest]
    ]
    return tuple(_make_node(row, left, depth + 1) for row in mine)


def _make_node(
    row: ResultRow, left: dict[int, ResultRow], depth: int, *, origin: str = ""
) -> LineageNode:
    artifact = row.artifact
    digest = artifact.digest if artifact and artifact.files else ""
    text = f"{artifact.target} {artifact.precision}" if artifact else "not built yet"
    return LineageNode(
        name=row.name,
        description=f"{text}, made from {origin}" if origin else text,
        digest=digest,
        outcome=row.outcome,
        children=_take_children(digest, left, depth) if digest else (),
    )


def _parent_text(row: ResultRow, rows: list[ResultRow]) -> str:
    """Name the parent of a row that is not below another one."""
    made_from = row.artifact.made_from if row.artifact else ""
    made_from = row.pending.made_from if row.pending else made_from
    gone = "" if _has_parent_row(row, rows) else ", which was changed or removed"
    return f"{made_from or 'an unknown parent'}{gone}"


def _parent_digest(row: ResultRow) -> str:
    if row.artifact is not None:
        return row.artifact.parent
    return row.pending.parent if row.pending is not None else ""


def _has_parent_row(row: ResultRow, rows: list[ResultRow]) -> bool:
    return any(
        one.artifact is not None
        and one.artifact.files
        and one.artifact.digest == _parent_digest(row)
        for one in rows
        if one is not row
    )


_INT32 = 2**31 - 1


def describe_narrowed_values(artifacts: Iterable[Artifact], asked: Signature) -> list[str]:
    """Describe inputs whose chosen values an artifact covers only in part, and not up to int32.

    A format that computes in 32 bits cannot cover more.
    """
    lines: dict[str, list[str]] = {}
    whole = {spec.name: spec for spec in asked.inputs}
    for artifact in artifacts:
        for spec in () if artifact.domain is None else artifact.domain.inputs:
            values, wide = spec.values, whole.get(spec.name, spec).values
            if values is None or wide is None or not (values.chosen and wide.chosen):
                continue
            if values.high < min(wide.high, _INT32):
                stated = replace(spec, values=replace(values, low=0, high=_INT32, usual=None))
                text = (
                    f"{spec.name} is verified within {str(values)[1:-1]} only, not up to eager's "
                    f"limit: state larger values to try other captures, --input '{stated}'"
                )
                lines.setdefault(text, []).append(artifact.name)
    return [f"{', '.join(names)}: {text}" for text, names in lines.items()]
