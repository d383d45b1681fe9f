"""The rules of the verdict, in tables: a candidate is judged by its outputs, its file, its capture.

Every rule runs once, in the order of the table. It gets the request and what earlier rules found,
and returns what it adds. A rule with an expensive measurement takes it only if the rules before it
leave something to find.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from ..checkpoints.eager_probes import DiscreteOrigin
from ..core.compile_records import COMPILED
from ..core.findings import SIZED, SkippedCheck
from ..core.kinds import INTEGER_WEIGHTS, QUANTIZED, Precision, ReasonCode
from ..core.postprocess import BOXES, CLASS_IDS, COUNT, SCORES
from ..core.records import Artifact
from ..core.target_extensions import (
    Carrying,
    DefaultChecked,
    DefaultOutputs,
    HostVersioned,
    Plantable,
    SelfTuned,
    list_host_changes,
)
from ..core.verdict import DefaultRun, Reason, State, Verdict
from ..core.weights import IntegerWeighted, Weighted, read_constants
from ..validators.feeds import SAMPLE
from ..validators.judge import ArtifactOutputs, ReferenceOutputs, judge
from ..validators.rounded_weights import find_misrounded_weights
from ..validators.ruling import Judgment, Ruling
from ..validators.scaled_blocks import find_scaled_blocks
from ..validators.tolerance import TOLERANCES
from .accuracy_gate import check_accuracy
from .branch_coverage import check_frozen, check_rewritten, check_trace
from .eager_reference import EagerReference
from .extra_sizes import find_rounding_origins, run_sweep
from .fault_sensitivity import plant_faults
from .float64_reference import add_float64, note_missing_float64
from .held_out import note_held_out
from .judge_case import JudgeRequest
from .own_weights import compare_own_weights
from .program_quantization import check_quantization
from .provenance.seals import QUANTIZER_KEY, SAMPLES_KEY
from .reply_evidence import Evidence, JudgedEvidence, beyond_feeds, reply_to
from .restrict_values import restrict_inputs, restrict_values
from .rounding_ties import apply_second_looks, mark_undecided_replies
from .routing_ties import settle_routing
from .suppression_choices import settle_suppression
from .token_judge import check_tokens
from .worst_feed import find_worst_feed

Rule: TypeAlias = Callable[[JudgeRequest, JudgedEvidence], JudgedEvidence | Ruling]
"""A rule returns a ruling, or the judgment on other evidence."""


def judge_candidate(request: JudgeRequest) -> Judgment:
    """Open the candidate, run all feeds, and apply all rules.

    Raises:
        RunnerError: the runtime cannot open the model.
        MissingError: the device is missing.
        UsageError: labelled data changed, or the user's metric raised on a valid output.
    """
    return apply_artifact_rules(request, judge_file(request))


def unrun_judgment(
    artifact: Artifact, state: State, reasons: str | tuple[Reason, ...], device: str = "cpu"
) -> Judgment:
    """Return the judgment of a file that was not run; a text says how it changed, or why not."""
    if isinstance(reasons, str):
        fault = state is State.FAILED
        code = ReasonCode.CHANGED_FILE if fault else ReasonCode.NOT_RUN
        reasons = (Reason(code=code, text=reasons, fault=fault),)
    verdict = Verdict(
        artifact=artifact.name,
        state=state,
        reasons=reasons,
        device=device,
        tolerance=TOLERANCES[artifact.precision],
        feeds=(),
        outputs=(),
    )
    return Judgment(measured=verdict)


def judge_file(request: JudgeRequest) -> JudgedEvidence:
    """Open the candidate, run all feeds, and apply the rules on feeds and on the file."""
    title, candidate = f"validate {request.candidate.name}", request.candidate
    case, progress, model = request.case, request.progress, request.eager.model
    with progress.step(title, log=candidate.log, attempt=True, runs_artifact=True) as clock:
        model.release_pages()  # the runtime has its own copy of the weights now
        evidence = case.run_feeds(lambda done, total: progress.advance(title, done, total))
        model.release_pages()  # the runtime is closed
        judged = _apply_rules(FILE_RULES, request, apply_second_looks(evidence, request.eager))
        clock.detail, clock.passed = str(judged.verdict.state), judged.passed
    return judged.plus(Ruling(seconds=clock.seconds))


def apply_artifact_rules(request: JudgeRequest, judged: JudgedEvidence) -> Judgment:
    """Apply the rules on how the artifact was made and on how it performs."""
    return _apply_rules(ARTIFACT_RULES, request, judged).without_evidence


def _apply_rules(
    rules: Sequence[Rule], request: JudgeRequest, judged: JudgedEvidence
) -> JudgedEvidence:
    """Apply the rules in order; each sees what those before it found."""
    for rule in rules:
        found = rule(request, judged)
        judged = judged.plus(found) if isinstance(found, Ruling) else found
    return judged


def _sweep(request: JudgeRequest, judged: JudgedEvidence) -> JudgedEvidence | Ruling:
    """Sweep an FP32 artifact that passed over sizes and integers."""
    case, eager, evidence = request.case, request.eager, judged.evidence
    if not judged.passed or case.candidate.precision is not Precision.FP32:
        return Ruling()
    origins = find_rounding_origins(evidence, eager)
    if case.candidate.target.NAME == COMPILED:  # it has a graph of its own for each size it guards
        origins |= {DiscreteOrigin.SIZES}
    if not origins or eager.skip(SkippedCheck.SWEEP):
        return Ruling()
    inputs = restrict_inputs(eager.signature.inputs, judged.verdict.restricted_values)
    within = replace(eager, signature=replace(eager.signature, inputs=inputs))
    with case.open() as runner:
        swept, count, differing = run_sweep(evidence, within, runner, origins)
    if not differing:
        return Ruling()
    fresh = swept.references[len(evidence.references) :]
    if case.tolerance.floor_factor is not None:
        fresh = add_float64(fresh, eager, request.progress)
    references = (*evidence.references, *fresh)
    replies = mark_undecided_replies(references, swept.replies, evidence.precision, eager)
    now = apply_second_looks(replace(swept, references=references, replies=tuple(replies)), eager)
    text = f"{differing} of {count} sizes and values that were swept differ"
    if now.passed:
        return Ruling(notes=(f"{text}, within ties and noise",))
    return judged.use_judgment(now).plus(Ruling(notes=(text,)))


def _note_held_out(request: JudgeRequest, judged: JudgedEvidence) -> Ruling:
    """Note the limits of the evidence: no float64, few samples, drawn feeds unlike them."""
    case = request.case
    beyond = beyond_feeds(case.references, case.candidate.precision)
    return Ruling(
        heading=note_missing_float64(request.eager, case.tolerance),
        notes=(
            *note_held_out(judged.verdict, request.held_out, beyond),
            *request.eager.limits_note,
        ),
    )


def _check_weights(request: JudgeRequest, _: JudgedEvidence) -> Ruling:
    """Reject an artifact that holds a weight with some elements altered beyond its rounding."""
    candidate, eager = request.candidate, request.eager
    model, faults = eager.model, tuple[str, ...]()
    integers = isinstance(candidate.target, IntegerWeighted)
    same = candidate.precision is (eager.limit_precision(Precision.FP32) or Precision.FP32)
    exact = same and (integers or isinstance(candidate.target, Weighted))
    rounds = candidate.precision in INTEGER_WEIGHTS and integers
    if not (exact or rounds) or eager.skip(SkippedCheck.WEIGHTS):
        return Ruling()
    target, path = candidate.target, candidate.path
    stated = target.read_metadata(path) if isinstance(target, Carrying) else {}
    ours = QUANTIZER_KEY in stated and SAMPLES_KEY not in stated  # which rounds to nearest
    computed = partial(model.computes, eager.references[0].feed.arrays)
    if exact and (candidate.precision is Precision.FP32 or QUANTIZER_KEY not in stated):
        faults = request.find_altered_weights(read_constants(target, path))
    elif rounds and isinstance(target, IntegerWeighted):
        read = partial(target.integer_weights, path)
        faults = find_misrounded_weights(model.weights(), read(), computed=computed) if ours else ()
        if faults or not ours:  # names the scale, where that is the fault
            faults = find_scaled_blocks(model.weights(), read(), computed=computed) or faults
        floats = target.weights(path) if isinstance(target, Weighted) else ()
        faults = faults or request.find_altered_weights(floats)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return Ruling.fault(ReasonCode.WEIGHT_ALTERED, *[f"{faults[0]}{more}"] if faults else [])


def _check_compared(request: JudgeRequest, judged: JudgedEvidence) -> Ruling:
    """Reject an artifact whose outputs are empty on every feed: no value was compared.

    A detector that finds nothing gives the right shapes whatever its weights are. Suppression pads
    its lists, so they are empty where no box is left.
    """
    if not judged.passed:
        return Ruling()
    evidence = judged.evidence
    references = [one for one in evidence.references if one.feed.name not in evidence.loose]
    if {BOXES, SCORES, CLASS_IDS, COUNT} <= set(request.eager.signature.outputs):
        counted = {one.feed.name for one in _list_compared_feeds(evidence)}
        found = [one.feed.name for one in references if one.outputs[COUNT].any()]
        text = (
            "no feed gives a box, so no value was compared: give other --samples, or a lower score "
            "in --postprocess"
        )
        if found and not counted.intersection(found):
            return Ruling(notes=(f"only extreme values give boxes: {', '.join(found)}",))
        return Ruling.fault(ReasonCode.NOT_MEASURED, *[] if found else [text])
    if any(array.size for one in evidence.references for array in one.outputs.values()):
        return Ruling()
    text = "all outputs are empty on every feed, so no value was compared: give other --samples"
    return Ruling.fault(ReasonCode.NOT_MEASURED, text)


def _note_host(request: JudgeRequest, _: JudgedEvidence) -> Ruling:
    """Record the driver and the library that ran an engine; note what changed since."""
    target = request.candidate.target
    if not isinstance(target, HostVersioned):
        return Ruling()
    now = dict(target.host_versions())
    changed = list_host_changes(request.recorded_host, now)
    text = f"judged again on another host: {'; '.join(changed)}"
    return Ruling(host=now, notes=(text,) if changed else ())


# By whose limits a runtime's own precision is judged: TF32 has as many digits as FP16.
_PRECISION_OF_LIMITS = {
    "bf16": Precision.BF16,
    "fp16": Precision.FP16,
    "tf32": Precision.FP16,
    "int8": Precision.INT8,
}
_MAX_DEFAULT_FEEDS = 8  # feeds: the figure is of roundoff, which differs little between them
_LOWER_PRECISION_DB = 1.0  # dB below the SQNR as judged; a smaller loss gets no note


def _run_by_default(request: JudgeRequest, judged: JudgedEvidence) -> Ruling:
    """Measure the artifact with its runtime's defaults, if these have a lower compute precision.

    The result does not reject it: opened as it was judged, the artifact gives the judged outputs.
    The SQNR and the line of code that opens it so are noted.
    """
    candidate, eager, verdict = request.candidate, request.eager, judged.verdict
    target, evidence = candidate.target, judged.evidence
    if not verdict.passed or not isinstance(target, SelfTuned):
        return Ruling()
    opened = target.open_by_default(candidate.path, verdict.device, eager.signature)
    counted = _list_compared_feeds(evidence)[:_MAX_DEFAULT_FEEDS]
    if opened is None or not counted:
        return Ruling()
    with candidate.rename(opened.runner, eager.signature) as runner:
        replies = [reply_to(runner, one) for one in counted]
        inputs = runner.inputs
    limits = TOLERANCES[_PRECISION_OF_LIMITS[opened.compute]]
    if candidate.precision in QUANTIZED:  # whose own noise may be larger
        limits = min(limits, verdict.tolerance, key=lambda one: one.min_sqnr)
    found = judge(
        artifact=verdict.artifact,
        references=counted,
        replies=replies,
        tolerance=limits,
        device=verdict.device,
        artifact_inputs=inputs,
        signature=eager.signature,
        by_channel=False,
    )
    run = DefaultRun(
        compute=opened.compute,
        state=found.state,
        sqnr=found.sqnr,
        max_abs=found.max_abs,
        advice=opened.advice.replace("PATH", candidate.path.name),
        reason=found.reason,
    )
    return Ruling(by_default=run, notes=_default_run_notes(run, verdict))


def _list_compared_feeds(evidence: Evidence) -> list[ReferenceOutputs]:
    """Return the feeds whose values count: samples, and drawn feeds that are not judged by form."""
    kinds = (*SIZED, SAMPLE)
    return [
        one
        for one in evidence.references
        if one.feed.kind in kinds and one.feed.name not in evidence.loose
    ]


def _default_run_notes(run: DefaultRun, verdict: Verdict) -> tuple[str, ...]:
    """Return a note if the outputs are worse than those that were judged."""
    passed = run.state is State.PASSED
    if run.sqnr is None or (
        verdict.sqnr is not None and run.sqnr > verdict.sqnr - _LOWER_PRECISION_DB
    ):
        if passed:
            return ()
        result = run.reason
    else:
        result = f"SQNR {run.sqnr:.1f} dB" + ("" if passed else f", beyond {run.compute}'s limits")
    default = f"with its default settings, the runtime computes in {run.compute} on this machine"
    return (f"{default} ({result}); the settings that were judged: {run.advice}",)


def _check_default_session(request: JudgeRequest, judged: JudgedEvidence) -> Ruling:
    """Reject a file that crashes or differs with its runtime's default options.

    This applies if a copy of the file was judged. A device that lacks an operator of the model only
    gets a note: the file is meant for another one.
    """
    candidate, evidence, device = request.candidate, judged.evidence, judged.verdict.device
    target = candidate.target
    renamed = candidate.outputs or candidate.inputs
    if not judged.passed or renamed or not isinstance(target, DefaultChecked):
        return Ruling()
    counted = _list_compared_feeds(evidence)
    found = target.run_by_default(candidate.path, device, [one.feed.arrays for one in counted])
    if found is None:
        return Ruling()
    if found.unsupported:
        note = f"does not run on {device} itself; a copy was judged: {found.failure}"
        return Ruling(notes=(note,))
    fault = found.failure or _find_difference(found, counted, evidence, request.eager)
    texts = [f"with default session options: {fault}"] if fault else []
    return Ruling.fault(ReasonCode.DEFAULT_SESSION, *texts)


def _find_difference(
    found: DefaultOutputs,
    counted: list[ReferenceOutputs],
    evidence: Evidence,
    eager: EagerReference,
) -> str:
    """Return why the outputs are rejected; empty where they pass."""
    if not counted:
        return ""
    replies = [ArtifactOutputs(outputs=one) for one in found.outputs]
    verdict = evidence.compare(references=counted, replies=replies)
    if verdict.passed:
        return ""
    alone = replace(evidence, references=tuple(counted), replies=tuple(replies))
    judged = JudgedEvidence.of(alone)
    settled = settle_routing(settle_suppression(judged, eager), eager)
    return "" if settled is not judged and settled.passed else verdict.reason


def _note_record(request: JudgeRequest, _: JudgedEvidence) -> Ruling:
    return Ruling(notes=request.notes)


def _note_stored(request: JudgeRequest, judged: Judgment) -> Ruling:
    """Record stored references that were used, and what was not compared without the model."""
    stored = request.eager.stored
    if stored is None:
        return Ruling()
    floor = request.case.tolerance.floor_factor is not None
    if floor and request.eager.model.no_float64 and not stored.index.no_float64:
        request.eager.skip(SkippedCheck.FLOAT64)
    if not judged.passed:
        request.eager.skip(SkippedCheck.DIAGNOSIS)
    elif request.judging.sensitivity != 0 and isinstance(request.candidate.target, Plantable):
        request.eager.skip(SkippedCheck.SENSITIVITY)
    return Ruling(stored=stored.comparison, notes=stored.notes)


def _state_reference(request: JudgeRequest, _: Judgment) -> Ruling:
    """State what took eager's place as the reference."""
    found = request.reference or request.eager.model.reference
    if found is None:
        return Ruling()
    return Ruling(reference=found, heading=(f"reference: {found}",))


FILE_RULES: tuple[Rule, ...] = (
    restrict_values,
    _sweep,
    _note_held_out,
    _check_weights,
    check_quantization,
    compare_own_weights,
    _check_compared,
    _run_by_default,
    _check_default_session,
    _note_host,
)
"""Rules on the outputs and the bytes of a file, after those on feeds (see reply_evidence.py)."""

ARTIFACT_RULES: tuple[Rule, ...] = (
    find_worst_feed,
    _note_record,
    check_frozen,
    check_rewritten,
    check_trace,
    check_tokens,
    plant_faults,
    check_accuracy,
    _note_stored,
    _state_reference,
)
"""Rules on how the artifact was made and how it performs."""
