"""Plan the parts of a model from the user's pipeline, and judge the whole once they are built.

Both run the user's code, so commands call them in a child process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from ... import __version__
from ...calibration.calibration_options import CalibrationOptions
from ...checkpoints.loaded_module import LoadedModule
from ...checkpoints.user_code import project_folder
from ...core.call import Parameter
from ...core.errors import (
    CheckpointError,
    ErrorCode,
    Hint,
    ModelcError,
    Option,
    RunnerError,
    UsageError,
)
from ...core.events import Tell, ignore_events
from ...core.manifest import Failure, FeedPlan
from ...core.part_records import PartRecord, PartsManifest, PartsPlan, PlannedPart
from ...core.signature import Signature
from ...validators.feeds import LEAST_FEEDS, draw_feeds
from ..cache.dependencies import ReadTracker, track_reads
from ..cache.environment import describe_environment
from ..eager_reference import read_checkpoint
from ..manifest_file import MANIFEST_FILE
from ..order import Judging, Source
from ..output_folder import OutputFolder, open_folder
from ..recorded_run import Moved, apply_recorded_judging, source_of_record
from ..run_context import place_checkpoint, relative_to
from ..run_progress import Progress
from ..runtime_reference import load_model
from ..stated_inputs import settle_signature
from ..user_samples import load_user_samples, store_samples
from .compose_function import ComposeFunction
from .eager_parts import EagerParts, EagerWhole
from .judge_whole import WholeCase, WholeReference, judge_whole
from .opened_parts import OpenedParts, refuse_to_open
from .part_calibration import PartCalibration, calibrate_parts, hold_out
from .part_inputs import CallRecorder, extra_feeds
from .parts_file import (
    BuiltPart,
    check_part_name,
    list_rebuilt,
    part_folder,
    read_parts,
    write_parts,
)

_FEEDS = 8  # of the whole: its corners, and as many at random sizes
_RECORD_STEP = "run the pipeline on the eager parts"


@dataclass(frozen=True, kw_only=True)
class PartsRequest:
    """A model of several parts.

    `source` is the eager side, whose inputs and samples are those of the whole. `methods` are the
    parts by name. `part_inputs` are inputs of parts that the user stated. `signature` and
    `recorded`, the parts when the whole was judged, and `held_out`, the digests of its samples,
    are those of a manifest. `keys` are the cache keys by artifact, which are recorded with the
    files that the run reads. `calibration` is of the whole; None if no part is calibrated.
    """

    source: Source
    methods: Mapping[str, str]
    compose: str
    out: Path
    judging: Judging = field(default_factory=Judging)
    part_inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    signature: Signature | None = None
    recorded: tuple[PartRecord, ...] = ()
    held_out: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    depends: tuple[str, ...] = ()
    calibration: CalibrationOptions | None = None

    def __post_init__(self) -> None:
        for name in self.methods:
            check_part_name(name)

    @classmethod
    def of_record(
        cls, folder: Path, moved: Moved | None = None, judging: Judging | None = None
    ) -> PartsRequest:
        """Return the request that a manifest of parts records, with its files found again.

        Raises:
            UsageError: there is no such manifest.
        """
        moved, then = moved or Moved(), read_parts(folder)
        source = source_of_record(then, folder, moved)
        samples = moved.samples or source.samples
        return cls(
            source=replace(
                source, samples=samples, allow_pickle=moved.allow_pickle, artifact=False
            ),
            methods={part.name: part.method for part in then.parts},
            compose=then.compose,
            out=folder,
            judging=apply_recorded_judging(judging or Judging(), then),
            signature=then.signature,
            recorded=then.parts,
            held_out=then.held_out,
        )


def record_parts(request: PartsRequest, on_event: Tell = ignore_events) -> PartsPlan:
    """Run the pipeline on the eager parts, and return what each part is called with.

    Raises:
        ModelcError: the checkpoint, a part or the pipeline cannot be used.
    """
    if (request.out / MANIFEST_FILE).exists():
        raise UsageError(
            f"{request.out} holds artifacts of one model, not of several parts",
            hint="give another -o",
            option="out",
            code=ErrorCode.FOLDER_OCCUPIED,
        )
    with open_folder(request.out) as place:
        progress = Progress(tell=on_event, logs=place.logs)
        whole = _open_whole(request, progress)
        recorder = CallRecorder(parts=whole.parts, signature=whole.signature)
        others = dict.fromkeys(request.methods, recorder.record_call)
        with progress.step(_RECORD_STEP, log="compose"):
            sample = next((one.arrays for one in whole.feeds if one.name == "sample"), None)
            more = extra_feeds(whole.signature, request.judging.seed or 0, sample)
            feeds = (*whole.feeds, *more)
            for done, feed in enumerate(feeds, start=1):
                recorder.begin(feed)
                whole.run_with(feed, others)
                progress.advance(_RECORD_STEP, done, len(feeds))
        calibrated = PartCalibration()
        if request.calibration is not None:
            calibrated = calibrate_parts(
                request.calibration, whole, recorder, request.out, progress
            )
        _check_parts_used(request.compose, whole, recorder, progress)
        parts = [_plan_part(name, recorder, request, progress) for name in request.methods]
    folders = calibrated.folders
    parts = [replace(one, calibration=str(folders.get(one.name, ""))) for one in parts]
    return PartsPlan(parts=tuple(parts), notes=tuple(filter(None, [calibrated.note])))


def _check_parts_used(
    compose: str, whole: EagerWhole, recorder: CallRecorder, progress: Progress
) -> None:
    """Check that the pipeline calls every part, and that its result depends on each.

    Raises:
        UsageError: it does not.
    """
    parts = whole.parts.modules
    part = next((name for name in parts if name not in recorder.calls), "")
    problem, hint = f"never calls the part {part!r}", f"call parts[{part!r}] in it"
    if not part:
        with progress.step("check the use of all parts", log="compose"):
            part = whole.find_ignored_part()
        problem = f"has the same result whatever the part {part!r} returns"
        hint = "keep no results between calls"
    if part:
        raise UsageError(
            f"--compose {compose} {problem}",
            hint=f"{hint}, or leave out --part {part}",
            option="part",
            code=ErrorCode.NO_EFFECT,
        )


def _plan_part(
    name: str, recorder: CallRecorder, request: PartsRequest, progress: Progress
) -> PlannedPart:
    """Return a part with its inputs, and store the arrays of one call in its folder.

    Raises:
        UsageError: a stated input is none of its inputs.
    """
    stated = request.part_inputs.get(name, ())
    inputs = recorder.describe_inputs(name, stated)
    progress.note(f"part {name}: {'  '.join(inputs)}")
    notes = tuple(
        f"{text} are the values in the calls: state more, as --input '{text}', if there are more"
        for text in recorder.list_narrow_ranges(name, inputs, stated)
    )
    folder = part_folder(request.out, name)
    samples = store_samples(recorder.examples[name][1], folder)
    return PlannedPart(
        name=name,
        method=request.methods[name],
        inputs=inputs,
        samples=str(samples),
        calls=len(recorder.calls[name]),
        notes=notes,
    )


def _open_whole(request: PartsRequest, progress: Progress) -> EagerWhole:
    """Load the checkpoint, import the user's function, and draw the feeds of the whole.

    Raises:
        ModelcError: one of them cannot be used.
    """
    source = request.source
    checkpoint = read_checkpoint(source, progress)
    if source.recorded and checkpoint.digest != source.recorded:
        raise CheckpointError(
            f"{source.name} is not the checkpoint that the parts were built from: sha256 "
            f"{checkpoint.digest[:12]}… instead of {source.recorded[:12]}…",
            hint=Hint("give that one with ", Option("checkpoint"), ", or export the parts again"),
            option="checkpoint",
            code=ErrorCode.FILE_CHANGED,
        )
    with progress.step("load model", log="checkpoint"):
        loaded = load_model(checkpoint, trust=source.trust)
        parts = EagerParts.of(loaded, request.methods)
    with progress.step("load the pipeline", log="compose"):
        compose = ComposeFunction(request.compose)
    takes = tuple(Parameter(name=name) for name in compose.takes)
    # What samples and inputs are named after: the function's parameters, not those of forward.
    named: LoadedModule = replace(loaded, takes=takes, known={}, assumed=False)
    given = load_user_samples(source, named, request.judging, request.signature)
    samples = None if given is None else given.first
    signature = request.signature or settle_signature(source, named, samples)
    signature = replace(signature, outputs=())
    _check_ranges(signature)
    compose.check_inputs(signature)
    count, seed = request.judging.feeds or _FEEDS, request.judging.seed or 0
    feeds = draw_feeds(signature, count=max(count, LEAST_FEEDS), seed=seed, samples=samples)
    return EagerWhole(
        checkpoint=checkpoint,
        compose=compose,
        parts=parts,
        signature=signature,
        feeds=feeds,
        samples=None if given is None else (given.origin, given.digest),
    )


def _check_ranges(signature: Signature) -> None:
    """Check that every dim of the whole has a range: parts are judged for what it leads to.

    Raises:
        UsageError: one has none.
    """
    bare = [name for name, dim in signature.free_dims.items() if not dim.bounded]
    if bare:
        raise UsageError(
            f"dim {bare[0]!r} of the pipeline has no range",
            hint=f"state it: {bare[0]}=1..8",
            option="input",
            code=ErrorCode.MISSING_DIMS,
        )


def judge_parts(
    request: PartsRequest, artifacts: Sequence[str], on_event: Tell = ignore_events
) -> PartsManifest:
    """Judge the artifacts of these names in all parts end to end, and write `parts.json`.

    Raises:
        ModelcError: the checkpoint or the pipeline cannot be used.
    """
    with open_folder(request.out) as place, _track(request) as tracker:
        progress = Progress(tell=on_event, logs=place.logs)
        whole = _open_whole(request, progress)
        parts = {
            name: BuiltPart.read(request.out, name, method)
            for name, method in request.methods.items()
        }
        title = "run eager end to end"
        with progress.step(title, log="compose"):
            steps = _StepCounter(progress, title, len(whole.feeds))
            reference = WholeReference.of(whole, steps.advance)
            recorded = None if request.calibration is not None else request.held_out
            held_out = hold_out(reference, request.out, recorded, steps.advance)
        manifest = PartsManifest(
            modelc=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            checkpoint=place_checkpoint(whole.checkpoint, place),
            compose=request.compose,
            compose_sha256=whole.compose.sha256,
            signature=reference.signature,
            feeds=_plan_feeds(whole, request.judging, place),
            parts=tuple(one.record() for one in parts.values()),
            notes=(
                *list_rebuilt(request.recorded, parts, whole.checkpoint.digest),
                *held_out.notes,
            ),
            environment=describe_environment(),
            keys={name: request.keys[name] for name in artifacts if name in request.keys},
            held_out=held_out.digests,
        )
        for name in artifacts:
            calibrated = any(one.is_calibrated(name) for one in parts.values())
            side = held_out.reference if calibrated else reference
            manifest = _judge_artifact(name, parts, side, manifest, progress, request.judging)
        if tracker is not None:
            manifest = replace(manifest, needs=tracker.needs())
        write_parts(manifest, request.out)
    return manifest


def _track(request: PartsRequest) -> AbstractContextManager[ReadTracker | None]:
    """Track the files that a run reads beside its request, if later runs reuse its verdicts."""
    if not request.keys:
        return nullcontext()
    source = request.source
    keyed = [one for one in (source.checkpoint, source.samples) if one is not None]
    tracker = ReadTracker(
        project_folder(), keyed=keyed, ours=[request.out], declared=request.depends
    )
    return track_reads(tracker)


def _judge_artifact(  # noqa: PLR0913, PLR0917 - both sides, and how to judge
    name: str,
    parts: Mapping[str, BuiltPart],
    reference: WholeReference,
    manifest: PartsManifest,
    progress: Progress,
    judging: Judging,
) -> PartsManifest:
    """Return the manifest with the verdict on the artifacts of this name, or why there is none."""
    digest = reference.whole.checkpoint.digest
    reason = refuse_to_open(parts, name)
    if reason:
        failure = Failure(
            step=name,
            message=f"not run end to end: {reason}",
            hint="correct that part, and export again",
            exit_code=RunnerError.exit_code,
        )
        return replace(manifest, failures=(*manifest.failures, failure))
    title = f"validate {name} end to end"
    faults = [fault for built in parts.values() for fault in built.list_faults(name, digest)]
    try:
        with progress.step(title, log=name, attempt=True, runs_artifact=True) as clock:
            steps = _StepCounter(progress, title, len(reference.references))
            with OpenedParts(parts, name, judging) as opened:
                case = WholeCase(
                    name=name,
                    reference=reference,
                    opened=opened,
                    judging=judging,
                    advance=steps.advance,
                )
                verdict, wrong = judge_whole(case, faults)
            clock.detail, clock.passed = str(verdict.state), verdict.passed
    except ModelcError as error:
        failure = Failure(
            step=name, message=error.message, hint=error.hint, exit_code=error.exit_code
        )
        return replace(manifest, failures=(*manifest.failures, failure))
    verdict = verdict.with_seconds(clock.seconds)
    blamed = {**manifest.wrong_parts, name: wrong} if wrong else manifest.wrong_parts
    return replace(manifest, verdicts=(*manifest.verdicts, verdict), wrong_parts=blamed)


class _StepCounter:
    """Reports the progress of a step, which may take more runs than expected."""

    def __init__(self, progress: Progress, title: str, total: int) -> None:
        self._report = partial(progress.advance, title)
        self._done, self._total = 0, total

    def advance(self) -> None:
        """Report one more run."""
        self._done += 1
        self._total = max(self._total, self._done)
        self._report(self._done, self._total)


def _plan_feeds(whole: EagerWhole, judging: Judging, folder: OutputFolder) -> FeedPlan:
    samples, digest = whole.samples or (None, None)
    return FeedPlan(
        count=judging.feeds or _FEEDS,
        seed=judging.seed or 0,
        samples=samples and relative_to(samples, folder),
        samples_digest=digest,
    )
