"""The table of captures: how each takes a program down, and when what it gives is sound."""

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
    """One way to take a program down.

    `sound` says when what it gives holds for every feed of the signature; whether that is so here,
    the verdict says. `keeps_branches` is whether branches on tensor data stay branches.
    """

    capture: Capture
    take: Callable[[Job], CapturedProgram]
    sound: str
    keeps_branches: bool = False


STRATEGIES: tuple[CaptureStrategy, ...] = (
    CaptureStrategy(
        capture=Capture.EXPORT,
        take=capture_export,
        sound="always: what it cannot follow it refuses",
    ),
    CaptureStrategy(
        capture=Capture.EXPORT_STRICT,
        take=capture_export_strict,
        sound="always; tried where export refused for what the bytecode may still tell, never for"
        " a branch on data or a fixed dim, which it refuses alike",
    ),
    CaptureStrategy(
        capture=Capture.SCRIPT,
        take=capture_script,
        sound="the module is within TorchScript's Python",
        keeps_branches=True,
    ),
    CaptureStrategy(
        capture=Capture.MIXED,
        take=capture_hybrid,
        sound="all branches on data lie in submodules within TorchScript's Python",
    ),
    CaptureStrategy(
        capture=Capture.TRACE,
        take=capture_trace,
        sound="no branch and no constant depends on data",
    ),
)


def capture_program(job: Job) -> CapturedProgram:
    """The job's model as its capture takes it down, once in a run.

    Raises:
        RefusedError: the capture refused the model.
        SizesError: it does not hold at all sizes that were asked for.
    """
    strategy = next((one for one in STRATEGIES if one.capture is job.capture), None)
    if strategy is None:
        raise UsageError(f"there is no capture {job.capture}", hint="see modelc export --help")

    def take() -> CapturedProgram:
        with preserve_module(model_of(job).flat):
            return strategy.take(job)

    return capture_once(job, strategy.capture, take)


def capture_exported_program(job: Job) -> ExportCapture:
    """As `capture_program`, for a format that takes programs of torch.export alone."""
    program = capture_program(job)
    if not isinstance(program, ExportCapture):
        raise TypeError(f"{job.capture} gave no program of torch.export")
    return program


def capture_torchscript(job: Job) -> ScriptCapture:
    """As `capture_program`, for a format that takes TorchScript alone."""
    program = capture_program(job)
    if not isinstance(program, ScriptCapture):
        raise TypeError(f"{job.capture} gave no TorchScript")
    return program
