"""benchmarks/cost_page.py: its figures, and the limits that do not hold."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modelc.benchmarks.cost_page import LIMITS, find_misses, page
from modelc.benchmarks.cost_steps import Disk
from modelc.benchmarks.process_cost import cost_of


def _cost(seconds: float) -> dict[str, float]:
    return {"wall": seconds, "cpu": seconds, "peak": 1e9}


def results(*, whole: float = 2.0, together: float = 6.0, deep: float = 80.0) -> dict[str, Any]:
    """Of a model of 100 bytes, three formats of 4 s each, and depths 6 and 48 from 10 s."""
    step = {"step": "convert onnx", "seconds": 1.0, "VmHWM": 150, "RssAnon": 20, "RssFile": 100}
    alone = {name: _cost(4.0) for name in ("torchscript", "onnx", "openvino")}
    return {
        "memory": {
            "weights": 100,
            "steps": [step],
            "end": {"VmHWM": 100 * whole, "disk": 101},
        },
        "targets": {**alone, "torchscript+onnx+openvino": _cost(together)},
        "depth": {
            "6x64": {"plain": _cost(10.0), "modelc": _cost(10.0)},
            "48x64": {"plain": _cost(40.0), "modelc": _cost(deep)},
        },
    }


def numbers(text: str) -> list[float]:
    return [float(one) for one in re.findall(r"\d+\.\d+", text)]


def line_with(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if start in line)


def test_no_miss_within_the_limits() -> None:
    assert find_misses(results()) == []


@pytest.mark.parametrize(
    ("changed", "measure", "found"),
    [
        ({"whole": 2.3}, 1, 2.30),
        ({"together": 9.0}, 3, 0.75),
        ({"deep": 200.0}, 4, 1.44),
    ],
)
def test_a_limit_that_does_not_hold_is_a_miss(
    changed: dict[str, float], measure: int, found: float
) -> None:
    name, limit = list(LIMITS.items())[measure]
    (line,) = find_misses(results(**changed))
    assert name in line
    assert numbers(line) == [found, limit]


def test_the_page_has_every_figure() -> None:
    text = page(results())
    assert numbers(line_with(text, "| convert onnx")) == [1.0, 1.50, 0.20, 1.00]
    assert numbers(line_with(text, "Written at")) == [1.50, 2.00, 1.01]
    assert numbers(line_with(text, "one run:")) == [0.50, 0.50]
    assert "| 48x64 | modelc | 80.0 | 80.0 | 1000 | 2.00 |" in text
    assert "layers^1.00" in line_with(text, "64, modelc:")


def test_a_process_is_measured_as_the_kernel_saw_it() -> None:
    code = "import time; block = b'x' * 300_000_000; time.sleep(0.2)"
    found = cost_of([sys.executable, "-c", code])
    assert found.wall > 0.2
    assert found.peak > 300_000_000  # of a child of a large process, that process counts too


def test_a_process_that_fails_stops_the_benchmark() -> None:
    with pytest.raises(SystemExit, match="exited 3"):
        cost_of([sys.executable, "-c", "raise SystemExit(3)"])


def test_a_file_that_came_and_went_counts(tmp_path: Path) -> None:
    code = "import sys, time; open(sys.argv[1], 'wb').write(bytes(10**7)); time.sleep(0.5)"
    path = tmp_path / "gone"
    with Disk(tmp_path) as disk:
        subprocess.run([sys.executable, "-c", code, str(path)], check=True)
        path.unlink()
    assert 10**7 <= disk.peak < 2 * 10**7
