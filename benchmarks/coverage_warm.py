"""Cases of coverage.py in processes that are forked from one which has the frameworks imported.

The same calls as in a process started afresh, and as far apart; some ten seconds less a case.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelc.benchmarks import coverage_run
from modelc.benchmarks.coverage_case import Case

_IMPORTED = (
    "transformers", "onnx", "onnxruntime", "openvino", "onnxscript", "safetensors.torch",
    "torch.onnx._internal.exporter._core", "torch._dynamo", "modelc.cli.app",
    "modelc.benchmarks.coverage_against", "modelc.benchmarks.coverage_open",
)  # fmt: skip
_PAUSE = 0.1  # seconds between two looks at what runs


@dataclass(frozen=True, kw_only=True)
class _Running:
    case: Case
    parts: Sequence[str]
    folder: Path
    until: float


def warmed() -> None:
    """Import what the cases use, with one thread, so that a fork has no others to lose."""
    import torch

    warnings.simplefilter("ignore")
    for name in _IMPORTED:
        importlib.import_module(name)
    torch.set_num_threads(1)


def carried_out_warm(
    work: Sequence[tuple[Case, Sequence[str], Path]], *, jobs: int, timeout: float
) -> Iterator[tuple[Case, dict[str, dict[str, Any]]]]:
    """Run the cases, `jobs` at once, `timeout` seconds for each part; results as they come."""
    left = list(reversed(work))
    running: dict[int, _Running] = {}
    try:
        while left or running:
            while left and len(running) < jobs:
                case, parts, folder = left.pop()
                pid = _forked(lambda c=case, p=parts, f=folder: _run(c, p, f))  # type: ignore[misc]
                until = time.monotonic() + timeout * len(parts)
                running[pid] = _Running(case=case, parts=parts, folder=folder, until=until)
            for pid, one in list(running.items()):
                ending = _ending(pid, one)
                if ending:
                    del running[pid]
                    yield one.case, coverage_run.left_by(one.folder, one.parts, ending)
            time.sleep(_PAUSE)
    finally:
        for pid in running:
            os.killpg(pid, signal.SIGKILL)


def _ending(pid: int, one: _Running) -> str:
    """How a process ended; empty while it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        return f"the process ended with {os.waitstatus_to_exitcode(status)}"
    if time.monotonic() < one.until:
        return ""
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "no end in time"


def _run(case: Case, parts: Sequence[str], folder: Path) -> None:
    os.setsid()
    _into(folder / "log.txt", 1, 2)
    coverage_run.main(case.name, folder, parts, command=_command)


def _command(argv: Sequence[str], folder: Path) -> coverage_run.Ran:
    """`modelc` as a process of its own, which is a fork: its output, its errors, its exit code."""
    from modelc.cli.app import main

    out, err = folder / "stdout.txt", folder / "stderr.txt"

    def run() -> None:
        os.chdir(folder)
        _into(out, 1)
        _into(err, 2)
        sys.argv = ["modelc", *argv[3:]]  # without `python -m modelc`
        main()

    _, status = os.waitpid(_forked(run), 0)
    code = os.waitstatus_to_exitcode(status)
    return coverage_run.Ran(returncode=code, stdout=out.read_text(), stderr=err.read_text())


def _forked(work: Callable[[], object]) -> int:
    """Do the work in a fork; it ends with the code that the work exits with."""
    pid = os.fork()
    if pid:
        return pid
    code = coverage_run.BUG
    try:
        work()
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(bool(ending.code))
    except BaseException:  # noqa: BLE001 - the fork must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _into(path: Path, *streams: int) -> None:
    """What the process writes to these streams goes to the file."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for stream in streams:
        os.dup2(handle, stream)
    os.close(handle)
