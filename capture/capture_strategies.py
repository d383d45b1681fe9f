"""The table of captures: how each captures a program, and when that is sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..core.contract import Job
from ..core.errors import UsageError
from ..core.kinds import Capture
from .captured_program import (
    CapturedProgram,
    ExportCapture,
    ScriptCapture,
    capture_once,
    model_of,
    preserve_module,
)
from .torch_export import capture_export, capture_export_strict
from .torch_script import capture_hybrid, capture_script
from .torch_trace import capture_trace


@dataclass(frozen=True, kw_only=True)
class CaptureStrategy:
    """One way to capture a program.

    `sound` says when the program holds for every feed of the signature; the verdict decides.
    `keeps_branches` says that branches on tensor data stay branches.
    """

    capture: Capture
    capture_job: Callable[[Job], CapturedProgram]
    sound: str
    keeps_branches: bool = False


STRATEGIES: tuple[CaptureStrategy, ...] = (
    CaptureStrategy(
        capture=Capture.EXPORT,
        capture_job=capture_export,
        sound="always: it refuses what it cannot follow",
    ),
    CaptureStrategy(
        capture=Capture.EXPORT_STRICT,
        capture_job=capture_export_strict,
        sound="always; tried if export fails for a reason that bytecode may resolve, not for a"
        " branch on data or a fixed dim",
    ),
    CaptureStrategy(
        capture=Capture.SCRIPT,
        capture_job=capture_script,
        sound="the module is within TorchScript's Python",
        keeps_branches=True,
    ),
    CaptureStrategy(
        capture=Capture.MIXED,
        capture_job=capture_hybrid,
        sound="all branches on data are in submodules within TorchScript's Python",
    ),
    CaptureStrategy(
        capture=Capture.TRACE,
        capture_job=capture_trace,
        sound="no branch and no constant depends on data",
    ),
)


def capture_program(job: Job) -> CapturedProgram:
    """Capture the job's model, once in a run.

    Raises:
        RefusedError: the capture rejects the model.
        SizesError: it does not hold at all requested sizes.
    """
    strategy = next((one for one in STRATEGIES if one.capture is job.capture), None)
    if strategy is None:
        raise UsageError(f"unknown capture {job.capture}", hint="see modelc export --help")

    def capture_job() -> CapturedProgram:
        with preserve_module(model_of(job).flat):
            return strategy.capture_job(job)

    return capture_once(job, strategy.capture, capture_job)


def capture_exported_program(job: Job) -> ExportCapture:
    """Capture the job's model for a format that requires torch.export."""
    program = capture_program(job)
    if not isinstance(program, ExportCapture):
        raise TypeError(f"{job.capture} does not produce a program of torch.export")
    return program


def capture_torchscript(job: Job) -> ScriptCapture:
    """Capture the job's model for a format that requires TorchScript."""
    program = capture_program(job)
    if not isinstance(program, ScriptCapture):
        raise TypeError(f"{job.capture} does not produce TorchScript")
    return program
