"""A crash on the host that finishes a folder is recorded, and the step stays pending."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modelc.converters.registry import GROUP
from modelc.tests.nets import crash_net

PACKAGE = '''\
"""Two engines for a host that has HOST_BUILDS set; one kills the process that builds it."""
import os, signal
from modelc.converters import onnx_model
from modelc.core.contract import Converted, Preflight, Readiness
from modelc.core.kinds import Precision

class Engine:
    SUMMARY, CAPTURES, DEVICES = "an engine", (), ("cpu",)
    MADE_FROM, FINISHED_BY = {Precision.FP32: "onnx"}, "build-trt"
    def __init__(self, name):
        self.NAME, self.SUFFIX = name, f".{name}"
    def readiness(self):
        ready = "HOST_BUILDS" in os.environ
        return Readiness(ready=ready, version="1", reason="no such host")
    def claims(self, path): return path.suffix == self.SUFFIX
    def preflight(self, job): return Preflight(blockers=(), warnings=(), memory=1, source="none")
    def convert(self, job):
        if self.NAME == os.environ["HOST_BUILDS"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        file = job.folder / f"{job.stem}{self.SUFFIX}"
        file.write_bytes(job.parent.read_bytes())
        return Converted(files=((file.name, "model"),), versions={})
    def open_runner(self, path, device, signature, settings=None):
        return onnx_model.open_runner(path, device, signature)
    def inspect(self, path): raise NotImplementedError
    def coverage(self, path, example, device): return None

first, second = Engine("first"), Engine("second")
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with the package of both engines, as it would be installed."""
    folder = tmp_path / "site"
    info = folder / "engines-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "engines.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: engines\nVersion: 1.0\n")
    entries = f"[{GROUP}]\nfirst = engines:first\nsecond = engines:second\n"
    (info / "entry_points.txt").write_text(entries)
    return folder


def modelc(package: Path, *arguments: str, builds: str | None = None) -> tuple[int, dict[str, Any]]:
    """Run the command line; its exit code and its manifest."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([str(package), *(str(Path(one).absolute()) for one in known)])
    environment = {**os.environ, "PYTHONPATH": path, "MODELC_ISOLATE": "1"}
    if builds is not None:
        environment["HOST_BUILDS"] = builds
    command = [sys.executable, "-m", "modelc", *arguments, "--json"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return ran.returncode, json.loads(ran.stdout)


@pytest.mark.slow
def test_a_crash_ends_one_step_of_a_prepared_folder(
    package: Path, weights: Path, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    asked = ("--model", "modelc.tests.nets.crash_net:net", "--input", crash_net.INPUT, "-o", out)
    code, prepared = modelc(
        package, "export", str(weights), *asked, "--to", "first", "--to", "second"
    )
    assert (code, [one["step"] for one in prepared["pending"]]) == (4, ["first", "second"])

    code, died = modelc(package, "build-trt", out, builds="first")
    assert code == 5
    assert [one["name"] for one in died["artifacts"]] == ["onnx", "second"]
    (failure,) = died["failures"]
    assert (failure["step"], failure["exit_code"]) == ("first", 5)
    assert "SIGSEGV" in failure["message"]
    assert [one["step"] for one in died["pending"]] == ["first"]
    assert sorted(died["steps"]) == ["first", "second"]

    code, done = modelc(package, "build-trt", out, builds="none")
    assert code == 0
    assert [one["name"] for one in done["artifacts"]] == ["onnx", "second", "first"]
    assert (done["failures"], done["pending"]) == ([], [])
