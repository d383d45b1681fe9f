"""No other package starts a process: what a child does cannot hang or outlive modelc elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Not of the product: they are never imported by it, or run by hand.
OUTSIDE = ("tests", "benchmarks", "docs", "ci", "build")
STARTERS = {
    "fork", "forkpty", "posix_spawn", "posix_spawnp", "popen", "system", "startfile",
    *(f"exec{kind}" for kind in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
    *(f"spawn{kind}" for kind in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
}  # fmt: skip
CALLS = {
    *(f"os.{name}" for name in STARTERS),
    "sys.executable",
    "concurrent.futures.ProcessPoolExecutor",
}
MODULES = ("subprocess", "multiprocessing", "pty", "concurrent.futures.process")
ALLOWED = "core/children/"


def product_files() -> list[Path]:
    return [
        path
        for path in sorted(ROOT.rglob("*.py"))
        if not (parts := path.relative_to(ROOT).parts)[0].startswith(".")
        and parts[0] not in OUTSIDE
        and not path.is_relative_to(ROOT / ALLOWED)
    ]


def starts_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (one.name for one in names if one.name.startswith(MODULES))
            case ast.ImportFrom(module=str(module), names=names, level=0):
                found = {f"{module}.{one.name}" for one in names}
                yield from (name for name in found if name.startswith(MODULES) or name in CALLS)
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                yield from ({f"{module}.{name}"} & CALLS)


def test_nothing_else_starts_a_process() -> None:
    files = product_files()
    assert len(files) > 200
    found = {
        path.relative_to(ROOT).as_posix(): starts
        for path in files
        if (starts := list(starts_of(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess",
        "from subprocess import run",
        "import multiprocessing.pool",
        "import os\nos.fork()",
        "from os import execv",
        "import sys\nsys.executable",
        "from concurrent.futures import ProcessPoolExecutor",
    ],
)
def test_a_start_is_recognised(code: str) -> None:
    assert list(starts_of(ast.parse(code)))
