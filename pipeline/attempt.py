"""One attempt at a step: convert by one recipe in a folder of its own, then judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree

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
    DOMAIN_KEY,
    JUDGING_KEY,
    PARENT_KEY,
    PRECISION_KEY,
    QUANTIZER_KEY,
    digest_judging,
)
from .quantization import make_quantization, quantize_parent, refuse_uncovered
from .restrict_values import restrict_inputs, restrict_subject
from .run_context import Parent, RunContext
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


def try_recipe(
    step: Step, recipe: Recipe, parent: Parent, run: RunContext, *, met: Sequence[ModelcError] = ()
) -> Trial:
    """Convert in a folder of its own, then prove.

    `met` is what refused the same copy of the model before: it may be why a trace is wrong. Where
    it is right for a part of the integers alone, it is made again for that part.

    Raises:
        ConversionError: it was refused, or INT8 was asked for and no layer computes in it.
        RunnerError: the runtime would not open what was made.
    """
    source = _quantize_parent(step, recipe, parent, run)
    with _use_rewritten(recipe, run) as changed:
        product = _convert_step(step, recipe, source, parent, changed)
    if source is not None:
        rmtree(source.path.parent)  # gigabytes, and many are tried
    judged = add_size_feeds(
        run.eager, product.converted.places, found=_extra_sizes(step, recipe, parent, run)
    )
    asked = JudgeRequest(
        candidate=_product_candidate(step, product, parent, run),
        eager=judged,
        judging=run.order.select_judging(step.wanted),
        progress=run.progress,
        held_out=select_held_out(step.wanted.precision, run),
        restrict=True,
        until_restricted=True,
        capture=lambda: _look_at_capture(step, recipe, parent, product.converted, run, met),
        labelled=run.labelled,
        latency=lambda: measure_step_latency(step, product.path, parent, run),
    )
    judgment = judge_candidate(asked)
    if judgment.verdict.restricted_values:
        rmtree(product.workplace)  # what it says inside of its domain is not so
        inputs = restrict_inputs(run.eager.signature.inputs, judgment.verdict.restricted_values)
        eager = restrict_subject(run.eager, inputs)
        return try_recipe(step, recipe, parent, replace(run, eager=eager), met=met)
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


def _look_at_capture(  # noqa: PLR0913, PLR0917 - a step, its recipe, and what it gave
    step: Step,
    recipe: Recipe,
    parent: Parent,
    converted: Converted,
    run: RunContext,
    met: Sequence[ModelcError],
) -> CaptureEvidence:
    """Find what the capture froze, and what else the rules on branches ask for."""
    accept = run.order.judging.accept
    with _use_rewritten(recipe, run) as changed:
        branches = branch_coverage(changed.eager, accept)
        frozen = _find_frozen(step, recipe, parent, converted, changed)
    outside = _find_left_torch(recipe, converted, met)
    untried = _list_untried_captures(step) if recipe.capture is not None else BRANCH_KEEPING
    return CaptureEvidence(
        branches=branches,
        frozen=frozen,
        traced=parent.traced,
        untried=() if outside else untried,
        whole=branch_coverage(run.eager, accept) if recipe.rewrites else None,
        patched=any(name.startswith(PATCH) for name in recipe.rewrites),
        is_trace=recipe.capture in TRACES,
        outside_torch=outside,
    )


def _product_candidate(step: Step, product: _Product, parent: Parent, run: RunContext) -> Candidate:
    """What was converted, to be judged in its workplace."""
    return Candidate(
        name=step.name,
        target=step.target,
        precision=product.converted.judged_as or step.wanted.precision,
        path=product.path,
        settings=_open_settings(parent, run),
        aside=product.workplace,
    )


def _extra_sizes(
    step: Step, recipe: Recipe, parent: Parent, run: RunContext
) -> tuple[Mapping[str, int], ...]:
    """Sizes beside the feeds' that the step's artifact is judged at, as every other's."""
    job = replace(
        make_job(step, replace(parent, path=None), run, Path()),
        programs=run.programs.get((), {}),  # a copy may have lost a branch
    )
    return find_extra_sizes(
        job, "" if recipe.rewrites else str(recipe.capture or parent.capture), run
    )


def _list_untried_captures(step: Step) -> tuple[Capture, ...]:
    """Captures of the format that may keep a branch, and that the order leaves out."""
    return tuple(one for one in BRANCH_KEEPING if one in {*step.target.CAPTURES} - {*step.captures})


def _find_left_torch(recipe: Recipe, converted: Converted, met: Sequence[ModelcError]) -> str:
    """Where forward computes outside of torch, of which a trace keeps the result alone."""
    return find_numpy_use(met, converted.warned) if recipe.capture in TRACES else ""


@contextmanager
def _use_rewritten(recipe: Recipe, run: RunContext) -> Iterator[RunContext]:
    """The bench with the way's copy of the model in eager's place; eager judges all the same."""
    eager = run.eager
    with apply_rewrites(eager.model, recipe.rewrites, example=eager.example) as model:
        yield replace(run, eager=replace(eager, model=model))


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
    step: Step, recipe: Recipe, parent: Parent, run: RunContext
) -> Quantized | None:
    """The parent quantized, where the way has a quantizer."""
    if recipe.quantizer is None:
        return None
    work = make_quantization(step, recipe, parent, run)
    place = run.folder.workplace(f"{step.name}-quantized")
    return quantize_parent(work, place, run.cache, run.progress)


def _convert_step(
    step: Step, recipe: Recipe, source: Quantized | None, parent: Parent, run: RunContext
) -> _Product:
    workplace = run.folder.workplace(step.name)
    how = "" if recipe == Recipe() else f" ({recipe.name})"
    title = f"convert {step.name}{how}"
    with run.progress.step(title, log=step.name, attempt=True):
        job = replace(
            make_job(
                step, parent if source is None else _replace_path(parent, source), run, workplace
            ),
            capture=recipe.capture,
            programs=run.programs.setdefault(recipe.rewrites, {}),
            advance=lambda done, total: run.progress.advance(title, done, total),
        )
        job = replace(
            job,
            metadata={
                **job.metadata,
                **_step_metadata(step, parent, run),
                **_recipe_metadata(recipe),
            },
        )
        converted = _add_quantizer_record(step.target.convert(job), source)
        made = [*converted.files, *_write_samples(step, run, workplace)]
        files = tuple(record_of(workplace / name, role=role) for name, role in made)
        device = run.order.judging.device_for(step.target)
        run.eager.model.release_pages()  # what follows runs the file
        coverage = step.target.coverage(workplace / files[0].name, run.eager.example, device)
        refuse_uncovered(step, coverage)
    return _Product(workplace=workplace, converted=converted, files=files, coverage=coverage)


def _step_metadata(step: Step, parent: Parent, run: RunContext) -> dict[str, str]:
    """What a step's artifact says inside of its parent and of how it is to be judged."""
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


def make_job(step: Step, parent: Parent, run: RunContext, workplace: Path) -> Job:
    """What the step's converter gets."""
    references = (*run.eager.references, *select_held_out(step.wanted.precision, run))
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
            **run.metadata,
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


def _write_samples(step: Step, run: RunContext, workplace: Path) -> tuple[tuple[str, str], ...]:
    """The held-out samples as a file of the artifact, so that it can be judged again anywhere."""
    held_out = select_held_out(step.wanted.precision, run)
    if not held_out:
        return ()
    name = f"{step.stem}.{step.target.NAME}.samples.npz"
    store_samples(held_out, workplace / name)
    return ((name, SAMPLES_ROLE),)


def _open_settings(parent: Parent, run: RunContext) -> dict[str, str]:
    """The settings to open a model with that is not beside its parent yet."""
    weights = {} if parent.path is None else {"weights": str(parent.path)}
    return {**run.order.settings, **weights}


def _find_frozen(
    step: Step, recipe: Recipe, parent: Parent, converted: Converted, run: RunContext
) -> tuple[str, ...] | None:
    """Where the capture froze tensor data: this one's, or the parent's."""
    if recipe.capture is None:
        return parent.frozen
    capture, title = recipe.capture, f"look at branches in {recipe.capture}"

    def again(folder: Path) -> None:
        """Capture once more, for its own sake."""
        with run.progress.step(title, log=f"{step.name}-branches", attempt=True):
            job = make_job(step, parent, run, folder)
            # what was taken down before would show nothing, but the others need not run again
            known = run.programs.get(recipe.rewrites, {})
            others = {name: one for name, one in known.items() if name != str(capture)}
            step.target.convert(replace(job, capture=capture, folder=folder, programs=others))

    branches = branch_coverage(run.eager, run.order.judging.accept)
    taken = run.programs.get(recipe.rewrites, {}).get(str(capture))
    second = RepeatableCapture(
        again=again, scripted=taken.scripts if isinstance(taken, ScriptCapture) else ()
    )
    return find_frozen_places(capture, converted.frozen, branches, run.eager, second)
