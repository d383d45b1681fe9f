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
from .bench import Bench, Parent
from .branches import KEEPING, Second, frozen_by, look
from .custom_ops import functions_of
from .held_out import ROLE, store
from .latency import step_latency, with_speed
from .output_axes import output_axes
from .placed import found_places, with_places
from .plan import Step
from .proof import Candidate, prove
from .provenance.stating import (
    CAPTURE,
    DOMAIN,
    JUDGING,
    PARENT,
    PRECISION,
    QUANTIZER,
    judging_digest,
)
from .quantizing import Quantization, quantized, refuse_uncovered
from .restricting import restricted_inputs, within_values
from .subject import Subject
from .weighing import weighed


@dataclass(frozen=True, kw_only=True)
class Way:
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

    way: Way
    workplace: Path
    converted: Converted
    files: tuple[FileRecord, ...]
    verdict: Verdict
    judged: Subject
    frozen: tuple[str, ...] | None = ()
    coverage: Coverage | None = None
    latency: Latency | None = None
    accuracy: Accuracy | None = None
    switchable: bool = False

    @property
    def size(self) -> int:
        """Bytes of what ships."""
        return sum(file.size for file in self.files if file.role not in ("debug", ROLE))


def ways_of(step: Step, rewrites: tuple[str, ...] = ()) -> tuple[Way, ...]:
    """The ways to try, in order; captures take the model down with these rewrites."""
    if step.quantizers:
        return tuple(Way(quantizer=quantizer) for quantizer in step.quantizers)
    captures = (Way(capture=capture, rewrites=rewrites) for capture in step.captures)
    return tuple(captures) or (Way(),)


def attempt(
    step: Step, way: Way, parent: Parent, bench: Bench, *, met: Sequence[ModelcError] = ()
) -> Trial:
    """Convert in a folder of its own, then prove.

    `met` is what refused the same copy of the model before: it may be why a trace is wrong. Where
    it is right for a part of the integers alone, it is made again for that part.

    Raises:
        ConversionError: it was refused, or INT8 was asked for and no layer computes in it.
        RunnerError: the runtime would not open what was made.
    """
    source = _quantize(step, way, parent, bench)
    with _rewritten(way, bench) as changed:
        product = _convert(step, way, source, parent, changed)
    if source is not None:
        rmtree(source.path.parent)  # gigabytes, and many are tried
    candidate = _candidate(step, product, parent, bench)
    held_out = held_out_for(step.wanted.precision, bench)
    judging = bench.order.judging_of(step.wanted)
    judged = with_places(
        bench.subject, product.converted.places, found=_places(step, way, parent, bench)
    )
    verdict = prove(candidate, judged, judging, bench.stage, held_out=held_out, restrict=True)
    if verdict.restricted_values:
        rmtree(product.workplace)  # what it says inside of its domain is not so
        inputs = restricted_inputs(bench.subject.signature.inputs, verdict.restricted_values)
        subject = within_values(bench.subject, inputs)
        return attempt(step, way, parent, replace(bench, subject=subject), met=met)
    with _rewritten(way, bench) as changed:
        branches = look(changed.subject, bench.order.judging.accept)
        frozen = _frozen(step, way, parent, product.converted, changed)
    why = _left_torch(way, product.converted, met)
    untried = KEEPING if way.capture is None else () if why else _untried(step)
    verdict = branches.judged(verdict, frozen, traced=parent.traced, untried=untried)
    if way.rewrites:
        patched = any(name.startswith(PATCH) for name in way.rewrites)
        whole = look(bench.subject, bench.order.judging.accept)
        verdict = whole.less(verdict, branches, patched=patched)
    if way.capture in TRACES:
        verdict = _outside(branches.traced(verdict), why)
    accuracy, verdict = weighed(candidate, verdict, bench.labelled, bench.stage)
    latency = step_latency(step, product.path, parent, bench)
    return Trial(
        way=way,
        workplace=product.workplace,
        converted=product.converted,
        files=product.files,
        verdict=with_speed(verdict, latency),
        judged=judged,
        frozen=frozen,
        coverage=product.coverage,
        latency=latency,
        accuracy=accuracy,
        switchable=source is not None and can_switch(source.path),
    )


def _candidate(step: Step, product: _Product, parent: Parent, bench: Bench) -> Candidate:
    """What was converted, to be judged in its workplace."""
    return Candidate(
        name=step.name,
        target=step.target,
        precision=product.converted.judged_as or step.wanted.precision,
        path=product.path,
        settings=_opening(parent, bench),
        aside=product.workplace,
    )


def candidate_of(step: Step, trial: Trial, bench: Bench) -> Candidate:
    """The file of a trial, to be opened once more."""
    return Candidate(
        name=step.name,
        target=step.target,
        precision=trial.converted.judged_as or step.wanted.precision,
        path=trial.workplace / trial.files[0].name,
        settings=dict(bench.order.settings),
    )


def _places(step: Step, way: Way, parent: Parent, bench: Bench) -> tuple[Mapping[str, int], ...]:
    """Sizes beside the feeds' that the step's artifact is judged at, as every other's."""
    job = replace(
        job_of(step, replace(parent, path=None), bench, Path()),
        programs=bench.programs.get((), {}),  # a copy may have lost a branch
    )
    return found_places(job, "" if way.rewrites else str(way.capture or parent.capture), bench)


def _untried(step: Step) -> tuple[Capture, ...]:
    """Captures of the format that may keep a branch, and that the order leaves out."""
    return tuple(one for one in KEEPING if one in {*step.target.CAPTURES} - {*step.captures})


def _left_torch(way: Way, converted: Converted, met: Sequence[ModelcError]) -> str:
    """Where forward computes outside of torch, of which a trace keeps the result alone."""
    return find_numpy_use(met, converted.warned) if way.capture in TRACES else ""


def _outside(verdict: Verdict, why: str) -> Verdict:
    """The verdict on a trace that is wrong, with the cause before all else."""
    if verdict.passed or not why:
        return verdict
    told = f"{why}, and a trace keeps what that gave once (write it with torch's operators, or"
    cause = f"{told} change it in a copy, with --patch PKG.MOD:FN)"
    reason = Reason(code=ReasonCode.OUTSIDE_TORCH, text=cause)
    return replace(verdict, reasons=(reason, *verdict.reasons))


@contextmanager
def _rewritten(way: Way, bench: Bench) -> Iterator[Bench]:
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


def _quantize(step: Step, way: Way, parent: Parent, bench: Bench) -> Quantized | None:
    """The parent quantized, where the way has a quantizer."""
    if way.quantizer is None:
        return None
    work = quantization_of(step, way, parent, bench)
    place = bench.folder.workplace(f"{step.name}-quantized")
    return quantized(work, place, bench.cache, bench.stage)


def quantization_of(step: Step, way: Way, parent: Parent, bench: Bench) -> Quantization:
    """What the way's quantizer is to do for the step."""
    if way.quantizer is None or parent.path is None or bench.calibration is None:
        raise RuntimeError(f"{step.name} is to be quantized without a parent or without samples")
    lowering = bench.order.lowering
    patterns = match_nodes(parent.path, lowering.keep) if lowering.keep else ()
    return Quantization(
        quantizer=way.quantizer,
        consumer=step.target.NAME,
        parent=parent.path,
        signature=bench.subject.signature,
        calibration=bench.calibration,
        method=lowering.method,
        keep=tuple(dict.fromkeys((*patterns, *way.kept))),
    )


def _convert(
    step: Step, way: Way, source: Quantized | None, parent: Parent, bench: Bench
) -> _Product:
    workplace = bench.folder.workplace(step.name)
    how = "" if way == Way() else f" ({way.name})"
    title = f"convert {step.name}{how}"
    with bench.stage.step(title, log=step.name, attempt=True):
        job = replace(
            job_of(step, parent if source is None else _instead(parent, source), bench, workplace),
            capture=way.capture,
            programs=bench.programs.setdefault(way.rewrites, {}),
            advance=lambda done, total: bench.stage.advance(title, done, total),
        )
        job = replace(job, metadata={**job.metadata, **_stated(step, parent, bench), **_how(way)})
        converted = _joined(step.target.convert(job), source)
        made = [*converted.files, *_samples(step, bench, workplace)]
        files = tuple(record_of(workplace / name, role=role) for name, role in made)
        device = bench.order.judging.device_for(step.target)
        bench.subject.eager.release_pages()  # what follows runs the file
        coverage = step.target.coverage(workplace / files[0].name, bench.subject.example, device)
        refuse_uncovered(step, coverage)
    return _Product(workplace=workplace, converted=converted, files=files, coverage=coverage)


def _stated(step: Step, parent: Parent, bench: Bench) -> dict[str, str]:
    """What a step's artifact says inside of its parent and of how it is to be judged."""
    tolerance = bench.order.judging_of(step.wanted).tolerance_for(step.wanted.precision)
    return {
        PARENT: parent.digest,
        **({CAPTURE: parent.capture} if parent.capture else {}),
        JUDGING: judging_digest(bench.subject.feeds, tolerance),
    }


def _how(way: Way) -> dict[str, str]:
    """What it says of the way that it was made."""
    if way.quantizer is not None:
        return {QUANTIZER: way.quantizer.NAME}
    return {} if way.capture is None else {CAPTURE: str(way.capture)}


def _instead(parent: Parent, source: Quantized) -> Parent:
    return replace(parent, path=source.path)


def _joined(converted: Converted, source: Quantized | None) -> Converted:
    """What was converted, with what its quantizer says of itself."""
    if source is None:
        return converted
    return replace(
        converted,
        versions={**source.versions, **converted.versions},
        options={**source.options, **converted.options},
        notes=(*source.notes, *converted.notes),
    )


def job_of(step: Step, parent: Parent, bench: Bench, workplace: Path) -> Job:
    """What the step's converter gets."""
    references = (*bench.subject.references, *held_out_for(step.wanted.precision, bench))
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
            PRECISION: str(step.wanted.precision),
            DOMAIN: Domain(inputs=bench.subject.signature.inputs).as_input(),
        },
        feeds=tuple(r.feed.arrays for r in references if _is_usual(r.feed)),
        keep=order.lowering.keep,
        half_io=order.lowering.half_io,
        settings=order.settings,
        cache=order.cache,
        custom_ops=functions_of(order.custom_ops),
        runtimes=order.runtimes,
        output_axes=output_axes(bench.subject.signature, bench.subject.references),
    )


def _is_usual(feed: NamedFeed) -> bool:
    """Whether what is drawn for it says what values there are, as converters may ask."""
    return not feed.beyond and feed.kind not in (WIDE, NONFINITE)


def held_out_for(precision: Precision, bench: Bench) -> tuple[ReferenceOutputs, ...]:
    """The held-out samples, for an artifact that was calibrated."""
    return bench.held_out if precision is Precision.INT8 else ()


def _samples(step: Step, bench: Bench, workplace: Path) -> tuple[tuple[str, str], ...]:
    """The held-out samples as a file of the artifact, so that it can be judged again anywhere."""
    held_out = held_out_for(step.wanted.precision, bench)
    if not held_out:
        return ()
    name = f"{step.stem}.{step.target.NAME}.samples.npz"
    store(held_out, workplace / name)
    return ((name, ROLE),)


def _opening(parent: Parent, bench: Bench) -> dict[str, str]:
    """The settings to open a model with that is not beside its parent yet."""
    weights = {} if parent.path is None else {"weights": str(parent.path)}
    return {**bench.order.settings, **weights}


def _frozen(
    step: Step, way: Way, parent: Parent, converted: Converted, bench: Bench
) -> tuple[str, ...] | None:
    """Where the capture froze tensor data: this one's, or the parent's."""
    if way.capture is None:
        return parent.frozen
    capture, title = way.capture, f"look at branches in {way.capture}"

    def again(folder: Path) -> None:
        """Capture once more, for its own sake."""
        with bench.stage.step(title, log=f"{step.name}-branches", attempt=True):
            job = job_of(step, parent, bench, folder)
            # what was taken down before would show nothing, but the others need not run again
            known = bench.programs.get(way.rewrites, {})
            others = {name: one for name, one in known.items() if name != str(capture)}
            step.target.convert(replace(job, capture=capture, folder=folder, programs=others))

    branches = look(bench.subject, bench.order.judging.accept)
    taken = bench.programs.get(way.rewrites, {}).get(str(capture))
    second = Second(again=again, scripted=taken.scripts if isinstance(taken, ScriptCapture) else ())
    return frozen_by(capture, converted.frozen, branches, bench.subject, second)
