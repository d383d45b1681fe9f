"""Runs and API calls in child processes: a crash ends one step, and the others continue."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...core.errors import CheckpointError, ConversionError, ModelcError, RunnerError
from ...core.events import Entered, Finished, Noted, Started, Tell, ignore_events
from ...core.manifest import Failure, Manifest
from ...core.records import REJECTED_FOLDER
from ..inspection import ApiCall, CallValue
from ..manifest_file import read_manifest
from ..output_folder import LOGS_FOLDER, check_output_path, clear_leftovers
from ..plan import Step, make_plan, plan_pending
from ..recorded_run import AnyRequest, FinishRequest, load_manifest
from .child_process import WORKER_LOG_FILE, ChildDeath, run_child
from .ipc import (
    CallResult,
    FinalManifest,
    InitialManifest,
    Interrupted,
    Message,
    StoppedByError,
    rebuild_error,
)
from .watchdog import MIB, ProcessLimits


@dataclass
class _RunListener:
    """What a child told: its record as it began, its end, and which steps are open."""

    tell: Tell
    begun: Manifest | None = None
    result: Manifest | None = None
    stopped: StoppedByError | None = None
    interrupted: bool = False
    entered: str = ""
    open: dict[str, float] = field(default_factory=dict)  # by title, when it began

    def __call__(self, message: Message) -> None:
        match message:
            case InitialManifest():
                self.begun = message.manifest
            case FinalManifest():
                self.result = message.manifest
            case StoppedByError():
                self.stopped = message
            case Interrupted():
                self.interrupted = True
            case CallResult():
                raise TypeError("a run of steps ended like a call")
            case _:
                self._follow(message)
                self.tell(message)

    def _follow(self, event: Message) -> None:
        if isinstance(event, Entered):
            self.entered = event.artifact
        elif isinstance(event, Started):
            self.open[event.step] = time.perf_counter()
        elif isinstance(event, Finished):
            self.open.pop(event.step, None)

    def close(self, detail: str) -> None:
        """Tell that what was open has ended."""
        for title, since in self.open.items():
            seconds = round(time.perf_counter() - since, 3)
            self.tell(Finished(step=title, passed=False, seconds=seconds, detail=detail))


def run_isolated(
    order: AnyRequest,
    tell: Tell = ignore_events,
    *,
    bounds: ProcessLimits | None = None,
    environment: Mapping[str, str] | None = None,
) -> Manifest:
    """Carry out the order as `run` or `finish` does, in a process of its own.

    A step during which that process dies, or is ended for a bound, is recorded as failed; a new
    process goes on with the rest.

    Args:
        order: what to do.
        tell: listens to progress, in this process.
        bounds: what a step may take; by default only its logs are bounded.
        environment: of the child; None is this process's own.

    Raises:
        ModelcError: something stopped the work; artifacts already proven stay, with their record.
        BrokenOffError: a bug of ours in the child.
        KeyboardInterrupt: this process was interrupted; nothing of the child is left.
    """
    bounds = bounds or ProcessLimits()
    check_output_path(order.out)
    made = not order.out.exists()
    plan = _plan_of(order)
    while True:
        heard = _RunListener(tell)
        try:
            death = run_child(order, heard, bounds, order.out / LOGS_FOLDER, environment)
        except KeyboardInterrupt:
            clear_leftovers(order.out, made=made)
            raise
        if heard.stopped is not None:
            raise rebuild_error(heard.stopped)
        if heard.interrupted:
            raise KeyboardInterrupt
        if heard.result is not None:
            return heard.result
        if death is None:
            raise RuntimeError("the child ended without a word")
        manifest, order = _recover(death, heard, plan, order)
        if {step.name for step in plan} <= order.resume.done:
            return manifest
        tell(Noted(text="going on with the rest in a new process"))


def _plan_of(order: AnyRequest) -> tuple[Step, ...]:
    if isinstance(order, FinishRequest):
        return plan_pending(load_manifest(order.out).pending)
    return make_plan(order)


def _recover(
    death: ChildDeath, heard: _RunListener, plan: tuple[Step, ...], order: AnyRequest
) -> tuple[Manifest, AnyRequest]:
    """The record after a death, as it is on the disk, and what is left of the order.

    Raises:
        CheckpointError: it died before it came to a step.
    """
    heard.close(death.name if death.overrun is None else death.overrun.told)
    logs = order.out / LOGS_FOLDER
    clear_leftovers(order.out)
    begun, titles = heard.begun, tuple(heard.open)
    if begun is None or not heard.entered:
        raise error_before_first_step(death, titles, logs)
    now = _read_record(order.out, begun)
    step = next(one for one in plan if one.name == heard.entered)
    if _step_end(step.name, now) == _step_end(step.name, begun):
        now = _add_failure(now, step, crash_failure(step.name, death, titles, logs), order.out)
    else:
        text = f"{step.name} was judged; then its process died ({death.name}): no more is looked at"
        heard.tell(Noted(text=text, warning=True))
    ended = {one.name for one in plan if _step_end(one.name, now) != _step_end(one.name, begun)}
    failed = {failure.step for failure in now.failures}
    kept = order.resume.kept | (ended - failed)
    resume = replace(order.resume, kept=kept, failures=now.failures)
    return now, replace(order, resume=resume)


def _read_record(out: Path, begun: Manifest) -> Manifest:
    """The record of this run: the one on the disk, if the run has come to write it."""
    found = read_manifest(out)
    mine = (begun.created, begun.steps, begun.environment)
    if found is not None and (found.created, found.steps, found.environment) == mine:
        return found
    return begun


def _step_end(step: str, manifest: Manifest) -> tuple[object, ...]:
    """All that the record says of how a step ended."""
    names = (step, f"{REJECTED_FOLDER}/{step}")
    return (
        [one for one in manifest.artifacts if one.name in names],
        [one for one in manifest.verdicts if one.artifact in names],
        [one for one in manifest.failures if one.step == step],
        [one for one in manifest.pending if one.step == step],
    )


def _add_failure(manifest: Manifest, step: Step, failure: Failure, out: Path) -> Manifest:
    """The record with the failure, written as a run in this process would."""
    from ..output_folder import open_folder
    from ..run_context import StepResult, find_unreferenced_files, record_result

    now = record_result(manifest, step, StepResult(failure=failure))
    with open_folder(out) as folder:
        folder.own(file.name for file in manifest.files)
        folder.commit(now, find_unreferenced_files(manifest, now))
    return now


def call_isolated(
    call: ApiCall,
    tell: Tell = ignore_events,
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


_RUNNING_TITLES = (
    "validate ",
    "search ",
    "labelled data ",
    "time ",
    "find the ",
)  # titles of steps
_SIGNALS = {
    "SIGSEGV": "a segmentation fault",
    "SIGBUS": "a fault in memory",
    "SIGABRT": "an abort",
    "SIGILL": "an instruction that this processor does not have",
    "SIGFPE": "an arithmetic fault",
    "SIGKILL": "killed from outside, most often by the system when memory runs out",
    "SIGTERM": "told to end from outside",
}
_MAX_LAST_WORDS = 3  # lines of the log
_MAX_LINE = 160  # characters of each
_LOG_TAIL = 1 << 14
_DISK_FULL_MARGIN = 1 << 20  # bytes left on a disk that is as good as full
_IGNORED_LINES = ("Extension modules:", "Thread 0x", "Current thread", "  <no Python frame>", "[…")


def crash_failure(step: str, death: ChildDeath, open_steps: Sequence[str], logs: Path) -> Failure:
    """The record of a step during which the process died.

    Args:
        step: the artifact's name.
        death: how it died.
        open_steps: titles of what had begun and not ended, the innermost last.
        logs: the folder of the run's logs.
    """
    at = open_steps[-1] if open_steps else ""
    runs = is_running_artifact(at)
    message = _crash_message(death, at, logs)
    kind = RunnerError if runs else ConversionError
    return Failure(
        step=step, message=message, hint=_crash_hint(death, logs), exit_code=kind.exit_code
    )


def is_running_artifact(title: str) -> bool:
    """Whether an artifact runs in the step of this title."""
    return title.startswith(_RUNNING_TITLES)


def describe_death(death: ChildDeath, open_steps: Sequence[str], logs: Path) -> tuple[str, str]:
    """The message and the hint where the process of a call died; its logs are about to go."""
    message = _crash_message(death, open_steps[-1] if open_steps else "", logs)
    if death.overrun is not None or death.name == "SIGKILL":
        return message, _crash_hint(death, logs)
    return message, "--no-isolate runs it in this process, as under a debugger"


def error_before_first_step(
    death: ChildDeath, open_steps: Sequence[str], logs: Path
) -> CheckpointError:
    """The error where the process died over the eager model, so that no step can be made."""
    at = open_steps[-1] if open_steps else "the load of the model"
    return CheckpointError(_crash_message(death, at, logs), hint=_crash_hint(death, logs))


def _crash_message(death: ChildDeath, at: str, logs: Path) -> str:
    words = last_words(logs)
    where = f" during {at!r}" if at else ""
    told = f"; its log ends: {' | '.join(words)}" if words else "; it printed nothing"
    if _is_disk_full(logs):
        told = f"; no space is left on the disk of {logs.parent}{told if words else ''}"
    if death.overrun is not None:
        return f"ended{where}: {death.overrun.told}{told}"
    name = death.name
    what = f" ({_SIGNALS[name]}{_peak_text(death)})" if name in _SIGNALS else ""
    how = f"died with {name}" if death.code >= 0 else f"died of {name}{what}"
    return f"its process {how}{where}{told}"


def _peak_text(death: ChildDeath) -> str:
    killed = death.code == -signal.SIGKILL and death.peak
    return f"; it had {death.peak / MIB:.0f} MiB" if killed else ""


def _crash_hint(death: ChildDeath, logs: Path) -> str:
    if death.overrun is not None:
        return death.overrun.mend
    if death.name == "SIGKILL":
        return "free memory, or say with --memory what it may take"
    if _is_disk_full(logs):
        return "make room there, or give a folder on another disk with -o"
    if any(path.stat().st_size for path in logs.glob("*.log")):
        return f"the whole text is in {logs}"
    if death.code >= 0:
        return "look for os._exit in the model's code and in what it imports: it says no reason"
    return "run it again with PYTHONFAULTHANDLER=1; a library's own code ended the process"


def _is_disk_full(logs: Path) -> bool:
    place = next((one for one in (logs, *logs.parents) if one.is_dir()), Path.cwd())
    return shutil.disk_usage(place).free < _DISK_FULL_MARGIN


def last_words(logs: Path) -> tuple[str, ...]:
    """The last telling lines of the log that was written last; the worker's own where no other."""
    files = [path for path in logs.glob("*.log") if path.is_file() and path.stat().st_size]
    steps = [path for path in files if path.name != WORKER_LOG_FILE]
    for path in sorted(steps or files, key=lambda path: -path.stat().st_mtime_ns)[:1]:
        with path.open("rb") as stream:
            stream.seek(max(path.stat().st_size - _LOG_TAIL, 0))
            lines = stream.read().decode(errors="replace").splitlines()
        telling = [
            line.strip() for line in lines if line.strip() and not line.startswith(_IGNORED_LINES)
        ]
        return tuple(line[:_MAX_LINE] for line in _relevant_lines(telling))
    return ()


def _relevant_lines(lines: Sequence[str]) -> Sequence[str]:
    """From a fatal error on where there is one: its frames go from the innermost outwards."""
    fatal = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
    return lines[fatal[-1] :][:_MAX_LAST_WORDS] if fatal else lines[-_MAX_LAST_WORDS:]
