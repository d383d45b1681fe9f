"""Judge an artifact in an external runtime: its description there, its outputs, its concurrency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ..calibration.feed_form import FeedForm
from ..core.contract import Array, Outputs
from ..core.dims import Dim
from ..core.errors import CheckpointError, join_some
from ..core.external_runtime import (
    ConcurrentRuntime,
    Declaration,
    DescribingRuntime,
    ExternalRuntime,
    OutputForm,
)
from ..core.findings import SIZED
from ..core.kinds import ReasonCode
from ..core.records import Artifact
from ..core.verdict import State, Verdict
from ..validators.feeds import SAMPLE, FeedDrawer
from ..validators.judge import ArtifactOutputs, ReferenceOutputs
from ..validators.output_pairs import find_sample
from ..validators.ruling import Ruling
from .eager_reference import run_eager
from .held_out import loose_feeds, refer_batches
from .judge_case import JudgeRequest
from .rounding_ties import apply_second_looks
from .verdict_rules import apply_artifact_rules, judge_file, unrun_judgment

if TYPE_CHECKING:
    from .reply_evidence import Evidence, JudgedEvidence

_FEW_SIZES = 16  # of a dim: a server is asked at each of them
_MAX_SHOWN = 20  # sizes in a note
_MAX_COMPARED = 1 << 16  # elements of an output whose rows are looked for in other feeds
_MIN_ROW = 4  # elements: fewer may be those of another row by chance
_MIXED_RATIO = 0.01  # of the distance to the own row, below which a row is another feed's
_ROUNDOFF = 1e-5  # of the row's peak, which a batch of another size may change


def judge_external(runtime: ExternalRuntime, artifact: Artifact, request: JudgeRequest) -> Verdict:
    """Judge the artifact by its description there, its outputs, and requests at the same time.

    Raises:
        RunnerError: the runtime cannot open or describe the artifact.
    """
    declared = Declaration()
    if isinstance(runtime, DescribingRuntime):
        forms = find_output_forms(request.case.references)
        declared = runtime.check_declared(artifact, request.eager.signature, forms)
    if not declared.runnable:
        unrun = unrun_judgment(artifact, State.FAILED, declared.reasons)
        return unrun.plus(Ruling(notes=declared.notes)).verdict
    notes = declared.notes
    if isinstance(runtime, ConcurrentRuntime):
        request = add_each_size(request)
        notes = (*notes, *note_unasked_sizes(request))
    judged = judge_file(request).plus(Ruling(first=declared.reasons, notes=notes))
    found = apply_artifact_rules(request, judged)
    if found.passed and isinstance(runtime, ConcurrentRuntime):
        title, log = f"run {artifact.name} several times at once", f"{artifact.name}-external"
        with request.progress.step(title, log=log):
            found = found.plus(_check_concurrent(runtime, artifact, request, judged.evidence))
    return found.verdict


def add_each_size(request: JudgeRequest) -> JudgeRequest:
    """Add a feed at each size of a dim that has few: a server may have other code for one of them.

    Those of the batch are made of held-out samples too, as drawn feeds may not count.
    """
    eager, held_out = request.eager, request.held_out
    drawer = FeedDrawer.of(eager.signature, eager.feeds.seed, find_sample(eager.references))
    batch, more = FeedForm.of(eager.signature).batch, list[ReferenceOutputs]()
    for name, dim in eager.signature.free_dims.items():
        if not _has_few_sizes(dim):
            continue
        sizes = range(dim.low, dim.high + 1)
        for size in sorted({*sizes} - _find_asked_sizes(eager.references, name)):
            place = {**eager.signature.opt_sizes, name: size}
            with suppress(CheckpointError):  # the note has the sizes that were asked
                more.append(run_eager(eager, drawer.feed(f"{name}={size}", place)))
        if batch is not None and batch.name == name:
            held_out = (*held_out, *refer_batches(held_out, eager, sizes))
    found = replace(eager, references=(*eager.references, *more))
    return replace(request, eager=found, held_out=held_out)


def note_unasked_sizes(request: JudgeRequest) -> Iterator[str]:
    """Yield, for each dim whose values were not compared at all of its sizes, those that were."""
    references = (*request.eager.references, *request.held_out)
    loose = loose_feeds(request.eager, request.held_out)
    strict = [one for one in references if one.feed.name not in loose]
    for name, dim in request.eager.signature.free_dims.items():
        asked = sorted(_find_asked_sizes(strict, name))
        if not dim.bounded or len(asked) < dim.high - dim.low + 1:
            shown = join_some([str(size) for size in asked], _MAX_SHOWN)
            at = f"{shown}, and at no other size" if asked else "the size of the samples alone"
            form = _find_asked_sizes(references, name).difference(asked)
            only = join_some([str(size) for size in sorted(form)], _MAX_SHOWN)
            more = f"; only the form of the outputs was judged at {only}" if form else ""
            yield f"dim {dim} was asked at {at}{more}"


def _has_few_sizes(dim: Dim) -> bool:
    return dim.bounded and dim.high - dim.low < _FEW_SIZES


def _find_asked_sizes(references: Sequence[ReferenceOutputs], name: str) -> set[int]:
    """Return the sizes that a dim has in feeds with usual values."""
    feeds = [one.feed for one in references if one.feed.kind in (SAMPLE, *SIZED)]
    return {feed.sizes[name] for feed in feeds if name in feed.sizes}


def find_output_forms(references: Sequence[ReferenceOutputs]) -> dict[str, OutputForm]:
    """Return the forms of eager's outputs, except of those whose rank varies."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    dtypes: dict[str, str] = {}
    for reference in references:
        for name, array in reference.outputs.items():
            shapes.setdefault(name, []).append(array.shape)
            dtypes[name] = str(array.dtype)
    return {
        name: OutputForm(dtype=dtypes[name], dims=tuple(map(_common_size, *found)))
        for name, found in shapes.items()
        if len({len(shape) for shape in found}) == 1
    }


def _common_size(*sizes: int) -> int:
    return sizes[0] if len(set(sizes)) == 1 else -1


def _check_concurrent(
    runtime: ConcurrentRuntime, artifact: Artifact, request: JudgeRequest, evidence: Evidence
) -> Ruling:
    """Judge the replies to requests at the same time that differ most from those one at a time.

    In lower precisions, the limits may allow another feed's row, so rows are also looked for in
    the replies to other feeds.
    """
    alone = [(ref, reply) for ref, reply in evidence.pairs if reply.outputs is not None]
    feeds = [reference.feed.arrays for reference, _ in alone]
    replies = runtime.run_together(artifact, request.eager.signature, feeds)
    known = [reply.outputs for _, reply in alone if reply.outputs is not None]
    worst: list[ArtifactOutputs] = []
    mixed: list[str] = []
    for number, (reference, reply) in enumerate(alone):
        own = known[number]
        farthest = max(replies[number], key=lambda one: _distance(one, own), default=own)
        outputs = reply if _distance(farthest, own) == 0 else _reply_of(farthest)
        worst.append(outputs)
        if farthest is not None and outputs is not reply and _is_mixed(farthest, known, number):
            mixed.append(reference.feed.name)
    if all(new is old for new, (_, old) in zip(worst, alone, strict=True)):
        return Ruling()
    if mixed:
        text = f"rows of other requests in the outputs of feed {mixed[0]}"
        more = f" and {len(mixed) - 1} more" if len(mixed) > 1 else ""
        return Ruling.fault(ReasonCode.CONCURRENT_REQUESTS, f"{text}{more}")
    references = tuple(reference for reference, _ in alone)
    judged = apply_second_looks(
        replace(evidence, references=references, replies=tuple(worst)), request.eager
    )
    return _rule_on(judged)


def _rule_on(judged: JudgedEvidence) -> Ruling:
    if judged.passed:
        return Ruling()
    text = f"when requests are sent at the same time: {judged.verdict.reason}"
    return Ruling.fault(ReasonCode.CONCURRENT_REQUESTS, text)


def _reply_of(outputs: Outputs | None) -> ArtifactOutputs:
    return ArtifactOutputs(outputs=outputs, error="" if outputs else "rejected beside others")


def _distance(outputs: Outputs | None, own: Outputs) -> float:
    """Return the largest difference of any element; infinite if the form differs."""
    import numpy as np

    if outputs is None or outputs.keys() != own.keys():
        return float("inf")
    found = 0.0
    for name, array in outputs.items():
        expected = own[name]
        if array.shape != expected.shape or array.dtype != expected.dtype:
            return float("inf")
        same = (array == expected) | ((array != array) & (expected != expected))  # noqa: PLR0124
        if not np.all(same):
            gap = np.abs(array[~same].astype(np.float64) - expected[~same].astype(np.float64))
            found = max(found, float(np.max(np.nan_to_num(gap, nan=np.inf))))
    return found


def _is_mixed(outputs: Outputs, known: Sequence[Outputs], number: int) -> bool:
    """Whether a row is that of another feed, far nearer than that of its own."""
    return any(
        _has_foreign_row(array, known[number][name], list(_others(known, name, number, array)))
        for name, array in outputs.items()
        if array.ndim and 0 < array.size <= _MAX_COMPARED and array.dtype.kind == "f"
    )


def _others(known: Sequence[Outputs], name: str, number: int, array: Array) -> Iterator[Array]:
    for place, outputs in enumerate(known):
        other = outputs.get(name)
        if place != number and other is not None and other.shape[1:] == array.shape[1:]:
            yield other


def _has_foreign_row(array: Array, own: Array, others: Sequence[Array]) -> bool:
    import numpy as np

    if not others or array.shape != own.shape or array[:1].size < _MIN_ROW:
        return False
    pool = np.concatenate(others).astype(np.float64)
    for row, expected in zip(array.astype(np.float64), own.astype(np.float64), strict=True):
        apart = float(np.max(np.abs(row - expected)))
        if apart > _ROUNDOFF * float(np.max(np.abs(expected))):
            gaps = np.max(np.abs(pool - row), axis=tuple(range(1, pool.ndim)), initial=0.0)
            if float(np.min(gaps)) < _MIXED_RATIO * apart:
                return True
    return False
