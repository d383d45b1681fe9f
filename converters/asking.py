"""Asks libraries what they can do here, each in a process of its own, which may crash."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = Path(__file__).with_name("asked.py")
# -P: the script's own folder is not put on the path, where our names would shadow others'.
PROBE_COMMAND = (sys.executable, "-P", "-W", "ignore", str(_SCRIPT))
PROBE_TIMEOUT = 30.0  # seconds; a first session of TensorRT's provider takes most of it


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What a library says of one provider, device or of itself."""

    name: str
    works: bool
    told: str


@dataclass(frozen=True, kw_only=True)
class LibraryReport:
    """All that a library said; `failure` is why it said no more, empty where it ended well."""

    said: tuple[ProbeResult, ...] = ()
    failure: str = ""


def probe_libraries(
    libraries: Iterable[str],
    *,
    command: Sequence[str] = PROBE_COMMAND,
    patience: float = PROBE_TIMEOUT,
) -> Mapping[str, LibraryReport]:
    """Ask them side by side.

    Args:
        libraries: names that `asked.py` knows.
        command: what to start; the library is its last argument.
        patience: seconds to wait for each.
    """
    started = {name: _start_probe([*command, name]) for name in libraries}
    return {name: _collect_report(process, patience) for name, process in started.items()}


def _start_probe(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )


def _collect_report(process: subprocess.Popen[str], patience: float) -> LibraryReport:
    failure = ""
    try:
        text, errors = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        text, errors = process.communicate()
        failure = f"no answer within {patience:g} s"
    if not failure and process.returncode:
        failure = _exit_reason(process.returncode, errors)
    return LibraryReport(
        said=tuple(_parse_result(line) for line in text.splitlines() if _is_complete(line)),
        failure=failure,
    )


def _exit_reason(code: int, errors: str) -> str:
    """Why a process ended as it did: the last line of its errors, or the signal."""
    if code < 0:
        return f"it crashed ({signal.Signals(-code).name})"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with {code}"


def _is_complete(line: str) -> bool:
    """Whether a line was written to its end: a crash may cut the last one."""
    return line.startswith("{") and line.endswith("}")


def _parse_result(line: str) -> ProbeResult:
    entry = json.loads(line)
    return ProbeResult(name=entry["name"], works=entry["works"], told=entry["told"])
