"""The Python API: the same jobs as the commands, typed. Errors are `ModelcError`s."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..calibration.calibration_options import CalibrationOptions, LabelledOptions
from ..converters.registry import TARGETS
from ..core.contract import Readiness, Target
from ..core.errors import ErrorCode, Hint, ModelcError, Option, UsageError
from ..core.events import Tell, ignore_events
from ..core.findings import Localisation
from ..core.kinds import Capture, Precision
from ..core.manifest import Manifest
from ..core.verdict import Limits, Verdict
from ..runtimes.installed_runtime import install_runtime
from .compile_report import inspect_breaks
from .debug.localise_file import DebugOptions, localise_file
from .debug.locate_layer import DEFAULT_MEMORY
from .inspection import inspect, inspect_checkpoint
from .limit_text import Measuring
from .option_values import parse_precision
from .order import Judging, Lowering, Order, Source, Wanted
from .parts.run_parts import PartsRequest, judge_parts, record_parts
from .python_export import ExportedArtifact, ExportResult, PathLike, build, export, run
from .recorded_run import Moved
from .validate_compiled import validate_compiled
from .validate_external import validate_external
from .validate_file import rejudge_folder, validate_file
from .validate_folder import validate_folder
from .validate_served import ServedRequest, validate_served

__all__ = [
    "CalibrationOptions",
    "Capture",
    "ExportResult",
    "ExportedArtifact",
    "Judging",
    "LabelledOptions",
    "Limits",
    "Lowering",
    "Manifest",
    "Measuring",
    "ModelcError",
    "Moved",
    "Order",
    "PartsRequest",
    "Precision",
    "ServedRequest",
    "Source",
    "Verdict",
    "Wanted",
    "build",
    "export",
    "inspect",
    "inspect_breaks",
    "inspect_checkpoint",
    "install_runtime",
    "judge_parts",
    "localise",
    "record_parts",
    "rejudge",
    "run",
    "targets",
    "validate",
    "validate_compiled",
    "validate_external",
    "validate_served",
]


def validate(  # noqa: PLR0913 - the options of `modelc validate`, all but one optional
    path: PathLike,
    *,
    against: Source | None = None,
    moved: Moved | None = None,
    precision: str | None = None,
    judging: Judging | None = None,
    settings: Mapping[str, str] | None = None,
    measuring: Measuring | None = None,
    replay: PathLike | None = None,
    tell: Tell = ignore_events,
) -> Manifest | Verdict:
    """Judge again: a folder from its manifest (Manifest), or one model file (Verdict).

    Args:
        path: an output folder or a model file.
        against: the eager side of a single file; None takes the manifest beside it.
        moved: where a recorded checkpoint and samples are now.
        precision: what to judge a single file as; None is the recorded one, or fp32.
        judging: what is not given in it is as recorded, or the default.
        settings: options that only one format has, as text.
        measuring: what to measure on labelled data; of a single file in its verdict's notes.
        replay: a feed as .npz to judge a single file on among the others.
        tell: listens to progress.

    Raises:
        ModelcError: the artifact or the checkpoint cannot be used.
    """
    place = Path(path)
    if not place.is_dir() and (place.suffix or place.exists()):
        return validate_file(
            place,
            against,
            tell,
            judging=judging,
            precision=None if precision is None else parse_precision(precision),
            moved=moved,
            settings=settings,
            replay=None if replay is None else Path(replay),
            measuring=measuring,
        )
    if replay is not None:
        raise UsageError(
            f"--replay requires a model file, and {place} is a folder",
            hint=f"give the file: modelc validate {place}/model.onnx --replay {replay}",
            option="replay",
            code=ErrorCode.NO_EFFECT,
        )
    if against is not None or precision is not None:
        raise UsageError(
            f"{place} is a folder: its eager reference and precisions are those of its manifest",
            hint=Hint("give a model file, or leave out --against and ", Option("precision")),
            option="precision",
            code=ErrorCode.NO_EFFECT,
        )
    return validate_folder(
        place, tell, moved=moved, judging=judging, settings=settings, measuring=measuring
    )


def rejudge(folder: PathLike, *, judging: Judging, tell: Tell = ignore_events) -> Manifest:
    """Other tolerances on what a folder's manifest measured; nothing is run.

    Raises:
        UsageError: there is nothing that could be judged.
    """
    return rejudge_folder(Path(folder), judging, tell)


def localise(  # noqa: PLR0913 - the options of `modelc debug`, all but one optional
    path: PathLike,
    *,
    against: Source | None = None,
    moved: Moved | None = None,
    precision: str | None = None,
    feed: str | None = None,
    memory: int = DEFAULT_MEMORY,
    out: PathLike | None = None,
    judging: Judging | None = None,
    tell: Tell = ignore_events,
) -> Localisation:
    """Name the layer of a converted model that first leaves eager, and why.

    Args:
        path: a model file, also one in `rejected/`.
        against: the eager side; None takes the manifest that records the file.
        moved: where a recorded checkpoint and samples are now.
        precision: what the file computes in; None is as recorded, else as in the file.
        feed: the feed to look at; None is the artifact's worst.
        memory: bytes of activations to hold at once.
        out: where the reproducer goes; None is the manifest's folder, if there is one.
        judging: how many feeds, from which seed, on which device.
        tell: listens to progress.

    Returns:
        What was found; `guilty` is empty where no layer is wrong by itself.

    Raises:
        ModelcError: the artifact or the checkpoint cannot be used.
    """
    return localise_file(
        Path(path),
        against,
        tell,
        looking=DebugOptions(feed=feed, memory=memory, out=None if out is None else Path(out)),
        judging=judging,
        precision=None if precision is None else parse_precision(precision),
        moved=moved,
    )


def targets() -> tuple[tuple[Target, Readiness], ...]:
    """Every format with its readiness here."""
    return tuple((target, target.readiness()) for target in TARGETS)
