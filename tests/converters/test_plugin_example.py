"""The example package of docs/: installed, listed, exported to, and held to the contract."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "plugin_example"
Run = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = [pytest.mark.slow, pytest.mark.needs("onnx")]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example installed; of a copy, as the build writes beside its sources."""
    place = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(EXAMPLE, place / "source")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target")
    order = [sys.executable, "-m", "pip", "install", *options, str(place / "lib"), str(source)]
    ran = subprocess.run(order, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return place / "lib"


@pytest.fixture
def run(packages: Path, tmp_path: Path) -> Run:
    """`run("-m", "modelc", "targets")`: Python with the example, in a folder of its own."""
    paths = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    path = os.pathsep.join(str(Path(one).absolute()) for one in (str(packages), *paths))

    def made(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    return made


def test_an_exported_ort_passes_and_can_be_inspected(run: Run, tmp_path: Path) -> None:
    digits = ROOT / "sample_models" / "digits.safetensors"
    model = ("--model", "modelc.sample_models.digits:build")
    given = ("--input", "x:float32[batch=1..8,1,8,8]", "--to", "ort", "-o", "out")
    ran = run("-m", "modelc", "export", digits, *model, *given)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    made = tmp_path / "out" / "model.ort"
    assert made.read_bytes()[4:8] == b"ORTM"
    again = run("-m", "modelc", "validate", "out")
    assert again.returncode == 0, again.stdout + again.stderr
    inspected = run("-m", "modelc", "inspect", made)
    assert inspected.returncode == 0, inspected.stderr
    assert "Conv" in inspected.stdout


def test_a_project_reuses_it_until_its_package_changes(
    run: Run, packages: Path, tmp_path: Path
) -> None:
    (tmp_path / "modelc.toml").write_text(
        f"""\
[models.digits]
checkpoint = "{ROOT / "sample_models" / "digits.safetensors"}"
model = "modelc.sample_models.digits:build"
input = "x:float32[batch=1..8,1,8,8]"
to = ["onnx", "ort"]
"""
    )

    def sources() -> dict[str, str]:
        ran = run("-m", "modelc", "run", "--json", "--cache-dir", "cache")
        assert ran.returncode == 0, ran.stderr
        messages.append(ran.stderr)
        (model,) = json.loads(ran.stdout)["models"]
        return {one["name"]: one["source"] for one in model["artifacts"]}

    messages: list[str] = []
    assert sources() == {"onnx": "made", "ort": "made"}
    assert sources() == {"onnx": "kept", "ort": "kept"}
    (metadata,) = packages.glob("modelc_ort*.dist-info/METADATA")
    text = metadata.read_text()
    metadata.write_text(text.replace("Version: 1.0.0", "Version: 1.0.1"))
    try:
        assert sources() == {"onnx": "made", "ort": "made"}
    finally:
        metadata.write_text(text)
    assert {"modelc-ort", "1.0.0", "1.0.1"} <= set(re.split(r"\s|: ", messages[-1]))


def test_it_passes_the_contract_of_targets(run: Run) -> None:
    ran = run("-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLE / "tests")
    assert ran.returncode == 0, ran.stdout
    (passed,) = re.findall(r"^(\d+) passed in", ran.stdout, re.M)  # and none skipped
    assert int(passed) > 40


def test_the_contract_finds_what_a_target_does_wrong(run: Run, tmp_path: Path) -> None:
    """One that scales what it gives, one that keeps no metadata: each fails its own test."""
    (tmp_path / "test_spoilt.py").write_text(
        """\
import modelc_ort
from types import SimpleNamespace
from modelc.testing import TargetContract

class Scaled(modelc_ort.OrtRunner):
    def run(self, feed):
        return {name: 1.01 * array for name, array in super().run(feed).items()}

def opened(path, device, signature):
    modelc_ort.open_runner(path, device, signature)
    return Scaled(path)

class TestScaled(TargetContract):
    target = SimpleNamespace(**{**vars(modelc_ort), "open_runner": opened})
"""
    )
    ran = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "eager_gives", "test_spoilt.py")
    assert ran.returncode == 1, ran.stdout
    assert "3 failed" in ran.stdout
