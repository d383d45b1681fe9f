"""Run one attempt at a step: convert by a recipe in a separate workplace, then judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from shutil import copy2, rmtree

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
from ..core.kinds import TRACES, Capture, Precision
from ..core.records import Coverage, FileRecord, Latency, record_of
from ..core.target_extensions import RestLowered
from ..core.verdict import Verdict
from ..validators.edge_case_feeds import NONFINITE
from ..validators.ruling import Judgment, Ruling
from ..validators.wide_integer_feeds import WIDE
from .branch_coverage import BRANCH_KEEPING, CaptureEvidence, branch_coverage
from .eager_reference import EagerReference
from .extra_sizes import add_size_feeds, find_extra_sizes, find_output_axes
from .frozen_places import RepeatableCapture, find_frozen_places
from .held_out import SAMPLES_ROLE, select_held_out, store_samples
from .judge_case import JudgeRequest, step_candidate
from .model_metadata import write_entry
from .plan import Step
from .provenance.seals import (
    CAPTURE_KEY,
    CHECKPOINT_KEY,
    DOMAIN_KEY,
    JUDGING_KEY,
    MODELC_KEY,
    PARENT_KEY,
    PRECISION_KEY,
    SIGNATURE_KEY,
    digest_judging,
    signature_digest,
)
from .quantization import (
    add_quantizer_record,
    check_quantized_share,
    make_quantization,
    quantize_parent,
    quantizer_metadata,
)
from .restrict_values import restrict_inputs, restrict_reference
from .run_context import Product, StepWork
from .stated_inputs import load_functions
from .step_latency import time_step
from .verdict_rules import apply_artifact_rules, judge_file


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The capture or quantizer of an attempt; neither, if the target converts directly.

    `kept` are parent nodes that stay in floating point beside `--keep-fp`, `rest` is the precision
    of all that do, if not that of the order, `rewrites` those that are applied to the captured copy
    of the model.
    """

    capture: Capture | None = None
    quantizer: Quantizer | None = None
    kept: tuple[str, ...] = ()
    rest: Precision | None = None
    rewrites: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name in the record of attempts."""
        return self.quantizer.NAME if self.quantizer else str(self.capture or "convert")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The result of one attempt: files, judgment and measurements.

    `workplace` is the folder of the files, the model's being the first. `judged` is the eager
    reference of the judgment, with the inputs of its domain; `frozen` are places of branches.
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
        """The verdict under all rulings so far."""
        return self.judgment.verdict

    @property
    def latency(self) -> Latency | None:
        """Latency compared with the parent; None if not measured."""
        return self.judgment.latency

    @property
    def accuracy(self) -> Accuracy | None:
        """Accuracy on labelled data; None if not measured."""
        return self.judgment.accuracy

    def plus(self, *rulings: Ruling) -> Trial:
        """Return the trial with further rulings."""
        return replace(self, judgment=self.judgment.plus(*rulings))

    @property
    def size(self) -> int:
        """Size of the shipped files in bytes, without debug files and samples."""
        return sum(file.size for file in self.files if file.role not in ("debug", SAMPLES_ROLE))


def rest_of(work: StepWork, recipe: Recipe) -> Precision:
    """Return the precision of the layers that a quantizer left in floating point.

    Those of a ready-made quantized model are lowered only if that was asked for.
    """
    target, asked = work.step.target, work.run.order.lowering.rest
    if recipe.rest is not None or not isinstance(target, RestLowered):
        return recipe.rest or Precision.FP32
    return asked or (Precision.FP32 if recipe.quantizer is None else target.RESTS[0])


def recipes_for(step: Step, rewrites: tuple[str, ...] = ()) -> tuple[Recipe, ...]:
    """Return the recipes of a step in the order of attempts; `rewrites` apply to captures."""
    if step.quantizers:
        return tuple(Recipe(quantizer=quantizer) for quantizer in step.quantizers)
    captures = (Recipe(capture=capture, rewrites=rewrites) for capture in step.captures)
    return tuple(captures) or (Recipe(),)


def try_recipe(work: StepWork, recipe: Recipe, *, met: Sequence[ModelcError] = ()) -> Trial:
    """Convert by the recipe in a new workplace, then judge the result.

    If the artifact is right only for a part of the integer values, convert and judge it again in
    the domain restricted to that part.

    Args:
        work: the step and the state of the run.
        recipe: the recipe to try.
        met: errors of earlier attempts on the same copy of the model, which may explain why a
            trace is wrong.

    Raises:
        ConversionError: the conversion failed, or no layer of an INT8 artifact computes in INT8.
        RunnerError: the runtime cannot open the artifact.
    """
    step, run = work.step, work.run
    source = None if recipe.quantizer is None else _quantize_parent(work, recipe)
    with _use_rewritten(work, recipe) as changed:
        product = convert_step(changed, recipe, source)
    if source is not None:
        rmtree(source.path.parent)  # may take gigabytes, once per quantizer
    judged = add_size_feeds(run.eager, product.converted.places, found=extra_sizes(work, recipe))
    request = JudgeRequest(
        candidate=step_candidate(work, product.converted, product.path, aside=product.workplace),
        eager=judged,
        judging=run.order.select_judging(step.wanted),
        progress=run.workspace.progress,
        held_out=select_held_out(step, run.samples),
        restrict=True,
        labelled=run.samples.labelled,
    )
    of_file = judge_file(request)
    if of_file.verdict.restricted_values:
        rmtree(product.workplace)  # its embedded domain is too large
        inputs = restrict_inputs(run.eager.signature.inputs, of_file.verdict.restricted_values)
        again = replace(work, step=replace(step, built=None), on_built=None)
        return try_recipe(again.within(restrict_reference(run.eager, inputs)), recipe, met=met)
    capture = _look_at_capture(work, recipe, product.converted, met)
    judgment = apply_artifact_rules(replace(request, capture=capture), of_file)
    latency = time_step(work, product.path)
    return Trial(
        recipe=recipe,
        workplace=product.workplace,
        converted=product.converted,
        files=product.files,
        judgment=judgment.plus(latency),
        judged=judged,
        frozen=capture.frozen,
        coverage=product.coverage,
        switchable=source is not None and can_switch(source.path),
    )


def _look_at_capture(
    work: StepWork, recipe: Recipe, converted: Converted, met: Sequence[ModelcError]
) -> CaptureEvidence:
    """Collect the evidence on the capture that the branch rules use."""
    run, accept = work.run, work.run.order.judging.accept
    with _use_rewritten(work, recipe) as changed:
        branches = branch_coverage(changed.run.eager, accept)
        frozen = _find_frozen(changed, recipe, converted)
    outside = find_numpy_use(met, converted.warned) if recipe.capture in TRACES else ""
    untried: tuple[Capture, ...] = BRANCH_KEEPING
    if recipe.capture is not None:
        left = {*work.step.target.CAPTURES} - {*work.step.captures}
        untried = tuple(one for one in BRANCH_KEEPING if one in left)
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


def extra_sizes(work: StepWork, recipe: Recipe) -> tuple[Mapping[str, int], ...]:
    """Return the sizes, beyond those of the feeds, at which the artifact is judged.

    Stored references have feeds of these sizes.
    """
    run, parent = work.run, work.parent
    if not run.eager.model.has_module:
        return ()
    job = replace(
        make_job(replace(work, parent=replace(parent, path=None)), Path()),
        programs=run.memory.programs.get((), {}),  # a rewritten copy may lack a branch
    )
    capture = "" if recipe.rewrites else str(recipe.capture or parent.capture)
    return find_extra_sizes(job, capture, run.memory)


@contextmanager
def _use_rewritten(work: StepWork, recipe: Recipe) -> Iterator[StepWork]:
    """Yield the work with the rewritten copy as the model to capture."""
    eager = work.run.eager
    with apply_rewrites(eager.model, recipe.rewrites, example=eager.example) as model:
        yield work.within(replace(eager, model=model))


def _quantize_parent(work: StepWork, recipe: Recipe) -> Quantized:
    """Quantize the parent by the recipe's quantizer."""
    task, space = make_quantization(work, recipe), work.run.workspace
    place = space.folder.workplace(f"{work.step.name}-quantized")
    return quantize_parent(task, place, space.cache, space.progress)


def convert_step(
    work: StepWork, recipe: Recipe = Recipe(), source: Quantized | None = None
) -> Product:
    """Convert in a new workplace, or take the files that another host built.

    Raises:
        ConversionError: the conversion failed, or no layer of an INT8 artifact computes in INT8.
    """
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
            metadata={**job.metadata, **_attempt_metadata(work, recipe)},
            rest=rest_of(work, recipe),
        )
        converted = step.target.convert(job) if step.built is None else _take_built(work, workplace)
        if converted.judged_as is None:
            limits = run.eager.limit_precision(step.wanted.precision)
            converted = replace(converted, judged_as=limits)
        if source is not None:
            converted = add_quantizer_record(converted, source)
        samples = () if step.built is not None else _write_samples(work, workplace)
        made = [*converted.files, *samples]
        files = tuple(record_of(workplace / name, role=role) for name, role in made)
        if work.on_built is not None and step.built is None:
            work.on_built(Product(workplace=workplace, converted=converted, files=files))
        device = run.order.judging.device_for(step.target)
        run.eager.model.release_pages()  # only the artifact runs from here on
        coverage = step.target.coverage(workplace / files[0].name, run.eager.example, device)
        notes = check_quantized_share(step, coverage, keeps=bool(work.run.order.lowering.keep))
        converted = replace(converted, notes=(*converted.notes, *notes))
    return Product(workplace=workplace, converted=converted, files=files, coverage=coverage)


def _take_built(work: StepWork, workplace: Path) -> Converted:
    """Copy the files that another host built to the workplace."""
    built, folder = work.step.built, work.run.workspace.folder.path
    if built is None:
        raise RuntimeError(f"{work.step.name} was not built before")
    for file in built.files:
        copy2(folder / file.name, workplace / Path(file.name).name)
    return Converted(
        files=tuple((Path(file.name).name, file.role) for file in built.files),
        versions=built.versions,
        options=built.options,
        notes=built.notes,
        judged_as=built.judged_as,
    )


def _attempt_metadata(work: StepWork, recipe: Recipe) -> dict[str, str]:
    """Return the metadata on parent, judging options and recipe to embed in the artifact."""
    step, parent, run = work.step, work.parent, work.run
    judging = run.order.select_judging(step.wanted)
    tolerance = judging.tolerance_for(step.wanted.precision, step.target)
    capture = parent.capture if recipe.capture is None else str(recipe.capture)
    return {
        PARENT_KEY: parent.digest,
        **({CAPTURE_KEY: capture} if capture else {}),
        JUDGING_KEY: digest_judging(run.eager.feeds, tolerance),
        **quantizer_metadata(work, recipe),
    }


def make_job(work: StepWork, workplace: Path) -> Job:
    """Return the input of the step's converter."""
    step, parent, run, order = work.step, work.parent, work.run, work.run.order
    references = (*run.eager.references, *select_held_out(step, run.samples))
    feeds = (reference.feed for reference in references)
    # converters may rely on the values of these
    usual = (one for one in feeds if not one.beyond and one.kind not in (WIDE, NONFINITE))
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
        stateful=order.stateful,
        capture_timeout=order.capture_timeout,
        metadata={
            MODELC_KEY: __version__,
            "torch": metadata.version("torch"),
            CHECKPOINT_KEY: run.eager.checkpoint.digest,
            SIGNATURE_KEY: signature_digest(run.eager.signature),
            PRECISION_KEY: str(step.wanted.precision),
            DOMAIN_KEY: Domain(inputs=run.eager.signature.inputs).as_input(),
            **write_entry(order.meta),
        },
        feeds=tuple(feed.arrays for feed in usual),
        keep=order.lowering.keep,
        half_io=order.lowering.half_io,
        settings=order.settings,
        cache=order.cache,
        custom_ops=load_functions(order.custom_ops),
        runtimes=order.runtimes,
        output_axes=find_output_axes(run.eager.signature, run.eager.references),
    )


def _write_samples(work: StepWork, workplace: Path) -> tuple[tuple[str, str], ...]:
    """Store the held-out samples with the artifact, so that any host can judge it again."""
    if not (held_out := select_held_out(work.step, work.run.samples)):
        return ()
    name = f"{work.step.stem}.{work.step.target.NAME}.samples.npz"
    store_samples(held_out, workplace / name)
    return ((name, SAMPLES_ROLE),)


def _find_frozen(work: StepWork, recipe: Recipe, converted: Converted) -> tuple[str, ...] | None:
    """Return the places frozen by this capture, or by the parent's if there is none here."""
    step, parent, run = work.step, work.parent, work.run
    if (capture := recipe.capture) is None:
        return parent.frozen
    known = run.memory.programs.get(recipe.rewrites, {})

    def again(folder: Path) -> None:
        """Repeat the capture: without its program in the cache, it runs again."""
        title = f"look at branches in {capture}"
        with run.workspace.progress.step(title, log=f"{step.name}-branches", attempt=True):
            job = make_job(work, folder)
            others = {name: one for name, one in known.items() if name != str(capture)}
            step.target.convert(replace(job, capture=capture, folder=folder, programs=others))

    branches = branch_coverage(run.eager, run.order.judging.accept)
    taken = known.get(str(capture))
    second = RepeatableCapture(
        again=again, scripted=taken.scripts if isinstance(taken, ScriptCapture) else ()
    )
    return find_frozen_places(capture, converted.frozen, branches, run.eager, second)
