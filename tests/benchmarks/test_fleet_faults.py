"""Real raylets on this machine: workers and raylets are killed, and nothing is lost or built twice.

Skipped where Ray is not installed.
"""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("case", ["whole", "kills", "twice", "label"])
def test_a_cluster_loses_nothing(case: str) -> None:
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "modelc.benchmarks.fleet_faults", "--models", "4"]
    done = subprocess.run([*command, "--cases", case], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
