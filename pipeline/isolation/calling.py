"""A function of the Python API in a child process: a file that kills or hangs it ends no more."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from ...core.errors import CheckpointError, ModelcError, RunnerError
from ...core.events import Finished, Started, Tell, silence
from ..calls import ApiCall, CallValue
from .bounds import ProcessLimits
from .child import ChildDeath, run_child
from .crossing import CallResult, Interrupted, Message, StoppedByError, rebuild_error
from .dying import describe_death, is_running_artifact


def call_isolated(
    call: ApiCall,
    tell: Tell = silence,
    *,
    bounds: ProcessLimits | None = None,
    environment: Mapping[str, str] | None = None,
) -> CallValue:
    """Call the function in a process of its own.

    Args:
        call: what to call.
        tell: listens to progress, in this process.
        bounds: what a step of it may take.
        environment: of the child; None is this process's own.

    Raises:
        ModelcError: what the function raised; RunnerError where the artifact ended the process or
            hit a bound, CheckpointError where the checkpoint did.
        BrokenOffError: a bug of ours in the child.
        KeyboardInterrupt: this process was interrupted; nothing of the child is left.
    """
    heard = _CallListener(tell)
    with tempfile.TemporaryDirectory(prefix="modelc-") as folder:
        death = run_child(call, heard, bounds or ProcessLimits(), Path(folder), environment)
        if death is not None:
            raise heard.error_after(death, Path(folder))
    match heard.end:
        case CallResult() as answered:
            return answered.value
        case StoppedByError() as stopped:
            raise rebuild_error(stopped)
        case Interrupted():
            raise KeyboardInterrupt
    raise RuntimeError("the child ended without an answer")


class _CallListener:
    """Passes events on, and keeps how the call ended and which steps are open."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._open: list[str] = []
        self.end: Message | None = None

    def __call__(self, message: Message) -> None:
        if isinstance(message, CallResult | StoppedByError | Interrupted):
            self.end = message
            return
        if isinstance(message, Started):
            self._open.append(message.step)
        elif isinstance(message, Finished) and message.step in self._open:
            self._open.remove(message.step)
        self._tell(message)  # type: ignore[arg-type]  # no record begins or ends in a call

    def error_after(self, death: ChildDeath, logs: Path) -> ModelcError:
        """The error to raise after the child died: of the side that was running."""
        for step in reversed(self._open):
            self._tell(Finished(step=step, passed=False, seconds=0.0, detail=death.name))
        message, hint = describe_death(death, self._open, logs)
        of_checkpoint = bool(self._open) and not is_running_artifact(self._open[-1])
        return (CheckpointError if of_checkpoint else RunnerError)(message, hint=hint)
