"""Threads of runtimes where several processes share a machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are in /proc"),
]
COUNT = """
import json, os, sys, threading
from pathlib import Path
from modelc.core.process import limit_threads, thread_environment
allowed = json.loads(sys.argv[2])
if allowed:
    os.environ.update(thread_environment(allowed))
    limit_threads(allowed)
import numpy as np
from modelc.converters.registry import target_for
from modelc.pipeline.manifest_file import read_manifest
path = Path(sys.argv[1])
before = len(os.listdir("/proc/self/task"))
with target_for(path).open_runner(path, "cpu", read_manifest(path.parent).signature) as runner:
    runner.run({"x": np.zeros((2, 1, 8, 8), np.float32)})
    compiled = getattr(runner, "_compiled", None)
    print(len(os.listdir("/proc/self/task")) - before)
    print(compiled and compiled.get_property("INFERENCE_NUM_THREADS"))
"""


def started(path: Path, allowed: int | None) -> list[str]:
    """How many threads a process started to run the model, and what OpenVINO says of it."""
    command = [sys.executable, "-c", COUNT, str(path), json.dumps(allowed)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_onnx_runtime_starts_no_more_threads_than_allowed(exported_digits: Path) -> None:
    one, four = (started(exported_digits / "model.onnx", allowed)[0] for allowed in (1, 4))
    assert int(four) - int(one) == 3


def test_openvino_computes_on_no_more_threads_than_allowed(exported_digits: Path) -> None:
    assert started(exported_digits / "model.xml", 1)[1] == "1"
