"""Calibration data for a run, and a look at it without one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from ..calibration.calibration_options import CalibrationOptions
from ..calibration.calibration_report import CalibrationReport, SampleSeverity
from ..calibration.calibration_set import CalibrationSet, open_calibration, survey_samples
from ..calibration.feed_form import FeedForm
from ..calibration.sample_reader import LoaderHooks
from ..core.contract import Array, Feed
from ..core.errors import Hint, Option, UsageError
from ..core.events import Tell
from ..core.grammar import parse_input
from ..core.signature import Signature, resolve
from ..sources.factory import import_object
from ..sources.sample_inputs import infer_specs
from ..validators.feed_values import check_samples, distribution_of, make_generator
from ..validators.feeds import SAMPLE, draw_feeds
from .sampling import sample_without_model
from .stage import Progress
from .subject import EagerReference

CALIBRATION_STEP = "calibration samples"


def prepare_calibration(
    options: CalibrationOptions,
    subject: EagerReference,
    stage: Progress,
    *,
    root: Path | None = None,
) -> CalibrationSet:
    """The samples to quantize the subject with. To be closed when it is done.

    Args:
        options: which samples.
        subject: whose inputs they are, with the feeds that it is judged on.
        stage: where progress and findings are told.
        root: the manifest's folder, which the record's source is relative to.

    Raises:
        UsageError: there are no samples, or a calibration with them would be wrong.
    """
    usual = (one.feed for one in subject.references if not one.feed.beyond)
    feeds = {feed.name: feed.arrays for feed in usual}
    lent = LoaderHooks(
        load=_load_samples,
        draw=_sample_drawer(subject.signature, options.seed, feeds.get(SAMPLE)),
        validation=[feeds[SAMPLE]] if SAMPLE in feeds else list(feeds.values()),
        own=SAMPLE in feeds,
    )
    with stage.step(CALIBRATION_STEP, log="calibration") as clock:
        found = open_calibration(
            options,
            subject.signature,
            lent,
            root=root,
            advance=lambda done, total: stage.advance(CALIBRATION_STEP, done, total),
        )
        clock.detail = f"{found.report.used} of {found.report.found}"
    for finding in found.report.findings:
        stage.note(f"calibration: {finding}", warning=finding.severity is SampleSeverity.WARNING)
    return found


def preview_calibration(
    options: CalibrationOptions,
    inputs: tuple[str, ...],
    samples: Path | None,
    tell: Tell,
    *,
    thorough: bool = False,
) -> CalibrationReport:
    """What a calibration would read, without a model.

    Args:
        options: which samples.
        inputs: the `--input` texts.
        samples: a sample file that completes these, and whose values are what is normal.
        tell: where progress is told.
        thorough: whether to read every sample on disk, not only those that would be used.

    Raises:
        UsageError: nothing says what the inputs are, or there are no samples.
    """
    signature, own = _describe_inputs(inputs, samples)
    lent = LoaderHooks(
        load=_load_samples,
        draw=_sample_drawer(signature, options.seed, own),
        validation=[own] if own else [feed.arrays for feed in draw_feeds(signature)],
        own=own is not None,
    )
    with tempfile.TemporaryDirectory(prefix="modelc-") as logs:
        stage = Progress(tell=tell, logs=Path(logs))
        with stage.step(CALIBRATION_STEP, log="calibration") as clock:
            report = survey_samples(
                options,
                signature,
                lent,
                thorough=thorough,
                advance=lambda done, total: stage.advance(CALIBRATION_STEP, done, total),
            )
            clock.passed, clock.detail = not report.errors, f"{report.read} read"
    return report


def _load_samples(spec: str) -> object:
    return import_object(spec, "--calib")


def _describe_inputs(
    inputs: tuple[str, ...], samples: Path | None
) -> tuple[Signature, dict[str, Array] | None]:
    """The signature, and the user's sample checked against it."""
    patterns = [parse_input(text) for text in inputs]
    if samples is None and not patterns:
        raise UsageError(
            "nothing says what goes into the model",
            hint=Hint(
                "give ",
                Option("input", '"x:float32[batch=1..8,3,224,224]"'),
                " or ",
                Option("samples", "SAMPLE"),
            ),
            option="input",
        )
    if samples is None:
        return resolve(patterns, {}), None
    found = sample_without_model(samples, [pattern.name for pattern in patterns])
    signature = resolve(patterns, infer_specs(found))
    return signature, check_samples(signature, found)[0]


def _sample_drawer(signature: Signature, seed: int, sample: Feed | None) -> Callable[[int], Feed]:
    """Draws sample i at the smallest batch and the opt sizes, with values as validation feeds have.

    Masks are padded, as most are in use.
    """
    known = sample or {}
    values = {spec.name: distribution_of(spec, known.get(spec.name)) for spec in signature.inputs}
    form = FeedForm.of(signature)

    def draw(index: int) -> Feed:
        drawn: dict[str, Array] = {}
        for spec in signature.inputs:
            shape = [dim.opt for dim in spec.dims]
            if spec.name in form.batched and form.per_feed:
                shape[0] = form.per_feed
            generator = make_generator(seed, "calibration", index, spec.name)
            one = values[spec.name]
            drawn[spec.name] = (
                one.draw_mask(spec, shape, generator, "example")
                if one.masks(spec)
                else one.draw(shape, generator)
            )
        return drawn

    return draw
