"""Runs and API calls in child processes: a crash ends one step, and the others continue."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from ...checkpoints.user_code import extra_folders
from ...core.children.child_call import CallEnd, ChildCall, run_in_child
from ...core.children.fork_server import ForkServer
from ...core.children.limits import ChildWatchdog, ProcessLimits
from ...core.children.messages import Interrupted, Returned, StoppedByError, rebuild_error
from ...core.children.processes import OutputLog, ProcessEnd
from ...core.compile_records import CompileReport
from ...core.events import Advanced, Entered, Event, Finished, Noted, Started, Tell, ignore_events
from ...core.external_runtime import ExternalReport
from ...core.findings import Localisation
from ...core.manifest import Failure, Manifest
from ...core.part_records import PartsManifest, PartsPlan
from ...core.records import REJECTED_FOLDER
from ...core.verdict import Verdict
from ..inspection import CheckpointContents, InspectedFile
from ..manifest_file import read_manifest
from ..output_folder import LOGS_FOLDER, check_output_path, clear_leftovers
from ..plan import Step, make_plan, plan_pending
from ..recorded_run import AnyRequest, FinishRequest, load_manifest
from .crash_report import WORKER_LOG_FILE, crash_error, crash_failure, error_before_first_step
from .worker import ApiCall, CallValue, ChildWork, InitialManifest, IsolatedWork, perform_work

_MESSAGES = (
    InitialManifest, Manifest, Verdict, Localisation, InspectedFile, CheckpointContents,
    CompileReport, ExternalReport, PartsPlan, PartsManifest,
)  # fmt: skip
_Message: TypeAlias = InitialManifest | Event

_CLOCK_TICK = 0.1  # seconds by which a file's time may be behind the clock


class _Listener:
    """Passes events on, and keeps the first manifest, the current artifact and the open steps."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.initial: Manifest | None = None
        self.entered = ""
        self._open: list[tuple[Started, float]] = []  # with the time when it began

    def __call__(self, message: _Message) -> None:
        if isinstance(message, InitialManifest):
            self.initial = message.manifest
            return
        if isinstance(message, Entered):
            self.entered = message.artifact
        elif isinstance(message, Started | Finished):  # one that starts again was not finished
            self._open = [one for one in self._open if one[0].step != message.step]
        if isinstance(message, Started):
            self._open.append((message, time.perf_counter()))
        self._tell(message)

    @property
    def open(self) -> tuple[Started, ...]:
        """The steps that are open, the innermost last."""
        return tuple(step for step, _ in self._open)

    def close(self, detail: str) -> None:
        """Report that the open steps have ended."""
        for step, since in reversed(self._open):
            seconds = round(time.perf_counter() - since, 3)
            self._tell(Finished(step=step.step, passed=False, seconds=seconds, detail=detail))


@dataclass(frozen=True, kw_only=True)
class _ChildOrigin:
    """The environment of the child, None for that of this process, and what forks it."""

    environment: Mapping[str, str] | None
    server: ForkServer | None = None


def _run_work(
    work: ChildWork,
    listener: _Listener,
    limits: ProcessLimits,
    logs: Path,
    origin: _ChildOrigin,
) -> CallEnd:
    """Do the work in a child; what it prints outside of its steps goes to a file in `logs`."""
    if origin.server is not None:
        origin.server.start(origin.environment)  # its time is not that of a step
    watchdog, output, began = ChildWatchdog(limits, logs), OutputLog(), time.time()
    clock_starts = Started if isinstance(work, ApiCall) else Entered

    def on_message(message: _Message) -> None:
        loads = isinstance(message, Advanced) and message.in_bytes  # a download that goes on
        if loads or isinstance(message, clock_starts):
            watchdog.restart_clock()
        listener(message)

    call = ChildCall(
        function=perform_work,
        argument=IsolatedWork(work=work, code_folders=extra_folders()),
        messages=_MESSAGES,
        environment=origin.environment,
        threads=limits.threads,
        grace=limits.grace,
    )
    try:
        end = run_in_child(call, on_message, log=output, watch=watchdog, server=origin.server)
    finally:
        output.append_to(logs / WORKER_LOG_FILE)
    watchdog.trim_logs()
    if not isinstance(end, ProcessEnd):
        return end
    return replace(end, peak=watchdog.peak, began=began - _CLOCK_TICK)


def _value_of(end: Returned | StoppedByError | Interrupted) -> object:
    """Return the value of a call that was not cut off, or raise what it raised."""
    if isinstance(end, StoppedByError):
        raise rebuild_error(end)
    if isinstance(end, Interrupted):
        raise KeyboardInterrupt
    return end.value


def run_isolated(
    order: AnyRequest,
    tell: Tell = ignore_events,
    *,
    bounds: ProcessLimits | None = None,
    environment: Mapping[str, str] | None = None,
    server: ForkServer | None = None,
) -> Manifest:
    """Carry out the request as `run` or `finish_pending` does, in a child process.

    A step during which that process dies, or is ended for a limit, is recorded as failed; a new
    process continues with the rest.

    Args:
        order: what to do.
        tell: listens to progress, in this process.
        bounds: what a step may use; by default only its logs are limited.
        environment: of the child; None inherits that of this process.
        server: forks the child where a new process would do the same.

    Raises:
        ModelcError: the work was stopped; artifacts that passed stay, with their manifest.
        ChildBugError: an unexpected exception in the child.
        KeyboardInterrupt: this process was interrupted; nothing of the child is left.
    """
    limits = bounds or ProcessLimits()
    check_output_path(order.out)
    is_new = not order.out.exists()
    if isinstance(order, FinishRequest):
        plan = plan_pending(load_manifest(order.out).pending)
    else:
        plan = make_plan(order)
    origin = _ChildOrigin(environment=environment, server=server)
    while True:
        listener = _Listener(tell)
        try:
            end = _run_work(order, listener, limits, order.out / LOGS_FOLDER, origin)
        except KeyboardInterrupt:
            clear_leftovers(order.out, made=is_new)
            raise
        if not isinstance(end, ProcessEnd):
            manifest = _value_of(end)
            if not isinstance(manifest, Manifest):
                raise TypeError(f"a run returned a {type(manifest).__name__}")
            return manifest
        manifest, order = _recover(end, listener, plan, order)
        if {step.name for step in plan} <= order.resume.done:
            return manifest
        tell(Noted(text="continuing in a new process"))


def _recover(
    end: ProcessEnd, listener: _Listener, plan: tuple[Step, ...], order: AnyRequest
) -> tuple[Manifest, AnyRequest]:
    """Return the manifest on the disk after a crash, and what is left of the request.

    Raises:
        CheckpointError: the process died before it began a step.
    """
    listener.close(end.name if end.overrun is None else end.overrun.text)
    logs = order.out / LOGS_FOLDER
    clear_leftovers(order.out)
    initial = listener.initial
    if initial is None or not listener.entered:
        raise error_before_first_step(end, listener.open, logs)
    now = _read_run_manifest(order.out, initial)
    step = next(one for one in plan if one.name == listener.entered)
    if not _has_ended(step.name, now, initial):
        failure = crash_failure(step.name, end, listener.open, logs)
        now = _add_failure(now, step, failure, order.out)
    else:
        text = f"{step.name} was judged, then its process died ({end.name}): its layers are unknown"
        listener(Noted(text=text, warning=True))
    names = [one.name for one in plan]
    ended = {name for name in names if _has_ended(name, now, initial)}
    failed = {failure.step for failure in now.failures}
    kept = order.resume.kept | (ended - failed)
    resume = replace(order.resume, kept=kept, failures=now.failures)
    return now, replace(order, resume=resume)


def _read_run_manifest(out: Path, initial: Manifest) -> Manifest:
    """Return the manifest on the disk if this run wrote it, else the one that it began with."""
    found = read_manifest(out)
    run_of = (initial.created, initial.steps, initial.environment)
    if found is not None and (found.created, found.steps, found.environment) == run_of:
        return found
    return initial


def _has_ended(step: str, now: Manifest, initial: Manifest) -> bool:
    """Return whether the step has a result; what is kept until it is judged is none."""
    from ..pending_step import NOT_JUDGED

    if any(one.step == step and one.reason == NOT_JUDGED for one in now.pending):
        now = replace(now, pending=initial.pending)
    return _step_records(step, now) != _step_records(step, initial)


def _step_records(step: str, manifest: Manifest) -> tuple[object, ...]:
    """Return the records of a step's result."""
    names = (step, f"{REJECTED_FOLDER}/{step}")
    return (
        [one for one in manifest.artifacts if one.name in names],
        [one for one in manifest.verdicts if one.artifact in names],
        [one for one in manifest.failures if one.step == step],
        [one for one in manifest.pending if one.step == step],
    )


def _add_failure(manifest: Manifest, step: Step, failure: Failure, out: Path) -> Manifest:
    """Return the manifest with the failure, written as a run in this process would write it."""
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
    """Call a function of the Python API in a child process.

    Args:
        call: what to call.
        tell: listens to progress, in this process.
        bounds: what a step of it may use.
        environment: of the child; None inherits that of this process.

    Raises:
        ModelcError: what the function raised; RunnerError where the artifact ended the process or
            exceeded a limit, CheckpointError where the checkpoint did.
        ChildBugError: an unexpected exception in the child.
        KeyboardInterrupt: this process was interrupted; nothing of the child is left.
    """
    listener = _Listener(tell)
    with tempfile.TemporaryDirectory(prefix="modelc-") as folder:
        logs = Path(folder)
        origin = _ChildOrigin(environment=environment)
        end = _run_work(call, listener, bounds or ProcessLimits(), logs, origin)
        if isinstance(end, ProcessEnd):
            listener.close(end.name)
            raise crash_error(end, listener.open, logs)
    value = _value_of(end)
    if not isinstance(value, _MESSAGES) or isinstance(value, InitialManifest):
        raise TypeError(f"the call returned a {type(value).__name__}")
    return value
