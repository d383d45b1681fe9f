"""The error of a child process that died: message, hint, and the end of its log."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from ...core.children.processes import ProcessEnd
from ...core.errors import CheckpointError, ConversionError, ModelcError, RunnerError
from ...core.events import Started
from ...core.manifest import Failure
from ...core.records import size_text

WORKER_LOG_FILE = "worker.log"
_SIGNALS = {
    "SIGSEGV": "a segmentation fault",
    "SIGBUS": "a fault in memory",
    "SIGABRT": "an abort",
    "SIGILL": "an instruction that this processor does not have",
    "SIGFPE": "an arithmetic fault",
    "SIGKILL": "killed, most often by the system when memory runs out",
    "SIGTERM": "terminated by another process",
}
_MAX_LAST_WORDS = 3  # lines of the log
_MAX_LINE = 160  # characters of each
_LOG_TAIL = 1 << 14
_DISK_FULL_MARGIN = 1 << 20  # bytes free on a disk that counts as full
_FATAL, _THREAD = "Fatal Python error:", "Current thread"
_IGNORED_LINES = ("Extension modules:", "Thread 0x", _THREAD, "  <no Python frame>", "[…")


def crash_failure(step: str, end: ProcessEnd, open_steps: Sequence[Started], logs: Path) -> Failure:
    """Return the record of a step during which the process died.

    Args:
        step: the artifact's name.
        end: how the process ended.
        open_steps: what had started and not finished, the innermost last.
        logs: the folder of the run's logs.
    """
    runs = bool(open_steps) and open_steps[-1].runs_artifact
    kind = RunnerError if runs else ConversionError
    return Failure(
        step=step,
        message=_crash_message(end, open_steps, logs),
        hint=_crash_hint(end, logs),
        exit_code=kind.exit_code,
    )


def crash_error(end: ProcessEnd, open_steps: Sequence[Started], logs: Path) -> ModelcError:
    """Return the error of a call whose process died; its logs are about to be removed."""
    hint = "--no-isolate runs it in this process, as under a debugger"
    if end.overrun is not None or end.name == "SIGKILL":
        hint = _crash_hint(end, logs)
    of_checkpoint = bool(open_steps) and not open_steps[-1].runs_artifact
    kind = CheckpointError if of_checkpoint else RunnerError
    return kind(_crash_message(end, open_steps, logs), hint=hint)


def error_before_first_step(
    end: ProcessEnd, open_steps: Sequence[Started], logs: Path
) -> CheckpointError:
    """Return the error of a run whose process died before any step began."""
    at = open_steps or (Started(step="load model"),)
    return CheckpointError(_crash_message(end, at, logs), hint=_crash_hint(end, logs))


def _crash_message(end: ProcessEnd, open_steps: Sequence[Started], logs: Path) -> str:
    words = last_words(logs, since=end.began)
    where = f" during {open_steps[-1].step!r}" if open_steps else ""
    printed = f"; its log ends: {' | '.join(words)}" if words else "; it printed nothing"
    if _is_disk_full(logs):
        printed = f"; the disk of {logs.parent} is full{printed if words else ''}"
    if end.overrun is not None:
        return f"ended{where}: {end.overrun.text}{printed}"
    name = end.name
    killed = end.code == -signal.SIGKILL and end.peak
    peak = f"; it had {size_text(end.peak)}" if killed else ""
    meaning = f" ({_SIGNALS[name]}{peak})" if name in _SIGNALS else ""
    how = f"died with {name}" if end.code >= 0 else f"died of {name}{meaning}"
    return f"its process {how}{where}{printed}"


def _crash_hint(end: ProcessEnd, logs: Path) -> str:
    if end.overrun is not None:
        return end.overrun.hint
    if end.name == "SIGKILL":
        return "free memory, or limit what it may use with --memory"
    if _is_disk_full(logs):
        return "free space there, or give a folder on another disk with -o"
    if any(path.stat().st_size for path in logs.glob("*.log")):
        return f"the whole text is in {logs}"
    if end.code >= 0:
        return "look for os._exit in the model's code and in the modules that it imports"
    return "run it again with PYTHONFAULTHANDLER=1: native code of a library ended the process"


def _is_disk_full(logs: Path) -> bool:
    place = next((folder for folder in (logs, *logs.parents) if folder.is_dir()), Path.cwd())
    return shutil.disk_usage(place).free < _DISK_FULL_MARGIN


def last_words(logs: Path, *, since: float = 0.0) -> tuple[str, ...]:
    """Return the last relevant lines of the newest log; of the worker's log if it is the only one.

    From a fatal error of Python on if there is one: the frames of the thread that had it, from the
    innermost outwards. Logs that were not written since then are of earlier runs.
    """
    files = [path for path in logs.glob("*.log") if path.is_file() and path.stat().st_size]
    files = [path for path in files if path.stat().st_mtime >= since]
    steps = [path for path in files if path.name != WORKER_LOG_FILE]
    newest = max(steps or files, key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return ()
    with newest.open("rb") as stream:
        stream.seek(max(newest.stat().st_size - _LOG_TAIL, 0))
        text = stream.read().decode(errors="replace")
    lines = text.splitlines()
    fatal = [number for number, line in enumerate(lines) if line.startswith(_FATAL)]
    if not fatal:
        return tuple(_relevant_lines(lines)[-_MAX_LAST_WORDS:])
    error, *stacks = lines[fatal[-1] :]
    mine = [number for number, line in enumerate(stacks) if line.startswith(_THREAD)]
    return tuple(_relevant_lines([error, *stacks[mine[0] if mine else 0 :]])[:_MAX_LAST_WORDS])


def _relevant_lines(lines: Sequence[str]) -> list[str]:
    return [
        line.strip()[:_MAX_LINE]
        for line in lines
        if line.strip() and not line.startswith(_IGNORED_LINES)
    ]
