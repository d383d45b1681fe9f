"""Judge an artifact of integer weights beside its rounding: by eager with the same weights.

Rounding moves the outputs of 4 bits by a tenth, so an error of the graph, such as a window that is
ignored, may hide below the limits. Eager with the weights that the artifact's integers stand for
makes the same rounding errors. What is left is roundoff of float32, and is judged as FP32 is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path

from ..checkpoints.weight_exchange import WeightUses
from ..converters.quantizers.quantizer_registry import needs_no_samples
from ..core.contract import Feed, Target
from ..core.errors import CheckpointError
from ..core.findings import SkippedCheck
from ..core.generation import DecoderLoop
from ..core.kinds import WEIGHTS_ONLY, Precision, ReasonCode
from ..core.target_extensions import Carrying
from ..core.verdict import Excuse, Reason, State, Verdict
from ..core.weights import IntegerWeighted, RoundedWeight, Weighted
from ..validators.feeds import SAMPLE
from ..validators.output_pairs import VALUES
from ..validators.rounded_weights import is_rounded, list_orientations
from ..validators.ruling import Ruling
from ..validators.tolerance import TOLERANCES
from ..validators.weight_matches import WeightMatches, match_weights
from .eager_reference import EagerReference
from .float64_reference import add_float64
from .judge_case import JudgeRequest
from .provenance.seals import QUANTIZER_KEY, SAMPLES_KEY
from .reply_evidence import FeedPair, JudgedEvidence, beyond_feeds
from .rounding_ties import apply_second_looks
from .token_reference import TokenReference, find_token_reference

# Measured: 115 dB and more, beside at most 41 dB of a planted fault (docs/validation.md). A deep
# model that is below 90 dB is held to the noise of its own float64, as in FP32.
_BY_FLOOR = TOLERANCES[Precision.FP32]
_BY_TABLE = replace(_BY_FLOOR, floor_factor=None)
_MOST_ELEMENTS = 1 << 34  # of weights that are dequantized, over all feeds
_LEAST_FEEDS = 2
_NOT_COMPARED = "not compared with eager that has the same rounded weights"
_BY_SIZE = {
    ReasonCode.OUTPUT_DIFFERS,
    ReasonCode.CHANNEL_DIFFERS,
    ReasonCode.GROUP_DIFFERS,
    ReasonCode.ROWS_DISAGREE,
    ReasonCode.BESIDE_MASK,
}


def compare_own_weights(request: JudgeRequest, judged: JudgedEvidence) -> JudgedEvidence | Ruling:
    """Reject an artifact that differs from eager with the artifact's own weights.

    It applies where each of its integer matrices is a weight of the checkpoint. An artifact that
    was rejected for the size of its errors passes if it does not differ so, eager has routers, and
    its tokens are judged too: then rounding alone sends tokens to other experts.
    """
    candidate, eager = request.candidate, request.eager
    able = candidate.precision in WEIGHTS_ONLY and isinstance(candidate.target, IntegerWeighted)
    if not able or not (judged.passed or _may_be_routed(request, judged)):
        return Ruling()
    if eager.skip(SkippedCheck.WEIGHTS):
        return Ruling()
    title = f"compare {candidate.name} beside its rounding"
    with request.progress.step(title, log=candidate.log, attempt=True) as clock:
        try:
            found = judge_beside_rounding(request, judged)
        except _NotComparableError as error:
            clock.detail = "not comparable"
            return Ruling(notes=(f"{_NOT_COMPARED}: {error}",))
        verdict = found.judged.verdict
        ratio = "exact" if verdict.sqnr is None else f"SQNR {verdict.sqnr:.1f} dB"
        clock.detail, clock.passed = ratio, verdict.passed
    return _rule_on(request, judged, found)


def _rule_on(
    request: JudgeRequest, judged: JudgedEvidence, found: BesideRounding
) -> JudgedEvidence | Ruling:
    """Reject what differs, unless a weight that is rounded in another way may explain it."""
    verdict = found.judged.verdict
    method = _read_method(request)
    moved = [one for one in found.weights if not one.nearest]
    if not verdict.passed:
        kept = _find_kept(request, found)
        why = f"{kept} is there as floats too" if kept else ""
        if moved and method is not _Method.SAMPLES:
            why = f"{moved[0].name} may have a factor that the graph makes up for"
        if why:
            return Ruling(notes=(f"{_NOT_COMPARED}: {why}",))
        return Ruling(first=(_describe_fault(verdict),), notes=found.notes)
    if not judged.passed and not moved:
        judged = excuse_routed(judged)
    altered = _find_altered(request, moved) if method is _Method.NEAREST else []
    return judged.plus(Ruling(notes=found.notes), Ruling.fault(ReasonCode.WEIGHT_ALTERED, *altered))


class _Method(Enum):
    """How an artifact's weights were rounded, as far as it is known."""

    NEAREST = "by modelc, to nearest"
    SAMPLES = "by modelc on samples, without factors (GPTQ)"
    UNKNOWN = "by another tool, or with factors that the graph makes up for (AWQ)"


def _read_method(request: JudgeRequest) -> _Method:
    candidate = request.candidate
    target, path = candidate.target, candidate.path
    stated = target.read_metadata(path) if isinstance(target, Carrying) else {}
    if QUANTIZER_KEY not in stated or not needs_no_samples(target.NAME, candidate.precision):
        return _Method.UNKNOWN
    return _Method.SAMPLES if SAMPLES_KEY in stated else _Method.NEAREST


def _find_kept(request: JudgeRequest, found: BesideRounding) -> str:
    """Return a weight whose other layers stayed in floats; empty if there is none.

    Eager has one tensor for all layers that share it. Of a table for lookups, floats are expected.
    """
    candidate, own = request.candidate, request.eager.model.weights()
    shared = [
        one.name
        for one in found.weights
        if one.matrix.factor and not one.matrix.table and one.name not in found.uses.looked_up
    ]
    target = candidate.target
    for constant in target.weights(candidate.path) if isinstance(target, Weighted) else ():
        for name in shared:
            meant = list_orientations(own[name], constant.shape)
            if any((one == constant).all() for one, _ in meant):
                return name
    return ""


def _describe_fault(verdict: Verdict) -> Reason:
    wrong = [one for one in verdict.outputs if not one.passed and not one.loose]
    worst = min(wrong, key=lambda one: -math.inf if one.sqnr is None else one.sqnr, default=None)
    return Reason(
        code=ReasonCode.GRAPH_DIFFERS,
        text=f"differs from eager that has the same rounded weights: {verdict.reason}",
        fault=True,
        output="" if worst is None else worst.output,
        feed=verdict.feeds[0] if worst is None else worst.feed,
    )


def _find_altered(request: JudgeRequest, moved: Sequence[RoundedWeight]) -> list[str]:
    """Describe the first weight that should be rounded to nearest and is not.

    The graph multiplies by it as it is, or eager with it would differ. Eager itself may compute
    such a weight from its own, as by a mask.
    """
    model, feed = request.eager.model, request.eager.references[0].feed.arrays
    wrong = [
        one.name
        for one in moved
        if not model.computes(feed, partial(is_rounded, matrix=one.matrix))
    ]
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    text = "is not the checkpoint's, rounded to nearest, and no other constant makes up for it"
    return [f"the weight {wrong[0]} {text}{more}"] if wrong else []


def _may_be_routed(request: JudgeRequest, judged: JudgedEvidence) -> bool:
    """Whether only sizes of errors rejected a decoder with routers whose tokens can be judged."""
    verdict, eager = judged.verdict, request.eager
    sized = all(one.code in _BY_SIZE for one in verdict.reasons)
    formed = all(one.passed or one.form_kind in ("", VALUES) for one in verdict.outputs)
    if verdict.state is not State.FAILED or not (sized and formed and eager.model.has_module):
        return False
    loop = DecoderLoop.find([one.name for one in eager.signature.inputs], eager.signature.outputs)
    if loop is None or not eager.has_source:
        return False
    feed = eager.references[0].feed.arrays
    _, routers = eager.model.run_with_experts(feed, feed[loop.ids].size)
    return bool(routers) and isinstance(
        find_token_reference(eager, request.judging, request.progress), TokenReference
    )


def excuse_routed(judged: JudgedEvidence) -> JudgedEvidence:
    """Return the judgment without the sizes of errors, which a note states."""
    measured = judged.measured
    wrong = [one for one in measured.outputs if not one.passed]
    least = min((one.sqnr for one in wrong if one.sqnr is not None), default=None)
    ratio = "" if least is None else f", down to SQNR {least:.1f} dB"
    note = (
        f"beyond the limits on {len({one.feed for one in wrong})} feeds{ratio}, by rounding alone, "
        "which sends tokens to other experts: eager that has the same rounded weights gives the "
        "same outputs, and the tokens are judged"
    )
    outputs = tuple(
        one if one.passed else replace(one, passed=True, excuse=Excuse.EXPERTS)
        for one in measured.outputs
    )
    passed = replace(measured, state=State.PASSED, reasons=(), outputs=outputs)
    return replace(judged, measured=passed).plus(Ruling(notes=(note,)))


def find_graph_fault(verdict: Verdict) -> Reason | None:
    """Return the reason of a verdict that this comparison gave, with its worst feed."""
    return next((one for one in verdict.reasons if one.code is ReasonCode.GRAPH_DIFFERS), None)


class _NotComparableError(Exception):  # not a ModelcError: the artifact is judged without
    """Eager cannot have the artifact's weights; the message says why in one line."""


@dataclass(frozen=True, kw_only=True)
class BesideRounding:
    """The judgment beside rounding by these weights, how eager used them, and notes on it."""

    judged: JudgedEvidence
    weights: tuple[RoundedWeight, ...]
    uses: WeightUses
    notes: tuple[str, ...] = ()


def judge_beside_rounding(request: JudgeRequest, judged: JudgedEvidence) -> BesideRounding:
    """Compare the artifact's outputs with those of eager with the artifact's weights.

    Raises:
        _NotComparableError: eager cannot have these weights.
    """
    weights = _find_own_weights(request.candidate.target, request.candidate.path, request.eager)
    pairs, notes = _choose_pairs(judged, weights)
    with carry_own_weights(request.eager, weights) as (eager, uses):
        fresh = list(_run_again(pairs, eager))
        if not fresh:
            raise _NotComparableError("eager rejects all feeds with them")
        _check_uses(weights, uses)
        found = _judge_as_fp32(request, fresh, eager)
    return BesideRounding(judged=found, weights=weights, uses=uses, notes=notes)


@contextmanager
def carry_for_search(
    target: Target, path: Path, precision: Precision, eager: EagerReference, example: Feed
) -> Iterator[bool]:
    """Let eager have an artifact's weights within the context, if it can; yield whether it has.

    `example` shows whether eager uses them.
    """
    with ExitStack() as context:
        if precision not in WEIGHTS_ONLY:
            yield False
            return
        try:
            weights = _find_own_weights(target, path, eager)
            _, uses = context.enter_context(carry_own_weights(eager, weights))
            eager.model.run_with_deadline(example)
            _check_uses(weights, uses)
        except (_NotComparableError, CheckpointError):
            context.close()
            yield False
            return
        yield True


def _find_own_weights(
    target: Target, path: Path, eager: EagerReference
) -> tuple[RoundedWeight, ...]:
    """Return the weights of the checkpoint that the artifact has as integers.

    Raises:
        _NotComparableError: an integer matrix is none of them.
    """
    if not eager.model.has_module or not isinstance(target, IntegerWeighted):
        raise _NotComparableError("the reference is no module")
    matches = match_weights(eager.model.weights(), target.integer_weights(path))
    _check_matches(matches)
    return matches.weights


def _check_matches(matches: WeightMatches) -> None:
    others, count = matches.others, len(matches.weights) + len(matches.others)
    if others:
        shape = "x".join(map(str, others[0]))
        raise _NotComparableError(
            f"{len(others)} of {count} integer matrices are no weight of the checkpoint, as one of "
            f"{shape}"
        )
    if matches.ambiguous:
        raise _NotComparableError(f"the file has {matches.ambiguous[0]} in two roundings")


@contextmanager
def carry_own_weights(
    eager: EagerReference, weights: Sequence[RoundedWeight]
) -> Iterator[tuple[EagerReference, WeightUses]]:
    """Yield eager with an artifact's weights, which all its runs have within the context."""
    with eager.model.carry_weights(weights) as uses:
        yield replace(eager, exact={}, moved={}, swept={}), uses


def _choose_pairs(
    judged: JudgedEvidence, weights: Sequence[RoundedWeight]
) -> tuple[list[FeedPair], tuple[str, ...]]:
    """Return the feeds that count; of a large model, the samples and the largest others."""
    evidence = judged.evidence
    beyond = beyond_feeds(evidence.references, evidence.precision)
    calibrated = bool(evidence.loose - beyond)
    pairs = [
        one
        for one in evidence.pairs
        if one[0].feed.name not in evidence.loose | beyond
        or (one[0].feed.kind == "mask" and not calibrated)
    ]
    size = sum(math.prod(one.shape) for one in weights)
    most = max(_MOST_ELEMENTS // max(size, 1), _LEAST_FEEDS)
    if len(pairs) <= most:
        return pairs, ()
    ranked = sorted(pairs, key=lambda p: (p[0].feed.kind == SAMPLE, p[0].feed.elements))
    chosen = {one[0].feed.name for one in ranked[-most:]}
    note = (
        f"compared with eager that has the same rounded weights on {most} of {len(pairs)} feeds, "
        "as the model is large"
    )
    return [one for one in pairs if one[0].feed.name in chosen], (note,)


def _run_again(pairs: Sequence[FeedPair], eager: EagerReference) -> Iterator[FeedPair]:
    """Yield the feeds with eager's outputs now; without those that it rejects now."""
    for reference, reply in pairs:
        try:
            outputs = eager.model.run_with_deadline(reference.feed.arrays)
        except CheckpointError:
            continue
        fresh = replace(reference, outputs=outputs, exact=None, again=(), sequential=None)
        yield replace(fresh, settled=""), replace(reply, undecided={})


def _check_uses(weights: Sequence[RoundedWeight], uses: WeightUses) -> None:
    """Check that eager used all of the artifact's weights, and none of its own in their place."""
    if uses.missed:
        raise _NotComparableError(f"eager reads {next(iter(uses.missed))} outside of torch's calls")
    unused = [one.name for one in weights if one.name not in uses.used]
    if unused:
        raise _NotComparableError(f"eager has no call that reads {unused[0]}")


def _judge_as_fp32(
    request: JudgeRequest, pairs: Sequence[FeedPair], eager: EagerReference
) -> JudgedEvidence:
    """Judge within the limits of FP32, and, if that fails, by the noise of eager's float64.

    The limits are those of FP16 where floats may be in half precision, as other tools write them,
    and for batch norms. These may be folded into a weight: where the factors are nearly 1, as
    before training, it is within rounding of the checkpoint's, and eager has the factors twice.
    """
    candidate = replace(request.candidate, precision=Precision.FP32)
    names = [spec.name for spec in eager.signature.inputs]
    replies = [reply for _, reply in pairs]
    references = tuple(reference for reference, _ in pairs)
    case = replace(
        request.case, candidate=candidate, eager=eager, references=references, tolerance=_BY_TABLE,
        loose=beyond_feeds(references, Precision.FP32),
    )  # fmt: skip
    found = apply_second_looks(case.make_evidence(replies, names), eager)
    if found.passed:
        return found
    exact = add_float64(references, eager, request.progress)
    case = replace(case, references=exact, tolerance=_BY_FLOOR)
    norms = any(name.endswith("running_var") for name, _ in eager.model.module.named_buffers())
    if norms or _read_method(request) is _Method.UNKNOWN:
        half = replace(candidate, precision=Precision.FP16)
        tolerance = TOLERANCES[Precision.FP16]
        case = replace(case, candidate=half, references=references, tolerance=tolerance)
    return apply_second_looks(case.make_evidence(replies, names), eager)
