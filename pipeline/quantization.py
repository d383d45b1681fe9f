"""Calibration data of a run, and quantization of a parent model, run or read from the cache."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Hashable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..calibration.calibration_options import CalibrationOptions
from ..calibration.calibration_report import CalibrationReport, SampleSeverity
from ..calibration.calibration_set import CalibrationSet, open_calibration, survey_samples
from ..calibration.feed_form import FeedForm
from ..calibration.sample_reader import LoaderHooks
from ..checkpoints.factory import import_object
from ..checkpoints.sample_inputs import infer_specs
from ..converters.onnx_guard import list_model_files
from ..converters.onnx_origins import debug_sidecar_path, match_nodes
from ..core.contract import (
    Array,
    CalibrationFeeds,
    Converted,
    Deferred,
    Feed,
    Quantized,
    QuantizeJob,
    Quantizer,
)
from ..core.errors import ConversionError, ErrorCode, Hint, Option, UsageError
from ..core.events import Tell
from ..core.grammar import parse_input
from ..core.kinds import QUANTIZED, Precision
from ..core.records import UNKNOWN_DTYPE, Coverage, record_of, sha256_of
from ..core.signature import Signature, merge_inputs
from ..validators.feed_values import check_samples, make_generator
from ..validators.feeds import SAMPLE, FeedDrawer, NamedFeed, draw_feeds
from .cache.environment import describe_machine, packages
from .cache.file_digests import FileDigests, digest_of_code
from .cache.result_store import ResultStore
from .cache.store_layout import CachedQuantization, CacheEntry
from .plan import Step
from .provenance.seals import QUANTIZER_KEY, SAMPLES_KEY
from .run_progress import Progress
from .user_samples import sample_without_model

if TYPE_CHECKING:
    from .attempt import Recipe
    from .run_context import StepWork


CALIBRATION_STEP = "calibration samples"


def prepare_calibration(
    options: CalibrationOptions,
    signature: Signature,
    judged: Sequence[NamedFeed],
    progress: Progress,
    *,
    root: Path | None = None,
) -> CalibrationSet:
    """Open the calibration set for the eager reference. The caller closes it.

    Args:
        options: which samples to use.
        signature: the model's inputs.
        judged: the feeds that artifacts are judged on.
        progress: receives progress and findings.
        root: the manifest's folder, to which the record's source is relative.

    Raises:
        UsageError: there are no samples, or calibrating on them would be wrong.
    """
    feeds = {feed.name: feed.arrays for feed in judged if not feed.beyond}
    hooks = LoaderHooks(
        load=lambda spec: import_object(spec, "--calib"),
        draw=_sample_drawer(signature, options.seed, feeds.get(SAMPLE)),
        validation=[feeds[SAMPLE]] if SAMPLE in feeds else list(feeds.values()),
        own=SAMPLE in feeds,
    )
    with progress.step(CALIBRATION_STEP, log="calibration") as clock:
        found = open_calibration(
            options,
            signature,
            hooks,
            root=root,
            advance=lambda done, total: progress.advance(CALIBRATION_STEP, done, total),
        )
        clock.detail = f"{found.report.used} of {found.report.found}"
    for finding in found.report.findings:
        progress.note(f"calibration: {finding}", warning=finding.severity is SampleSeverity.WARNING)
    return found


def preview_calibration(
    options: CalibrationOptions,
    inputs: tuple[str, ...],
    samples: Path | None,
    tell: Tell,
    *,
    thorough: bool = False,
) -> CalibrationReport:
    """Report what a calibration would read, without a model.

    Args:
        options: which samples to use.
        inputs: the `--input` texts.
        samples: a sample file that completes `inputs` and defines the usual values.
        tell: receives progress events.
        thorough: read every sample on disk, not only those that would be used.

    Raises:
        UsageError: the inputs are unknown, or there are no samples.
    """
    signature, own = _describe_inputs(inputs, samples)
    hooks = LoaderHooks(
        load=lambda spec: import_object(spec, "--calib"),
        draw=_sample_drawer(signature, options.seed, own),
        validation=[own] if own else [feed.arrays for feed in draw_feeds(signature)],
        own=own is not None,
    )
    with tempfile.TemporaryDirectory(prefix="modelc-") as logs:
        progress = Progress(tell=tell, logs=Path(logs))
        with progress.step(CALIBRATION_STEP, log="calibration") as clock:
            report = survey_samples(
                options,
                signature,
                hooks,
                thorough=thorough,
                advance=lambda done, total: progress.advance(CALIBRATION_STEP, done, total),
            )
            clock.passed, clock.detail = not report.errors, f"{report.read} read"
    return report


def _describe_inputs(
    inputs: tuple[str, ...], samples: Path | None
) -> tuple[Signature, dict[str, Array] | None]:
    """Return the signature and the user's sample, checked against the signature."""
    patterns = [parse_input(text) for text in inputs]
    if samples is None and not patterns:
        raise UsageError(
            "the inputs of the model are unknown",
            hint=Hint("give ", Option("input", '"x:float32[batch=1..8,3,224,224]"')),
            option="input",
            code=ErrorCode.INPUTS_UNKNOWN,
        )
    if samples is None:
        return merge_inputs(patterns, {}), None
    found = sample_without_model(samples, [pattern.name for pattern in patterns])
    signature = merge_inputs(patterns, infer_specs(found))
    return signature, check_samples(signature, found)[0]


def _sample_drawer(signature: Signature, seed: int, sample: Feed | None) -> Callable[[int], Feed]:
    """Return a function that draws sample i at the smallest batch and the opt sizes.

    Values are distributed as in validation feeds. Masks are padded.
    """
    drawer, sizes = FeedDrawer.of(signature, seed, sample), signature.opt_sizes
    values = {spec.name: drawer.values_at(spec, sizes) for spec in signature.inputs}
    form = FeedForm.of(signature)

    def draw(index: int) -> Feed:
        drawn: dict[str, Array] = {}
        for spec in signature.inputs:
            shape = [dim.opt for dim in spec.dims]
            if spec.name in form.axes and form.per_feed:
                shape[form.axes[spec.name]] = form.per_feed
            generator = make_generator(seed, "calibration", index, spec.name)
            one = values[spec.name]
            drawn[spec.name] = (
                one.draw_mask(spec, shape, generator, "example")
                if one.masks(spec)
                else one.draw(shape, generator)
            )
        return drawn

    return draw


@dataclass(frozen=True, kw_only=True)
class QuantizationTask:
    """The work of one quantizer for one step; `keep` holds names of nodes of the parent.

    `others` and `memory` are as in `QuantizeJob`; the result does not depend on them.
    """

    quantizer: Quantizer
    consumer: str
    parent: Path
    signature: Signature
    calibration: CalibrationFeeds | None
    precision: Precision = Precision.INT8
    method: str | None = None
    keep: tuple[str, ...] = ()
    group_size: int | None = None
    others: tuple[str, ...] = ()
    memory: MutableMapping[tuple[Hashable, ...], Any] = field(default_factory=dict)


def quantize_parent(
    work: QuantizationTask, folder: Path, cache: CalibrationCache | None, progress: Progress
) -> Quantized:
    """Quantize in `folder`, or copy the result from the cache.

    The parent's debug sidecar is copied beside the result.

    Raises:
        ConversionError: the quantizer failed.
    """
    title = f"quantize {work.consumer} ({work.quantizer.NAME})"
    key = None if cache is None else quantization_key(work)
    with progress.step(
        title, log=f"quantize-{work.consumer}-{work.quantizer.NAME}", attempt=True
    ) as clock:
        found = None if cache is None or key is None else cache.take(key, folder)
        if found is None:
            result = work.quantizer.quantize(
                QuantizeJob(
                    parent=work.parent,
                    consumer=work.consumer,
                    signature=work.signature,
                    calibration=work.calibration,
                    folder=folder,
                    precision=work.precision,
                    method=work.method,
                    keep=work.keep,
                    group_size=work.group_size,
                    others=work.others,
                    memory=work.memory,
                    advance=lambda done, total: progress.advance(title, done, total),
                )
            )
            if cache is not None and key is not None:
                cache.keep(key, result, title)
        else:
            result = found
            clock.detail = "from the cache"
        sidecar = debug_sidecar_path(work.parent)
        if sidecar.exists():
            shutil.copyfile(sidecar, debug_sidecar_path(result.path))
    return result


def check_quantized_share(
    step: Step, coverage: Coverage | None, *, keeps: bool = False
) -> tuple[str, ...]:
    """Check that a quantized artifact has layers of its precision; a note if that is not known.

    What cannot be read is judged by the artifact's outputs alone. With `keeps`, the user keeps
    layers in floating point.

    Raises:
        ConversionError: every compute layer is known, and none is quantized. How an engine's own
            description names FP8 and INT4 is not known well enough: there it is a note.
    """
    precision = step.wanted.precision
    if precision not in QUANTIZED:
        return ()
    if coverage is None:
        return (f"cannot read which dtype the layers of {step.name} compute in",)
    if coverage.layers.get(str(precision)):
        return ()
    unknown, total = coverage.layers.get(UNKNOWN_DTYPE, 0), sum(coverage.layers.values())
    if unknown:
        return (f"the dtype of {unknown} of {total} compute layers of {step.name} is unknown",)
    found = ", ".join(f"{count} in {dtype}" for dtype, count in coverage.layers.items())
    if isinstance(step.target, Deferred) and precision is not Precision.INT8:
        return (f"its description names no layer in {precision} ({found})",)
    raise ConversionError(
        f"no layer of {step.name} is in {precision} ({found or 'none'})",
        hint=Hint("keep fewer layers with ", Option("keep-fp"))
        if keeps
        else Hint("choose a precision that is not quantized: ", Option("fp16")),
        option="keep-fp" if keeps else "",
    )


def quantization_key(work: QuantizationTask) -> str:
    """Return the SHA-256 over model, samples, options, and versions that affect the result."""
    parts = [
        __version__,
        digest_of_code(FileDigests(None)),
        describe_machine(),
        *(f"{name}={version}" for name, version in sorted(packages().items())),
        *(f"{file.name}:{sha256_of(file)}" for file in list_model_files(work.parent)),
        *(str(spec) for spec in work.signature.inputs),
        work.quantizer.NAME,
        work.consumer,
        str(work.precision),
        str(work.method),
        *sorted(work.keep),
        str(work.group_size),
        "" if work.calibration is None else work.calibration.record.digest,
    ]
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


class CalibrationCache:
    """Results of quantizers by key. `model` is the owner that `modelc cache ls` shows."""

    def __init__(self, store: ResultStore, model: str = "") -> None:
        self._store = store
        self._model = model

    def take(self, key: str, folder: Path) -> Quantized | None:
        """Copy the model of a valid entry into `folder`; return None if there is none."""
        for stored in self._store.entries(key):
            found = stored.entry.calibrated
            if found is not None and self._store.take(stored, folder):
                return Quantized(
                    path=folder / found.model,
                    versions=found.versions,
                    options=found.options,
                    notes=found.notes,
                )
        return None

    def keep(self, key: str, result: Quantized, what: str = "") -> None:
        """Store a result; skip it if the folder is not writable."""
        files = list_model_files(result.path)
        calibrated = CachedQuantization(
            model=result.path.name,
            versions=dict(result.versions),
            options=dict(result.options),
            notes=result.notes,
        )
        entry = CacheEntry(
            key=key,
            model=self._model,
            artifact=what,
            files=tuple(record_of(file) for file in files),
            calibrated=calibrated,
        )
        self._store.put(entry, {file.name: file for file in files})


def make_quantization(work: StepWork, recipe: Recipe) -> QuantizationTask:
    """Build the quantization task of the step from the recipe's quantizer."""
    step, parent, run = work.step, work.parent, work.run
    calibration = run.samples.calibration if step.uses_samples else None
    unfed = step.uses_samples and calibration is None
    if recipe.quantizer is None or parent.path is None or unfed:
        raise RuntimeError(f"{step.name} is to be quantized without a parent or without samples")
    lowering = run.order.lowering
    patterns = match_nodes(parent.path, lowering.keep) if lowering.keep else ()
    return QuantizationTask(
        quantizer=recipe.quantizer,
        consumer=step.target.NAME,
        parent=parent.path,
        signature=run.eager.signature,
        calibration=calibration,
        precision=step.wanted.precision,
        method=lowering.method,
        keep=tuple(dict.fromkeys((*patterns, *recipe.kept))),
        group_size=lowering.group_size,
        others=_find_other_consumers(step, recipe.quantizer, run.memory.quantizes),
        memory=run.memory.calibrations,
    )


def quantizer_metadata(work: StepWork, recipe: Recipe) -> dict[str, str]:
    """Return the quantizer and the digest of the samples that it used, to embed in the artifact."""
    if recipe.quantizer is None:
        return {}
    record = work.run.samples.record if work.step.uses_samples else None
    used = {} if record is None else {SAMPLES_KEY: record.digest}
    return {QUANTIZER_KEY: recipe.quantizer.NAME, **used}


def add_quantizer_record(converted: Converted, source: Quantized) -> Converted:
    """Merge the quantizer's versions, options and notes into the conversion result."""
    return replace(
        converted,
        versions={**source.versions, **converted.versions},
        options={**source.options, **converted.options},
        notes=(*source.notes, *converted.notes),
    )


def _find_other_consumers(
    step: Step, quantizer: Quantizer, quantizes: Sequence[Step]
) -> tuple[str, ...]:
    """Return the other targets of the run that try this quantizer on the parent of the step."""
    found = (
        one.target.NAME
        for one in quantizes
        if one.parent == step.parent
        and one.wanted.precision == step.wanted.precision
        and quantizer in one.quantizers
    )
    return tuple(name for name in dict.fromkeys(found) if name != step.target.NAME)
