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
COMMAND = (sys.executable, "-P", "-W", "ignore", str(_SCRIPT))
PATIENCE = 30.0  # seconds; a first session of TensorRT's provider takes most of it


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a library says of one provider, device or of itself."""

    name: str
    works: bool
    told: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """All that a library said; `failure` is why it said no more, empty where it ended well."""

    said: tuple[Said, ...] = ()
    failure: str = ""


def ask(
    libraries: Iterable[str],
    *,
    command: Sequence[str] = COMMAND,
    patience: float = PATIENCE,
) -> Mapping[str, Answer]:
    """Ask them side by side.

    Args:
        libraries: names that `asked.py` knows.
        command: what to start; the library is its last argument.
        patience: seconds to wait for each.
    """
    started = {name: _start([*command, name]) for name in libraries}
    return {name: _answer(process, patience) for name, process in started.items()}


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )


def _answer(process: subprocess.Popen[str], patience: float) -> Answer:
    failure = ""
    try:
        text, errors = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        text, errors = process.communicate()
        failure = f"no answer within {patience:g} s"
    if not failure and process.returncode:
        failure = _ending(process.returncode, errors)
    return Answer(
        said=tuple(_said(line) for line in text.splitlines() if _whole(line)), failure=failure
    )


def _ending(code: int, errors: str) -> str:
    """Why a process ended as it did: the last line of its errors, or the signal."""
    if code < 0:
        return f"it crashed ({signal.Signals(-code).name})"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with {code}"


def _whole(line: str) -> bool:
    """Whether a line was written to its end: a crash may cut the last one."""
    return line.startswith("{") and line.endswith("}")


def _said(line: str) -> Said:
    entry = json.loads(line)
    return Said(name=entry["name"], works=entry["works"], told=entry["told"])
