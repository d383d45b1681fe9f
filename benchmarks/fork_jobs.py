"""Jobs in forks of one process that has the frameworks imported.

A fork is as isolated as a new process and saves some ten seconds of imports.
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
from typing import Generic, TypeVar

T = TypeVar("T")
BUG = 70  # exit code of a fork that ended with an exception
_PAUSE = 0.1  # seconds between two polls
_IMPORTS = (
    "transformers", "onnx", "onnxruntime", "openvino", "onnxscript", "safetensors.torch",
    "torch.onnx._internal.exporter._core", "torch._dynamo", "modelc.cli.app",
    "modelc.benchmarks.coverage_against", "modelc.benchmarks.open_artifacts",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ForkJob(Generic[T]):
    """Work for one fork; its output goes to `log`, and it is killed after `timeout` seconds."""

    key: T
    work: Callable[[], object]
    log: Path
    timeout: float


def warm_up() -> None:
    """Import what the jobs use, with one thread: a fork would lose the others."""
    import torch

    warnings.simplefilter("ignore")
    for name in _IMPORTS:
        importlib.import_module(name)
    torch.set_num_threads(1)


def run_forks(jobs: Sequence[ForkJob[T]], *, at_once: int) -> Iterator[tuple[T, str, bool]]:
    """Run the jobs, `at_once` at a time.

    Yields:
        per finished job its key, how it ended, and whether that was its timeout.
    """
    left = list(reversed(jobs))
    running: dict[int, tuple[ForkJob[T], float]] = {}
    try:
        while left or running:
            while left and len(running) < at_once:
                job = left.pop()
                running[_start(job)] = job, time.monotonic() + job.timeout
            for pid, (job, deadline) in list(running.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if not done and time.monotonic() < deadline:
                    continue
                del running[pid]
                if done:
                    code = os.waitstatus_to_exitcode(status)
                    yield job.key, f"the process ended with {code}", False
                else:
                    os.killpg(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    yield job.key, f"no end after {job.timeout:.0f} s", True
            time.sleep(_PAUSE)
    finally:
        for pid in running:
            os.killpg(pid, signal.SIGKILL)


def _start(job: ForkJob[T]) -> int:
    def work() -> None:
        os.setsid()
        redirect(job.log, 1, 2)
        job.work()

    return fork(work)


def fork(work: Callable[[], object]) -> int:
    """Do the work in a fork, which exits with the work's exit code; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = BUG
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


def redirect(path: Path, *streams: int) -> None:
    """Write these streams of the process to the file."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for stream in streams:
        os.dup2(handle, stream)
    os.close(handle)
