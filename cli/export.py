"""`modelc export`, `build-ov` and `build-trt`: convert a checkpoint to verified artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ErrorCode, UsageError
from ..core.hub_ids import name_checkpoint
from ..pipeline.call_options import CallOptions, FileOptions
from ..pipeline.manifest_file import MANIFEST_FILE
from ..pipeline.option_spec import Given, read_record, specs_of
from ..pipeline.option_table import ENGINE_OPTIONS, AccuracyOptions, ArtifactOptions, JudgingOptions
from .command_options import refuse_others, with_options

if TYPE_CHECKING:
    from ..core.kinds import Precision
    from ..pipeline.order import Wanted

# Options of a command that finishes a folder; the manifest records the others.
_FINISH_OPTIONS = {
    "checkpoint", "samples", "allow-pickle", "trust", "preprocess",
    *(one.name for record in (JudgingOptions, AccuracyOptions, CallOptions)
      for one in specs_of(record)),
    *(one.name for one in ENGINE_OPTIONS),
} - {"out", "dry-run"}  # fmt: skip


@with_options("export")
def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="A state_dict, safetensors, TorchScript or .pt2 file, a Hugging Face folder, or "
            "hf://ORG/NAME@REVISION."
        ),
    ],
    *,
    given: Given,
) -> None:
    """Convert a checkpoint and validate every artifact against the eager model."""
    from ..core.kinds import Precision
    from ..pipeline.make_order import make_order
    from ..pipeline.order import Wanted
    from ..pipeline.parts.parts_order import PartsOrder
    from .execute import execute
    from .judging_options import read_limits
    from .run_options import cache_folder

    call, artifacts = read_record(CallOptions, given), read_record(ArtifactOptions, given)
    precision, given = _read_precision(tuple(map(Wanted.parse, artifacts.to)), artifacts, given)
    wanted = tuple(Wanted.parse(text, precision) for text in artifacts.to)
    if precision is not Precision.FP32 and all(":" in text for text in artifacts.to):
        raise UsageError(
            f"--{precision} has no effect: each --to has its own precision",
            hint=f"leave out --{precision}, or give --to {wanted[0].target}",
            option=str(precision),
            code=ErrorCode.NO_EFFECT,
        )
    limits = read_limits(call.tolerance)
    order = make_order(given, checkpoint, wanted, limits=limits, cache=cache_folder())
    parts, order = PartsOrder.read(given, order)
    if parts is not None:
        from .parts import export_parts

        raise typer.Exit(export_parts(order, parts, call))
    execute(order, call)


@with_options("build-ov")
def build_ov(
    path: Annotated[Path, typer.Argument(help="An ONNX file, or a checkpoint.")], *, given: Given
) -> None:
    """Build OpenVINO IR and validate it against the eager model."""
    _build(path, "openvino", given)


@with_options("build-trt")
def build_trt(
    path: Annotated[
        Path,
        typer.Argument(
            help="An ONNX file, a checkpoint, or an output folder with a pending engine."
        ),
    ],
    *,
    given: Given,
) -> None:
    """Build a TensorRT engine and validate it against the eager model.

    Without a GPU or TensorRT, the ONNX file for the engine is built and validated, its operators
    are checked against those of TensorRT, and the engine stays pending (exit 4): the command that
    builds it on a GPU host is printed. With --rtx the engine is built here, for RTX GPUs, and is
    judged on a GPU host. With --partial, torch runs what TensorRT does not take; with
    --onnxruntime, ONNX Runtime does.
    """
    if (path / MANIFEST_FILE).is_file():
        _finish(path, given)
        return
    checkpoint = read_record(FileOptions, given).checkpoint
    if checkpoint is not None:
        named = name_checkpoint(checkpoint)
        text, hint = "--checkpoint needs an output folder", f"pass {named} as the argument"
        raise UsageError(text, hint=hint, option="checkpoint")
    _build(path, _target_of(read_record(ArtifactOptions, given)), given)


def _target_of(artifacts: ArtifactOptions) -> str:
    """Return the target of the flags of build-trt.

    Raises:
        UsageError: the flags exclude each other.
    """
    targets = {"rtx": "tensorrt-rtx", "partial": "torch-tensorrt", "onnxruntime": "onnx-tensorrt"}
    given = [name for name in targets if getattr(artifacts, name)]
    if len(given) > 1:
        raise UsageError(
            f"--{given[0]} and --{given[1]} exclude each other", hint="give one of them",
            option=given[1], code=ErrorCode.UNSUPPORTED,
        )  # fmt: skip
    return targets[given[0]] if given else "tensorrt"


def _build(path: Path, target: str, given: Given) -> None:
    """Build one artifact of the target."""
    from ..pipeline.make_order import build_order, make_order
    from ..pipeline.order import Wanted
    from .execute import execute
    from .judging_options import read_limits
    from .run_options import cache_folder

    call, artifacts = read_record(CallOptions, given), read_record(ArtifactOptions, given)
    precision, given = _read_precision((Wanted.parse(target),), artifacts, given)
    wanted = Wanted(target=target, precision=precision)
    checkpoint = read_record(FileOptions, given).against or path
    limits = read_limits(call.tolerance)
    order = make_order(given, checkpoint, (wanted,), limits=limits, cache=cache_folder())
    execute(build_order(path, order), call)


def _read_precision(
    wanted: tuple[Wanted, ...], artifacts: ArtifactOptions, given: Given
) -> tuple[Precision, Given]:
    """Return the precision of the flags, and the options with `--rest` as the flags ask for it.

    Raises:
        UsageError: the flags exclude each other.
    """
    from ..pipeline.make_order import choose_precision, lowers_rest

    rests = all(map(lowers_rest, wanted))
    precision = choose_precision(artifacts, rest=rests)
    return precision, _rest_of_flags(artifacts, given) if rests else given


def _rest_of_flags(artifacts: ArtifactOptions, given: Given) -> Given:
    """Return the options with `--rest` as `--fp16` or `--bf16` beside `--int8` ask for it."""
    asked = "fp16" if artifacts.fp16 else "bf16" if artifacts.bf16 else ""
    if not asked or not (artifacts.int8 or artifacts.fp8 or artifacts.int4):
        return given
    other = given.get("rest")
    if other not in (None, asked):
        raise UsageError(
            f"--{asked} and --rest {other} exclude each other", hint="give one of them",
            option="rest", code=ErrorCode.UNSUPPORTED,
        )  # fmt: skip
    return {**given, "rest": asked}


def _finish(folder: Path, given: Given) -> None:
    """Run the pending steps of an output folder."""
    from ..pipeline.make_order import make_judging, make_measuring, make_settings
    from ..pipeline.plan import plan_pending
    from ..pipeline.recorded_run import FinishRequest, load_manifest
    from .execute import execute_request
    from .judging_options import read_limits
    from .run_options import cache_folder, file_move

    call = read_record(CallOptions, given)
    refuse_others(
        given, _FINISH_OPTIONS, f"with the output folder {folder}, whose manifest has the steps",
        f"run modelc build-trt {folder}, or pass a checkpoint",
    )  # fmt: skip
    steps = plan_pending(load_manifest(folder).pending)
    trusts_code = bool(given.get("trust") or given.get("trust-engine"))
    wanted = tuple(step.wanted for step in steps)
    request = FinishRequest(
        out=folder,
        moved=file_move(given),
        judging=make_judging(given, read_limits(call.tolerance)),
        settings=make_settings({**given, "trust-engine": trusts_code}, wanted),
        cache=None if call.no_cache else cache_folder(),
        measuring=make_measuring(given, calibrates=False),
    )
    execute_request(request, call)
