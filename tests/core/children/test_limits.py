"""Limits of a child process, and what they are measured on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from modelc.core.children.limits import MIB, ChildWatchdog, ProcessLimits
from modelc.core.children.process_tree import memory_of
from modelc.core.errors import UsageError


def test_logs_of_earlier_runs_do_not_count_as_chatter(tmp_path: Path) -> None:
    (tmp_path / "old.log").write_bytes(b"." * 2 * MIB)
    watch = ChildWatchdog(ProcessLimits(chatter=MIB), tmp_path)
    assert watch(os.getpid()) is None
    (tmp_path / "new.log").write_bytes(b"." * 2 * MIB)
    assert watch(os.getpid()) is not None


def test_memory_is_that_of_the_whole_family() -> None:
    code = (
        "import time; held = bytearray(b'x') * (200 << 20); print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as grown:
        assert grown.stdout is not None
        grown.stdout.readline()
        alone, family = memory_of(grown.pid, 1 << 40), memory_of(os.getpid(), 1 << 40)
        grown.kill()
    assert alone is not None
    assert family is not None
    assert family > alone > 200 * MIB


def test_a_process_that_is_gone_holds_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert memory_of(gone.pid, 1) == 0


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"timeout": 0.0}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"memory": 5}, "memory"),
        ({"threads": 0}, ""),
    ],
)
def test_a_limit_out_of_range_is_rejected(given: dict[str, float], option: str) -> None:
    with pytest.raises(UsageError) as caught:
        ProcessLimits(**given)  # type: ignore[arg-type]  # wrong on purpose
    assert caught.value.option == option


@pytest.mark.parametrize("given", [{"timeout": 9.0}, {"memory": 1 << 30}])
def test_a_limit_that_the_system_cannot_enforce_is_rejected(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, float]
) -> None:
    monkeypatch.setattr("modelc.core.children.limits.os", SimpleNamespace(name="nt"))
    with pytest.raises(UsageError, match=f"--{next(iter(given))}"):
        ProcessLimits(**given)  # type: ignore[arg-type]
    assert ProcessLimits().timeout is None
