"""One attempt at a step: convert by one recipe in a folder of its own, then judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from shutil import rmtree

from .. import __version__
from ..capture.captured_program import ScriptCapture
from ..capture.model_copy import PATCH
from ..capture.refusals import find_numpy_use
from ..capture.rewrite_table import apply_rewrites
from ..converters.quantizers.layer_switches import can_switch
from ..core.contract import Converted, Job, Quantized, Quantizer
from ..core.domain import Domain
from ..core.errors import ModelcError
from ..core.findings import Accuracy
from ..core.kinds import TRACES, Capture
from ..core.records import Coverage, FileRecord, Latency, record_of
from ..core.verdict import Verdict
from ..validators.edge_case_feeds import NONFINITE
from ..validators.feeds import NamedFeed
from ..validators.ruling import Judgment, Ruling
from ..validators.wide_integer_feeds import WIDE
from .accuracy_gate import measure_step_latency
from .branch_coverage import BRANCH_KEEPING, CaptureEvidence, branch_coverage
from .eager_reference import EagerReference
from .extra_sizes import add_size_feeds, find_extra_sizes, find_output_axes
from .frozen_places import RepeatableCapture, find_frozen_places
from .held_out import SAMPLES_ROLE, select_held_out, store_samples
from .judge_case import Candidate, JudgeRequest
from .plan import Step
from .provenance.seals import (
    CAPTURE_KEY,
    CHECKPOINT_KEY,
    DOMAIN_KEY,
    JUDGING_KEY,
    MODELC_KEY,
    PARENT_KEY,
    PRECISION_KEY,
    QUANTIZER_KEY,
    SIGNATURE_KEY,
    digest_judging,
    signature_digest,
)
from .quantization import make_quantization, quantize_parent, refuse_uncovered
from .restrict_values import restrict_inputs, restrict_subject
from .run_context import StepWork
from .stated_inputs import load_functions
from .verdict_rules import judge_candidate


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
    """What one way gave: files in their workplace, the judgment on them, what was measured.

    `judged` is the eager side that it was judged by, with the domain's inputs. `frozen` are places
    where its capture froze tensor data, None where nobody knows. `switchable` says that its
    quantizer's result shows what each layer costs.
    """

    recipe: Recipe
    workplace: Path
    converted: Converted
    files: tuple[FileRecord, ...]
    judgment: Judgment
    judged: EagerReference
    frozen: tuple[str, ...] | None = ()
    coverage: Coverage | None = None
    switchable: bool = False

    @property
    def verdict(self) -> Verdict:
        """The verdict by all rules so far."""
        return self.judgment.verdict

    @property
    def latency(self) -> Latency | None:
        """The latency beside the parent's, where it was measured."""
        return self.judgment.latency

    @property
    def accuracy(self) -> Accuracy | None:
        """The accuracy on labelled data, where it was measured."""
        return self.judgment.accuracy

    def plus(self, *rulings: Ruling) -> Trial:
        """Return the trial with further rulings."""
        return replace(self, judgment=self.judgment.plus(*rulings))

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


def try_recipe(work: StepWork, recipe: Recipe, *, met: Sequence[ModelcError] = ()) -> Trial:
    """Convert in a folder of its own, then prove.

    `met` is what refused the same copy of the model before: it may be why a trace is wrong. Where
    it is right for a part of the integers alone, it is made again for that part.

    Raises:
        ConversionError: it was refused, or INT8 was asked for and no layer computes in it.
        RunnerError: the runtime would not open what was made.
    """
    step, run = work.step, work.run
    source = _quantize_parent(work, recipe)
    with _use_rewritten(work, recipe) as changed:
        product = _convert_step(changed, recipe, source)
    if source is not None:
        rmtree(source.path.parent)  # gigabytes, and many are tried
    judged = add_size_feeds(run.eager, product.converted.places, found=_extra_sizes(work, recipe))
    asked = JudgeRequest(
        candidate=_product_candidate(work, product),
        eager=judged,
        judging=run.order.select_judging(step.wanted),
        progress=run.workspace.progress,
        held_out=select_held_out(step.wanted.precision, run.samples),
        restrict=True,
        until_restricted=True,
        capture=lambda: _look_at_capture(work, recipe, product.converted, met),
        labelled=run.samples.labelled,
        latency=lambda: measure_step_latency(work, product.path),
    )
    judgment = judge_candidate(asked)
    if judgment.verdict.restricted_values:
        rmtree(product.workplace)  # what it says inside of its domain is not so
        inputs = restrict_inputs(run.eager.signature.inputs, judgment.verdict.restricted_values)
        return try_recipe(work.within(restrict_subject(run.eager, inputs)), recipe, met=met)
    capture = asked.capture_evidence
    return Trial(
        recipe=recipe,
        workplace=product.workplace,
        converted=product.converted,
        files=product.files,
        judgment=judgment,
        judged=judged,
        frozen=None if capture is None else capture.frozen,
        coverage=product.coverage,
        switchable=source is not None and can_switch(source.path),
    )


def _look_at_capture(
    work: StepWork, recipe: Recipe, converted: Converted, met: Sequence[ModelcError]
) -> CaptureEvidence:
    """Find what the capture froze, and what else the rules on branches ask for."""
    run, accept = work.run, work.run.order.judging.accept
    with _use_rewritten(work, recipe) as changed:
        branches = branch_coverage(changed.run.eager, accept)
        frozen = _find_frozen(changed, recipe, converted)
    outside = _find_left_torch(recipe, converted, met)
    untried = _list_untried_captures(work.step) if recipe.capture is not None else BRANCH_KEEPING
    return CaptureEvidence(
        branches=branches,
        frozen=frozen,
        traced=work.parent.traced,
        untried=() if outside else untried,
        whole=branch_coverage(run.eager, accept) if recipe.rewrites else None,
        patched=any(name.startswith(PATCH) for name in recipe.rewrites),
        is_trace=recipe.capture in TRACES,
        outside_torch=outside,
    )


def _product_candidate(work: StepWork, product: _Product) -> Candidate:
    """What was converted, to be judged in its workplace: its model is not beside its parent yet."""
    step, path = work.step, work.parent.path
    weights = {} if path is None else {"weights": str(path)}
    return Candidate(
        name=step.name,
        target=step.target,
        precision=product.converted.judged_as or step.wanted.precision,
        path=product.path,
        settings={**work.run.order.settings, **weights},
        aside=product.workplace,
    )


def _extra_sizes(work: StepWork, recipe: Recipe) -> tuple[Mapping[str, int], ...]:
    """Sizes beside the feeds' that the step's artifact is judged at, as every other's."""
    run, parent = work.run, work.parent
    job = replace(
        make_job(replace(work, parent=replace(parent, path=None)), Path()),
        programs=run.memory.programs.get((), {}),  # a copy may have lost a branch
    )
    capture = "" if recipe.rewrites else str(recipe.capture or parent.capture)
    return find_extra_sizes(job, capture, run.memory)


def _list_untried_captures(step: Step) -> tuple[Capture, ...]:
    """Captures of the format that may keep a branch, and that the order leaves out."""
    return tuple(one for one in BRANCH_KEEPING if one in {*step.target.CAPTURES} - {*step.captures})


def _find_left_torch(recipe: Recipe, converted: Converted, met: Sequence[ModelcError]) -> str:
    """Where forward computes outside of torch, of which a trace keeps the result alone."""
    return find_numpy_use(met, converted.warned) if recipe.capture in TRACES else ""


@contextmanager
def _use_rewritten(work: StepWork, recipe: Recipe) -> Iterator[StepWork]:
    """The work with the recipe's copy of the model in eager's place; eager judges all the same."""
    eager = work.run.eager
    with apply_rewrites(eager.model, recipe.rewrites, example=eager.example) as model:
        yield work.within(replace(eager, model=model))


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


def _quantize_parent(work: StepWork, recipe: Recipe) -> Quantized | None:
    """The parent quantized, where the way has a quantizer."""
    if recipe.quantizer is None:
        return None
    task, space = make_quantization(work, recipe), work.run.workspace
    place = space.folder.workplace(f"{work.step.name}-quantized")
    return quantize_parent(task, place, space.cache, space.progress)


def _convert_step(work: StepWork, recipe: Recipe, source: Quantized | None) -> _Product:
    step, run, parent = work.step, work.run, work.parent
    workplace = run.workspace.folder.workplace(step.name)
    how = "" if recipe == Recipe() else f" ({recipe.name})"
    title = f"convert {step.name}{how}"
    with run.workspace.progress.step(title, log=step.name, attempt=True):
        path = parent.path if source is None else source.path
        job = make_job(replace(work, parent=replace(parent, path=path)), workplace)
        job = replace(
            job,
            capture=recipe.capture,
            programs=run.memory.programs.setdefault(recipe.rewrites, {}),
            advance=lambda done, total: run.workspace.progress.advance(title, done, total),
            metadata={**job.metadata, **_step_metadata(work), **_recipe_metadata(recipe)},
        )
        converted = _add_quantizer_record(step.target.convert(job), source)
        made = [*converted.files, *_write_samples(work, workplace)]
        files = tuple(record_of(workplace / name, role=role) for name, role in made)
        device = run.order.judging.device_for(step.target)
        run.eager.model.release_pages()  # what follows runs the file
        coverage = step.target.coverage(workplace / files[0].name, run.eager.example, device)
        refuse_uncovered(step, coverage)
    return _Product(workplace=workplace, converted=converted, files=files, coverage=coverage)


def _step_metadata(work: StepWork) -> dict[str, str]:
    """What a step's artifact says inside of its parent and of how it is to be judged."""
    step, parent, run = work.step, work.parent, work.run
    tolerance = run.order.select_judging(step.wanted).tolerance_for(step.wanted.precision)
    return {
        PARENT_KEY: parent.digest,
        **({CAPTURE_KEY: parent.capture} if parent.capture else {}),
        JUDGING_KEY: digest_judging(run.eager.feeds, tolerance),
    }


def _recipe_metadata(recipe: Recipe) -> dict[str, str]:
    """What it says of the way that it was made."""
    if recipe.quantizer is not None:
        return {QUANTIZER_KEY: recipe.quantizer.NAME}
    return {} if recipe.capture is None else {CAPTURE_KEY: str(recipe.capture)}


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


def make_job(work: StepWork, workplace: Path) -> Job:
    """What the step's converter gets."""
    step, parent, run = work.step, work.parent, work.run
    references = (*run.eager.references, *select_held_out(step.wanted.precision, run.samples))
    order = run.order
    return Job(
        signature=run.eager.signature,
        precision=step.wanted.precision,
        folder=workplace,
        stem=step.stem,
        example=run.eager.example,
        model=run.eager.model if parent.path is None else None,
        parent=parent.path,
        opset=order.opset,
        external_data=order.external_data,
        guard=order.guard,
        capture_timeout=order.capture_timeout,
        metadata={
            MODELC_KEY: __version__,
            "torch": metadata.version("torch"),
            CHECKPOINT_KEY: run.eager.checkpoint.digest,
            SIGNATURE_KEY: signature_digest(run.eager.signature),
            PRECISION_KEY: str(step.wanted.precision),
            DOMAIN_KEY: Domain(inputs=run.eager.signature.inputs).as_input(),
        },
        feeds=tuple(r.feed.arrays for r in references if _is_usual(r.feed)),
        keep=order.lowering.keep,
        half_io=order.lowering.half_io,
        settings=order.settings,
        cache=order.cache,
        custom_ops=load_functions(order.custom_ops),
        runtimes=order.runtimes,
        output_axes=find_output_axes(run.eager.signature, run.eager.references),
    )


def _is_usual(feed: NamedFeed) -> bool:
    """Whether what is drawn for it says what values there are, as converters may ask."""
    return not feed.beyond and feed.kind not in (WIDE, NONFINITE)


def _write_samples(work: StepWork, workplace: Path) -> tuple[tuple[str, str], ...]:
    """The held-out samples as a file of the artifact, so that it can be judged again anywhere."""
    step = work.step
    held_out = select_held_out(step.wanted.precision, work.run.samples)
    if not held_out:
        return ()
    name = f"{step.stem}.{step.target.NAME}.samples.npz"
    store_samples(held_out, workplace / name)
    return ((name, SAMPLES_ROLE),)


def _find_frozen(work: StepWork, recipe: Recipe, converted: Converted) -> tuple[str, ...] | None:
    """Where the capture froze tensor data: this one's, or the parent's."""
    step, parent, run = work.step, work.parent, work.run
    if recipe.capture is None:
        return parent.frozen
    capture, title = recipe.capture, f"look at branches in {recipe.capture}"

    def again(folder: Path) -> None:
        """Capture once more, for its own sake."""
        with run.workspace.progress.step(title, log=f"{step.name}-branches", attempt=True):
            job = make_job(work, folder)
            # what was taken down before would show nothing, but the others need not run again
            known = run.memory.programs.get(recipe.rewrites, {})
            others = {name: one for name, one in known.items() if name != str(capture)}
            step.target.convert(replace(job, capture=capture, folder=folder, programs=others))

    branches = branch_coverage(run.eager, run.order.judging.accept)
    taken = run.memory.programs.get(recipe.rewrites, {}).get(str(capture))
    second = RepeatableCapture(
        again=again, scripted=taken.scripts if isinstance(taken, ScriptCapture) else ()
    )
    return find_frozen_places(capture, converted.frozen, branches, run.eager, second)
