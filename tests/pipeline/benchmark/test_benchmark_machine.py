"""The cores that threads of a benchmark stay on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modelc.pipeline.benchmark.benchmark_machine import choose_cores

SIBLINGS = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}


@pytest.fixture
def four_threads_of_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(
        Path, "read_text", lambda self: SIBLINGS[int(self.parts[-3].removeprefix("cpu"))]
    )


@pytest.mark.usefixtures("four_threads_of_two_cores")
@pytest.mark.parametrize(
    ("threads", "cores"), [(1, (0,)), (2, (0, 1)), (3, (0, 1, 2)), (4, ()), (9, ())]
)
def test_threads_stay_on_different_physical_cores(threads: int, cores: tuple[int, ...]) -> None:
    assert choose_cores(threads) == cores


@pytest.mark.usefixtures("four_threads_of_two_cores")
def test_hardware_threads_of_one_core_come_after_other_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SIBLINGS, 1, "0,2")
    assert choose_cores(2) == (0, 3)


def test_a_system_without_affinity_has_no_cores_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert choose_cores(1) == ()
