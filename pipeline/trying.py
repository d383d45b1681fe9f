"""One way of making a step's artifact, carried out aside and judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree

from ..converters.capture.captured_program import ScriptCapture
from ..converters.capture.refusals import find_numpy_use
from ..converters.onnx_origins import match_nodes
from ..converters.quantizers.layer_switches import can_switch
from ..core.capture import TRACES, Capture
from ..core.contract import Converted, Job, Quantized, Quantizer
from ..core.digest import record_of
from ..core.domain import Domain
from ..core.errors import ModelcError
from ..core.findings import Accuracy
from ..core.precision import Precision
from ..core.records import Coverage, FileRecord, Latency
from ..core.verdict import Reason, ReasonCode, Verdict
from ..sources.rewrites.model_copy import PATCH
from ..sources.rewrites.rewrite_table import apply_rewrites
from ..validators.edge_case_feeds import NONFINITE
from ..validators.feeds import NamedFeed
from ..validators.judge import ReferenceOutputs
from ..validators.wide_integer_feeds import WIDE
from .bench import Parent, RunContext
from .branches import BRANCH_KEEPING, RepeatableCapture, branch_coverage, find_frozen_places
from .custom_ops import load_functions
from .held_out import SAMPLES_ROLE, store_samples
from .latency import add_speed_note, measure_step_latency
from .output_axes import find_output_axes
from .placed import add_size_feeds, find_extra_sizes
from .plan import Step
from .proof import Candidate, judge_candidate
from .provenance.stating import (
    CAPTURE_KEY,
    DOMAIN_KEY,
    JUDGING_KEY,
    PARENT_KEY,
    PRECISION_KEY,
    QUANTIZER_KEY,
    digest_judging,
)
from .quantizing import QuantizationTask, quantize_parent, refuse_uncovered
from .restricting import restrict_inputs, restrict_subject
from .subject import EagerReference
from .weighing import gate_accuracy


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a step is tried: by a capture, with a quantizer, or as its target does it.

    `kept` are names of the parent's nodes that stay in floating point beside the order's own,
    `rewrites` what is changed in a copy of the model that is captured.
    """

    capture: Capture | None = None
    quantizer: Quantizer | None = None
    kept: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """How attempts call it."""
        return self.quantizer.NAME if self.quantizer else str(self.capture or "convert")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one way gave: files in their workplace, the verdict on them, what was measured.

    `judged` is the eager side that it was judged by, with the domain's inputs. `frozen` are places
    where its capture froze tensor data, None where nobody knows. `switchable` says that its
    quantizer's result shows what each layer costs.
    """

    way: Recipe
    workplace: Path
    converted: Converted
    files: tuple[FileRecord, ...]
    verdict: Verdict
    judged: EagerReference
    frozen: tuple[str, ...] | None = ()
    coverage: Coverage | None = None
    latency: Latency | None = None
    accuracy: Accuracy | None = None
    switchable: bool = False

    @property
    def size(self) -> int:
        """Bytes of what ships."""
        return sum(file.size for file in self.files if file.role not in ("debug", SAMPLES_ROLE))


def recipes_for(step: Step, rewrites: tuple[str, ...] = ()) -> tuple[Recipe, ...]:
    """The ways to try, in order; captures take the model down with these rewrites."""
    if step.quantizers:
        return tuple(Recipe(quantizer=quantizer) for quantizer in step.quantizers)
    captures = (Recipe(capture=capture, rewrites=rewrites) for capture in step.captures)
    return tuple(captures) or (Recipe(),)


def try_recipe(
    step: Step, way: Recipe, parent: Parent, bench: RunContext, *, met: Sequence[ModelcError] = ()
) -> Trial:
    """Convert in a folder of its own, then prove.

    `met` is what refused the same copy of the model before: it may be why a trace is wrong. Where
    it is right for a part of the integers alone, it is made again for that part.

    Raises:
        ConversionError: it was refused, or INT8 was asked for and no layer computes in it.
        RunnerError: the runtime would not open what was made.
    """
    source = _quantize_parent(step, way, parent, bench)
    with _use_rewritten(way, bench) as changed:
        product = _convert_step(step, way, source, parent, changed)
    if source is not None:
        rmtree(source.path.parent)  # gigabytes, and many are tried
    candidate = _product_candidate(step, product, parent, bench)
    held_out = select_held_out(step.wanted.precision, bench)
    judging = bench.order.select_judging(step.wanted)
    judged = add_size_feeds(
        bench.subject, product.converted.places, found=_extra_sizes(step, way, parent, bench)
    )
    verdict = judge_candidate(
        candidate, judged, judging, bench.stage, held_out=held_out, restrict=True
    )
    if verdict.restricted_values:
        rmtree(product.workplace)  # what it says inside of its domain is not so
        inputs = restrict_inputs(bench.subject.signature.inputs, verdict.restricted_values)
        subject = restrict_subject(bench.subject, inputs)
        return try_recipe(step, way, parent, replace(bench, subject=subject), met=met)
    with _use_rewritten(way, bench) as changed:
        branches = branch_coverage(changed.subject, bench.order.judging.accept)
        frozen = _find_frozen(step, way, parent, product.converted, changed)
    why = _find_left_torch(way, product.converted, met)
    untried = BRANCH_KEEPING if way.capture is None else () if why else _list_untried_captures(step)
    verdict = branches.judged(verdict, frozen, traced=parent.traced, untried=untried)
    if way.rewrites:
        patched = any(name.startswith(PATCH) for name in way.rewrites)
        whole = branch_coverage(bench.subject, bench.order.judging.accept)
        verdict = whole.less(verdict, branches, patched=patched)
    if way.capture in TRACES:
        verdict = _blame_left_torch(branches.traced(verdict), why)
    accuracy, verdict = gate_accuracy(candidate, verdict, bench.labelled, bench.stage)
    latency = measure_step_latency(step, product.path, parent, bench)
    return Trial(
        way=way,
        workplace=product.workplace,
        converted=product.converted,
        files=product.files,
        verdict=add_speed_note(verdict, latency),
        judged=judged,
        frozen=frozen,
        coverage=product.coverage,
        latency=latency,
        accuracy=accuracy,
        switchable=source is not None and can_switch(source.path),
    )


def _product_candidate(
    step: Step, product: _Product, parent: Parent, bench: RunContext
) -> Candidate:
    """What was converted, to be judged in its workplace."""
    return Candidate(
        name=step.name,
        target=step.target,
        precision=product.converted.judged_as or step.wanted.precision,
        path=product.path,
        settings=_open_settings(parent, bench),
        aside=product.workplace,
    )


def trial_candidate(step: Step, trial: Trial, bench: RunContext) -> Candidate:
    """The file of a trial, to be opened once more."""
    return Candidate(
        name=step.name,
        target=step.target,
        precision=trial.converted.judged_as or step.wanted.precision,
        path=trial.workplace / trial.files[0].name,
        settings=dict(bench.order.settings),
    )


def _extra_sizes(
    step: Step, way: Recipe, parent: Parent, bench: RunContext
) -> tuple[Mapping[str, int], ...]:
    """Sizes beside the feeds' that the step's artifact is judged at, as every other's."""
    job = replace(
        make_job(step, replace(parent, path=None), bench, Path()),
        programs=bench.programs.get((), {}),  # a copy may have lost a branch
    )
    return find_extra_sizes(job, "" if way.rewrites else str(way.capture or parent.capture), bench)


def _list_untried_captures(step: Step) -> tuple[Capture, ...]:
    """Captures of the format that may keep a branch, and that the order leaves out."""
    return tuple(one for one in BRANCH_KEEPING if one in {*step.target.CAPTURES} - {*step.captures})


def _find_left_torch(way: Recipe, converted: Converted, met: Sequence[ModelcError]) -> str:
    """Where forward computes outside of torch, of which a trace keeps the result alone."""
    return find_numpy_use(met, converted.warned) if way.capture in TRACES else ""


def _blame_left_torch(verdict: Verdict, why: str) -> Verdict:
    """The verdict on a trace that is wrong, with the cause before all else."""
    if verdict.passed or not why:
        return verdict
    told = f"{why}, and a trace keeps what that gave once (write it with torch's operators, or"
    cause = f"{told} change it in a copy, with --patch PKG.MOD:FN)"
    reason = Reason(code=ReasonCode.OUTSIDE_TORCH, text=cause)
    return replace(verdict, reasons=(reason, *verdict.reasons))


@contextmanager
def _use_rewritten(way: Recipe, bench: RunContext) -> Iterator[RunContext]:
    """The bench with the way's copy of the model in eager's place; eager judges all the same."""
    subject = bench.subject
    with apply_rewrites(subject.eager, way.rewrites, example=subject.example) as model:
        yield replace(bench, subject=replace(subject, eager=model))


@dataclass(frozen=True, kw_only=True)
class _Product:
    """What a conversion left in its workplace."""

    workplace: Path
    converted: Converted
    files: tuple[FileRecord, ...]
    coverage: Coverage | None

    @property
    def path(self) -> Path:
        return self.workplace / self.files[0].name


def _quantize_parent(
    step: Step, way: Recipe, parent: Parent, bench: RunContext
) -> Quantized | None:
    """The parent quantized, where the way has a quantizer."""
    if way.quantizer is None:
        return None
    work = make_quantization(step, way, parent, bench)
    place = bench.folder.workplace(f"{step.name}-quantized")
    return quantize_parent(work, place, bench.cache, bench.stage)


def make_quantization(
    step: Step, way: Recipe, parent: Parent, bench: RunContext
) -> QuantizationTask:
    """What the way's quantizer is to do for the step."""
    if way.quantizer is None or parent.path is None or bench.calibration is None:
        raise RuntimeError(f"{step.name} is to be quantized without a parent or without samples")
    lowering = bench.order.lowering
    patterns = match_nodes(parent.path, lowering.keep) if lowering.keep else ()
    return QuantizationTask(
        quantizer=way.quantizer,
        consumer=step.target.NAME,
        parent=parent.path,
        signature=bench.subject.signature,
        calibration=bench.calibration,
        method=lowering.method,
        keep=tuple(dict.fromkeys((*patterns, *way.kept))),
    )


def _convert_step(
    step: Step, way: Recipe, source: Quantized | None, parent: Parent, bench: RunContext
) -> _Product:
    workplace = bench.folder.workplace(step.name)
    how = "" if way == Recipe() else f" ({way.name})"
    title = f"convert {step.name}{how}"
    with bench.stage.step(title, log=step.name, attempt=True):
        job = replace(
            make_job(
                step, parent if source is None else _replace_path(parent, source), bench, workplace
            ),
            capture=way.capture,
            programs=bench.programs.setdefault(way.rewrites, {}),
            advance=lambda done, total: bench.stage.advance(title, done, total),
        )
        job = replace(
            job,
            metadata={
                **job.metadata,
                **_step_metadata(step, parent, bench),
                **_recipe_metadata(way),
            },
        )
        converted = _add_quantizer_record(step.target.convert(job), source)
        made = [*converted.files, *_write_samples(step, bench, workplace)]
        files = tuple(record_of(workplace / name, role=role) for name, role in made)
        device = bench.order.judging.device_for(step.target)
        bench.subject.eager.release_pages()  # what follows runs the file
        coverage = step.target.coverage(workplace / files[0].name, bench.subject.example, device)
        refuse_uncovered(step, coverage)
    return _Product(workplace=workplace, converted=converted, files=files, coverage=coverage)


def _step_metadata(step: Step, parent: Parent, bench: RunContext) -> dict[str, str]:
    """What a step's artifact says inside of its parent and of how it is to be judged."""
    tolerance = bench.order.select_judging(step.wanted).tolerance_for(step.wanted.precision)
    return {
        PARENT_KEY: parent.digest,
        **({CAPTURE_KEY: parent.capture} if parent.capture else {}),
        JUDGING_KEY: digest_judging(bench.subject.feeds, tolerance),
    }


def _recipe_metadata(way: Recipe) -> dict[str, str]:
    """What it says of the way that it was made."""
    if way.quantizer is not None:
        return {QUANTIZER_KEY: way.quantizer.NAME}
    return {} if way.capture is None else {CAPTURE_KEY: str(way.capture)}


def _replace_path(parent: Parent, source: Quantized) -> Parent:
    return replace(parent, path=source.path)


def _add_quantizer_record(converted: Converted, source: Quantized | None) -> Converted:
    """What was converted, with what its quantizer says of itself."""
    if source is None:
        return converted
    return replace(
        converted,
        versions={**source.versions, **converted.versions},
        options={**source.options, **converted.options},
        notes=(*source.notes, *converted.notes),
    )


def make_job(step: Step, parent: Parent, bench: RunContext, workplace: Path) -> Job:
    """What the step's converter gets."""
    references = (*bench.subject.references, *select_held_out(step.wanted.precision, bench))
    order = bench.order
    return Job(
        signature=bench.subject.signature,
        precision=step.wanted.precision,
        folder=workplace,
        stem=step.stem,
        example=bench.subject.example,
        model=bench.subject.eager if parent.path is None else None,
        parent=parent.path,
        opset=order.opset,
        external_data=order.external_data,
        guard=order.guard,
        capture_timeout=order.capture_timeout,
        metadata={
            **bench.metadata,
            PRECISION_KEY: str(step.wanted.precision),
            DOMAIN_KEY: Domain(inputs=bench.subject.signature.inputs).as_input(),
        },
        feeds=tuple(r.feed.arrays for r in references if _is_usual(r.feed)),
        keep=order.lowering.keep,
        half_io=order.lowering.half_io,
        settings=order.settings,
        cache=order.cache,
        custom_ops=load_functions(order.custom_ops),
        runtimes=order.runtimes,
        output_axes=find_output_axes(bench.subject.signature, bench.subject.references),
    )


def _is_usual(feed: NamedFeed) -> bool:
    """Whether what is drawn for it says what values there are, as converters may ask."""
    return not feed.beyond and feed.kind not in (WIDE, NONFINITE)


def select_held_out(precision: Precision, bench: RunContext) -> tuple[ReferenceOutputs, ...]:
    """The held-out samples, for an artifact that was calibrated."""
    return bench.held_out if precision is Precision.INT8 else ()


def _write_samples(step: Step, bench: RunContext, workplace: Path) -> tuple[tuple[str, str], ...]:
    """The held-out samples as a file of the artifact, so that it can be judged again anywhere."""
    held_out = select_held_out(step.wanted.precision, bench)
    if not held_out:
        return ()
    name = f"{step.stem}.{step.target.NAME}.samples.npz"
    store_samples(held_out, workplace / name)
    return ((name, SAMPLES_ROLE),)


def _open_settings(parent: Parent, bench: RunContext) -> dict[str, str]:
    """The settings to open a model with that is not beside its parent yet."""
    weights = {} if parent.path is None else {"weights": str(parent.path)}
    return {**bench.order.settings, **weights}


def _find_frozen(
    step: Step, way: Recipe, parent: Parent, converted: Converted, bench: RunContext
) -> tuple[str, ...] | None:
    """Where the capture froze tensor data: this one's, or the parent's."""
    if way.capture is None:
        return parent.frozen
    capture, title = way.capture, f"look at branches in {way.capture}"

    def again(folder: Path) -> None:
        """Capture once more, for its own sake."""
        with bench.stage.step(title, log=f"{step.name}-branches", attempt=True):
            job = make_job(step, parent, bench, folder)
            # what was taken down before would show nothing, but the others need not run again
            known = bench.programs.get(way.rewrites, {})
            others = {name: one for name, one in known.items() if name != str(capture)}
            step.target.convert(replace(job, capture=capture, folder=folder, programs=others))

    branches = branch_coverage(bench.subject, bench.order.judging.accept)
    taken = bench.programs.get(way.rewrites, {}).get(str(capture))
    second = RepeatableCapture(
        again=again, scripted=taken.scripts if isinstance(taken, ScriptCapture) else ()
    )
    return find_frozen_places(capture, converted.frozen, branches, bench.subject, second)
