"""Where several processes share a machine, a runtime starts no more threads than it is allowed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = """
import json, os, sys, threading
from pathlib import Path
from modelc.core import threads
allowed = json.loads(sys.argv[2])
if allowed:
    os.environ.update(threads.variables(allowed))
    threads.allow(allowed)
import numpy as np
from modelc.converters.registry import target_of
from modelc.pipeline.manifest_file import read_manifest
path = Path(sys.argv[1])
before = len(os.listdir("/proc/self/task"))
with target_of(path).open_runner(path, "cpu", read_manifest(path.parent).signature) as runner:
    runner.run({"x": np.zeros((2, 1, 8, 8), np.float32)})
    print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize("name", ["model.onnx", "model.xml"])
def test_a_runtime_starts_no_more_threads_than_allowed(exported_digits: Path, name: str) -> None:
    def started(allowed: int | None) -> int:
        command = [sys.executable, "-c", COUNT, str(exported_digits / name), json.dumps(allowed)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(ran.stdout)

    one, four = started(1), started(4)
    assert four - one == 3
