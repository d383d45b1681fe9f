"""The attack set and twenty random nets: no artifact that passed is wrong, ordinary nets pass.

A process of its own exports all nets once, each in a fork, and judges what passed apart from
modelc; the tests here read what it found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

NETS = Path(__file__).resolve().parent.parent / "nets"
sys.path.insert(0, str(NETS / "attacks"))

from attack_case import attacks  # noqa: E402 - it stands where users' nets do

TABLE = attacks()
RANDOM = sorted((NETS / "random").glob("net_*.py"))
BAD = ("WRONG", "RAISES", "crashed", "hung")
NOT_THERE = ("failed", "rejected", "crashed", "hung")
Records = Mapping[str, Mapping[str, Any]]


def run(module: str, out: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", f"modelc.benchmarks.{module}", "--out", str(out), *arguments]
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    jobs = ["--jobs", str(min(os.cpu_count() or 1, 4))]
    log = out.with_suffix(".txt")
    with log.open("w") as stream:
        ended = subprocess.run(
            [*command, *jobs], env={**os.environ, **quiet}, stdout=stream, stderr=stream,
            check=False,
        )  # fmt: skip
    assert ended.returncode in (0, 1), log.read_text()[-3000:]


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """What came of each net of the attack set."""
    out = tmp_path_factory.mktemp("attack")
    run("attack", out)
    return {one["name"]: one for one in json.loads((out / "results.json").read_text())}


@pytest.fixture(scope="session")
def found_random(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """What came of each random net."""
    out = tmp_path_factory.mktemp("random")
    run("nnsmith_fuzz", out, str(NETS / "random"))
    lines = (out / "results.jsonl").read_text().splitlines()
    return {one["name"]: one for one in map(json.loads, lines)}


def wrong_of(record: Mapping[str, Any]) -> dict[str, str]:
    return {
        target: one["reason"] for target, one in record["artifacts"].items() if one["state"] in BAD
    }


def test_the_set_is_large_enough() -> None:
    assert len(TABLE) >= 150
    assert len(RANDOM) == 20


# What is open, with the reason; a fix takes it from here (the marks are strict).
WRONG: dict[str, str] = {}
REJECTED: dict[str, str] = {}


def named(names: Iterable[str], known: Mapping[str, str]) -> list[Any]:
    """The names as parameters; those that are known to fail are marked so."""
    marks = {name: pytest.mark.xfail(reason=why, strict=True) for name, why in known.items()}
    return [
        pytest.param(name, marks=[marks[name]] if name in marks else []) for name in sorted(names)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", named(TABLE, WRONG))
def test_no_artifact_that_passed_is_wrong(found: Records, name: str) -> None:
    assert not wrong_of(found[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", named((name for name, case in TABLE.items() if case.good), REJECTED)
)
def test_an_ordinary_net_passes_at_the_first_try(found: Records, name: str) -> None:
    artifacts = found[name]["artifacts"].items()
    lost = {t: one["reason"] for t, one in artifacts if one["state"] in NOT_THERE}
    assert not {t: why for t, why in lost.items() if t not in TABLE[name].unable}


@pytest.mark.slow
@pytest.mark.parametrize("path", RANDOM, ids=lambda path: path.stem)
def test_no_random_net_passes_wrong(found_random: Records, path: Path) -> None:
    assert not wrong_of(found_random[path.stem])
