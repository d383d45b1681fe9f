"""A verdict on an engine is of one driver and one TensorRT; after a change it is named stale."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modelc.core.target_extensions import list_host_changes

from .test_gpu_host import DIGITS, TESTS


def modelc(cwd: Path, *arguments: str, driver: str = "13010") -> dict[str, Any]:
    """Run a command on a host with this driver, and return its JSON document."""
    path = [str(TESTS / "gpu_host"), *filter(None, [os.environ.get("PYTHONPATH")])]
    ran = subprocess.run(
        [sys.executable, "-m", "modelc", *arguments, "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "GPU_HOST_DRIVER": driver},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def engine_check(document: dict[str, Any]) -> tuple[str, str]:
    (found,) = [
        (one["found"], one["detail"])
        for one in document["models"][0]["checks"]
        if (one["of"], one["what"]) == ("tensorrt-fp16", "verdict")
    ]
    return found


def verdict_in(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(
        one for one in document["verdicts"] if one["artifact"] == "tensorrt-fp16"
    )
    return found


@pytest.mark.slow
def test_a_verdict_of_another_driver_is_stale_until_it_is_made_again(tmp_path: Path) -> None:
    built = modelc(tmp_path, "build-trt", *DIGITS, "--fp16", "-o", "out", "--no-cache")
    assert verdict_in(built)["host"]["cuda driver"] == "13.1"
    assert engine_check(modelc(tmp_path, "verify", "out"))[0] == "holds"

    found, detail = engine_check(modelc(tmp_path, "verify", "out", driver="13020"))
    assert (found, "13.1, now 13.2" in detail) == ("unchecked", True)

    again = verdict_in(modelc(tmp_path, "validate", "out", "--trust", driver="13020"))
    assert (again["state"], again["host"]["cuda driver"]) == ("passed", "13.2")
    assert any("13.1, now 13.2" in note for note in again["notes"])
    assert engine_check(modelc(tmp_path, "verify", "out", driver="13020"))[0] == "holds"


@pytest.mark.parametrize(
    ("now", "changes"),
    [
        ({"tensorrt": "10.13", "driver": "580"}, ()),
        ({"tensorrt": "11.4", "driver": "580"}, ("tensorrt 10.13, now 11.4",)),
        ({}, ()),
    ],
)
def test_what_is_unknown_on_a_host_is_no_change(
    now: dict[str, str], changes: tuple[str, ...]
) -> None:
    assert list_host_changes({"tensorrt": "10.13", "driver": "580"}, now) == changes
