"""What is recorded of a step whose process died: of what, during what, after what words."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import CheckpointError, ConversionError, RunnerError
from ...core.manifest import Failure
from .bounds import MIB
from .child import ChildDeath
from .worker_log import WORKER_LOG_FILE

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
