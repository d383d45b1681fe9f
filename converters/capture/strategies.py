"""The table of captures: how each takes a program down, and when what it gives is sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...core.capture import Capture
from ...core.contract import Job
from ...core.errors import UsageError
from .eager import model_of
from .exporting import exported, exported_strictly
from .mixing import mixed
from .program import Exported, Program, Scripted, taken_once
from .scripting import scripted
from .tracing import traced
from .untouched import untouched


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to take a program down.

    `sound` says when what it gives holds for every feed of the signature; whether that is so here,
    the verdict says. `keeps_branches` is whether branches on tensor data stay branches.
    """

    capture: Capture
    take: Callable[[Job], Program]
    sound: str
    keeps_branches: bool = False


STRATEGIES: tuple[Strategy, ...] = (
    Strategy(
        capture=Capture.EXPORT,
        take=exported,
        sound="always: what it cannot follow it refuses",
    ),
    Strategy(
        capture=Capture.EXPORT_STRICT,
        take=exported_strictly,
        sound="always; tried where export refused for what the bytecode may still tell, never for"
        " a branch on data or a fixed dim, which it refuses alike",
    ),
    Strategy(
        capture=Capture.SCRIPT,
        take=scripted,
        sound="the module is within TorchScript's Python",
        keeps_branches=True,
    ),
    Strategy(
        capture=Capture.MIXED,
        take=mixed,
        sound="all branches on data lie in submodules within TorchScript's Python",
    ),
    Strategy(
        capture=Capture.TRACE,
        take=traced,
        sound="no branch and no constant depends on data",
    ),
)


def program_of(job: Job) -> Program:
    """The job's model as its capture takes it down, once in a run.

    Raises:
        RefusedError: the capture refused the model.
        SizesError: it does not hold at all sizes that were asked for.
    """
    strategy = next((one for one in STRATEGIES if one.capture is job.capture), None)
    if strategy is None:
        raise UsageError(f"there is no capture {job.capture}", hint="see modelc export --help")

    def take() -> Program:
        with untouched(model_of(job).flat):
            return strategy.take(job)

    return taken_once(job, strategy.capture, take)


def export_of(job: Job) -> Exported:
    """As `program_of`, for a format that takes programs of torch.export alone."""
    program = program_of(job)
    if not isinstance(program, Exported):
        raise TypeError(f"{job.capture} gave no program of torch.export")
    return program


def torchscript_of(job: Job) -> Scripted:
    """As `program_of`, for a format that takes TorchScript alone."""
    program = program_of(job)
    if not isinstance(program, Scripted):
        raise TypeError(f"{job.capture} gave no TorchScript")
    return program
