"""The Python API: the same jobs as the commands, typed. Errors are `ModelcError`s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..calibration.label_options import LabelledOptions
from ..calibration.options import CalibrationOptions
from ..converters.registry import TARGETS
from ..core.capture import Capture
from ..core.contract import CAPTURE_TIMEOUT, Readiness, Target
from ..core.errors import ModelcError, UsageError
from ..core.events import Tell, silence
from ..core.findings import Localisation
from ..core.manifest import Manifest
from ..core.names import unknown
from ..core.precision import Precision
from ..core.verdict import Limits, Verdict
from .building import build_order
from .inspecting import inspect, inspect_checkpoint
from .localising.asking import Looking, localise_file
from .localising.localise import MEMORY
from .measuring import Measuring
from .order import Judging, Lowering, Order, Source, Wanted
from .recorded import Moved
from .rejudge import rejudge_folder
from .revalidate import validate_folder
from .run import run
from .single import validate_file

PathLike = str | Path

__all__ = [
    "CalibrationOptions",
    "Capture",
    "Judging",
    "LabelledOptions",
    "Limits",
    "Lowering",
    "Manifest",
    "Measuring",
    "ModelcError",
    "Moved",
    "Order",
    "Precision",
    "Source",
    "Verdict",
    "Wanted",
    "build",
    "export",
    "inspect",
    "inspect_checkpoint",
    "localise",
    "rejudge",
    "run",
    "targets",
    "validate",
]


def export(  # noqa: PLR0913 - the options of `modelc export`, all but three optional
    checkpoint: PathLike,
    *,
    to: Sequence[str],
    out: PathLike,
    model: str | None = None,
    model_args: Mapping[str, str] | None = None,
    method: str | None = None,
    inputs: Sequence[str] = (),
    static: Sequence[str] = (),
    drop_outputs: Sequence[str] = (),
    weights_key: str | None = None,
    samples: PathLike | None = None,
    strict: bool = True,
    allow_pickle: bool = False,
    trust: bool = False,
    capture: str = "auto",
    patches: Sequence[str] = (),
    custom_ops: Mapping[str, str] | None = None,
    runtimes: Sequence[str] = (),
    opset: int | None = None,
    external_data: bool = False,
    narrow: bool = False,
    guard: bool = False,
    capture_timeout: float = CAPTURE_TIMEOUT,
    overwrite: bool = False,
    lowering: Lowering | None = None,
    judging: Judging | None = None,
    measuring: Measuring | None = None,
    tell: Tell = silence,
) -> Manifest:
    """Convert a checkpoint and prove every artifact against eager.

    Args:
        checkpoint: weights file or folder.
        to: formats, as `"onnx"` or `"openvino:fp16"`.
        out: output folder.
        model: `"package.module:factory"`; not needed where the checkpoint holds its module.
        model_args: arguments of the factory, as text.
        method: what to convert instead of forward.
        inputs: input specs in the `--input` language.
        static: dims to fix at their opt size.
        drop_outputs: names of outputs to leave out.
        weights_key: the weights to take where the checkpoint holds several sets.
        samples: a file of real samples, or `package.module:loader`.
        strict: refuse missing or unexpected weights.
        allow_pickle: read full pickles.
        trust: open a checkpoint that is a program: TorchScript, `.pt2`.
        capture: `auto`, `export`, `export-strict`, `script`, `mixed` or `trace`.
        patches: functions (`"package.module:fn"`) that change the copy to capture.
        custom_ops: by operator (`"ns::op"`), the function that writes it in ONNX.
        runtimes: what an ONNX must load in, as `"onnxruntime==1.20"`.
        opset: of ONNX.
        external_data: keep ONNX weights in a file of their own.
        narrow: accept artifacts that hold in a part of the domain, which is then their own.
        guard: put a check of the domain into an ONNX, so that its runtime fails outside of it.
        capture_timeout: seconds of torch's symbolic solver in one attempt at a capture.
        overwrite: move another checkpoint's artifacts in `out` away.
        lowering: calibration data and quantizer of INT8, what stays in floating point.
        judging: feeds, seed, tolerances, device.
        measuring: what to measure on labelled data, and the most that may be lost.
        tell: listens to progress.

    Returns:
        The manifest; `manifest.passed` says whether everything is proven.

    Raises:
        ModelcError: something stopped the work.
    """
    source = Source(
        checkpoint=Path(checkpoint),
        model=model,
        model_args=dict(model_args or {}),
        strict=strict,
        allow_pickle=allow_pickle,
        trust=trust,
        inputs=tuple(inputs),
        samples=None if samples is None else Path(samples),
        method=method,
        static=tuple(static),
        drop_outputs=tuple(drop_outputs),
        weights_key=weights_key,
    )
    order = Order(
        source=source,
        wanted=tuple(Wanted.parse(text) for text in to),
        out=Path(out),
        judging=judging or Judging(),
        capture=_capture(capture),
        opset=opset,
        external_data=external_data,
        narrow=narrow,
        guard=guard,
        capture_timeout=capture_timeout,
        overwrite=overwrite,
        lowering=lowering or Lowering(),
        measuring=measuring,
        patches=tuple(patches),
        custom_ops=dict(custom_ops or {}),
        runtimes=tuple(runtimes),
    )
    return run(order, tell)


def _capture(text: str) -> Capture | None:
    """The capture of that name; None for auto."""
    known = [capture.value for capture in Capture]
    if text != "auto" and text not in known:
        raise unknown("capture", text, ["auto", *known])
    return None if text == "auto" else Capture(text)


def build(  # noqa: PLR0913 - the options of the build commands, all but three optional
    path: PathLike,
    *,
    to: str,
    out: PathLike,
    against: Source | None = None,
    lowering: Lowering | None = None,
    settings: Mapping[str, str] | None = None,
    judging: Judging | None = None,
    measuring: Measuring | None = None,
    tell: Tell = silence,
) -> Manifest:
    """Build one artifact from a converted model, or from a checkpoint.

    Args:
        path: a model that the target is made from.
        to: the format, as `"openvino:fp16"`.
        out: output folder.
        against: the eager side; None takes the manifest beside `path`.
        lowering: calibration data and quantizer of INT8, what stays in floating point.
        settings: options that the format alone has, as text.
        judging: feeds, seed, tolerances, device.
        measuring: what to measure on labelled data, and the most that may be lost.
        tell: listens to progress.

    Raises:
        ModelcError: something stopped the work.
    """
    given = against or Source(checkpoint=Path(path))
    order = Order(
        source=given,
        wanted=(Wanted.parse(to),),
        out=Path(out),
        judging=judging or Judging(),
        lowering=lowering or Lowering(),
        settings=settings or {},
        measuring=measuring,
    )
    return run(build_order(Path(path), order), tell)


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
    tell: Tell = silence,
) -> Manifest | Verdict:
    """Judge again: a folder from its manifest (Manifest), or one model file (Verdict).

    Args:
        path: an output folder or a model file.
        against: the eager side of a single file; None takes the manifest beside it.
        moved: where a recorded checkpoint and samples are now.
        precision: what to judge a single file as; None is the recorded one, or fp32.
        judging: what is not given in it is as recorded, or the default.
        settings: options that only one format has, as text.
        measuring: what to measure on labelled data; of a single file told in its verdict's notes.
        replay: a feed as .npz to judge a single file on among the others.
        tell: listens to progress.

    Raises:
        ModelcError: the artifact or the checkpoint cannot be used.
    """
    place = Path(path)
    if not place.is_dir():
        known = None if precision is None else _precision(precision)
        return validate_file(
            place,
            against,
            tell,
            judging=judging,
            precision=known,
            moved=moved,
            settings=settings,
            replay=None if replay is None else Path(replay),
            measuring=measuring,
        )
    if replay is not None:
        raise UsageError(
            f"--replay is for one model file, and {place} is a folder",
            hint=f"give the file: modelc validate {place}/model.onnx --replay {replay}",
        )
    if against is not None or precision is not None:
        raise UsageError(
            f"{place} is a folder, judged against what its manifest says",
            hint="give a model file, or leave out --against and --precision",
        )
    return validate_folder(
        place, tell, moved=moved, judging=judging, settings=settings, measuring=measuring
    )


def rejudge(folder: PathLike, *, judging: Judging, tell: Tell = silence) -> Manifest:
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
    memory: int = MEMORY,
    out: PathLike | None = None,
    judging: Judging | None = None,
    tell: Tell = silence,
) -> Localisation:
    """Name the layer of a converted model that first leaves eager, and why.

    Args:
        path: a model file, also one in `rejected/`.
        against: the eager side; None takes the manifest that knows the file.
        moved: where a recorded checkpoint and samples are now.
        precision: what the file computes in; None is as recorded, else as the file says.
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
        looking=Looking(feed=feed, memory=memory, out=None if out is None else Path(out)),
        judging=judging,
        precision=None if precision is None else _precision(precision),
        moved=moved,
    )


def _precision(text: str) -> Precision:
    known = [precision.value for precision in Precision]
    if text not in known:
        raise unknown("precision", text, known)
    return Precision(text)


def targets() -> tuple[tuple[Target, Readiness], ...]:
    """Every format with its readiness here."""
    return tuple((target, target.readiness()) for target in TARGETS)
