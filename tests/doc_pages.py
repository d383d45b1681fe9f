"""Pages of documentation, read and run as a reader runs them: README and docs/quickstarts.

A console block has commands after `$ `, each followed by lines of its output; a line that is `...`
stands for any others. In a sh block every line is a command. Numbers are not compared, as sizes,
seconds and decibels differ between machines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_TIME = 900  # seconds for one command
_UNLIKE = {"PYTHONSAFEPATH", "MODELC_ISOLATE", "NO_COLOR", "FORCE_COLOR"}  # people do not set them


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks with their languages, continued lines of commands joined."""
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(name, re.sub(r" *\\\n *", " ", text)) for name, text in found]


def commands_of(language: str, block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a block, and the lines of output that stand below it."""
    if language == "sh":
        yield from ((line, []) for line in block.splitlines() if line)
        return
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, [line for line in output.splitlines() if line.strip() not in {"", "..."}]


def as_reader(folder: Path) -> dict[str, str]:
    """The environment of a reader, with `modelc` and `python` on the path, from the folder."""
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = os.pathsep.join(str(Path(place).absolute()) for place in places if place)
    folder.mkdir(parents=True, exist_ok=True)
    for name, flags in (("modelc", "-m modelc"), ("python", "")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {flags} "$@"\n')
        (folder / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in _UNLIKE}
    path = f"{folder}{os.pathsep}{kept['PATH']}"
    return {**kept, "PYTHONPATH": paths, "PATH": path, "COLUMNS": "200"}


def run_command(
    command: str, folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run it in a shell; what it prints, errors too, is in `stdout`."""
    return subprocess.run(
        ["/bin/sh", "-c", command], cwd=folder, env=dict(environment), check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_TIME,
    )  # fmt: skip


def check_output(shown: list[str], printed: str) -> None:
    """Every line that the page shows was printed, in that order."""
    left = iter(map(_comparable, printed.splitlines()))
    for line in map(_comparable, shown):
        assert any(line == other for other in left), f"not printed: {line}\n{printed}"


def _comparable(line: str) -> str:
    """The line without numbers, rules and the widths of columns."""
    return " ".join(_NUMBER.sub("0", line.replace("─", "")).split())
