"""A package index in a folder, whose wheels stand for releases of ONNX Runtime, right and wrong.

Each is a shim around the ONNX Runtime of the tests under another version; numpy is a path to it.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from modelc.runtimes import package_installer

SHIM = """
import importlib.util, os, sys, time
REAL = {real!r}
spec = importlib.util.spec_from_file_location(
    "onnxruntime", REAL + "/__init__.py", submodule_search_locations=[REAL])
real = importlib.util.module_from_spec(spec)
sys.modules["onnxruntime"] = real
spec.loader.exec_module(real)
real.__version__ = {version!r}
run = real.InferenceSession.run

def talk(number):
    if os.path.exists(f"/proc/self/fd/{{number}}"):
        os.write(number, b"not an answer\\n")

def patched(self, *arguments):
    values = run(self, *arguments)
    {fault}
    return values

real.InferenceSession.run = patched
"""
RIGHT, DOUBLED, CRASHING, HANGING, TALKING, LISTING = (f"1.20.{n}" for n in range(1, 7))
FAULTS = {
    RIGHT: "pass",
    DOUBLED: "values = [2 * value for value in values]",
    CRASHING: "os.kill(os.getpid(), 11)",
    HANGING: "time.sleep(60)",
    TALKING: "for n in range(3, 9):\n        talk(n)",
    LISTING: "values = [value.tolist() for value in values]",
}


def write_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """Write a wheel of pure Python."""
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in files.items():
            archive.writestr(place, text)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of wheels."""
    folder = tmp_path_factory.mktemp("wheels")
    real = Path(onnxruntime.__file__).parent
    for version, fault in FAULTS.items():
        text = SHIM.format(real=str(real), version=version, fault=fault)
        write_wheel(folder, "onnxruntime", version, {"onnxruntime/__init__.py": text})
    packages = Path(np.__file__).parent.parent
    write_wheel(folder, "numpy", "2.9.9", {"real_numpy.pth": f"{packages}\n"})
    return folder


@pytest.fixture
def index(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip knows these wheels alone, and there is no uv."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setattr(package_installer, "find_uv", lambda: None)
    return wheels


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests share, as each environment takes seconds."""
    return tmp_path_factory.mktemp("environments")
