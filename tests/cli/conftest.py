"""The command line under test: in this process through its door, or as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from modelc.cli import app

SAMPLE_MODELS = Path(__file__).parents[2] / "sample_models"
DIGITS = (
    str(SAMPLE_MODELS / "digits.safetensors"),
    "--model",
    "modelc.sample_models.digits:build",
    "--input",
    "x:float32[batch=1..8,1,8,8]",
)


Ran: TypeAlias = "subprocess.CompletedProcess[str]"  # how a command ended and what it wrote


@pytest.fixture(scope="session")
def surroundings() -> dict[str, str]:
    """The environment for processes that start in another folder; no colours asked for."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    return {**kept, "PYTHONPATH": os.pathsep.join(str(Path(p).absolute()) for p in paths if p)}


@pytest.fixture(scope="session")
def modelc(surroundings: dict[str, str]) -> Callable[..., Ran]:
    """`modelc("targets", cwd=folder)`: python -m modelc in a process of its own."""

    def run(*arguments: object, cwd: Path | None = None, flags: tuple[str, ...] = ()) -> Ran:
        return subprocess.run(
            [sys.executable, *flags, "-m", "modelc", *map(str, arguments)],
            cwd=cwd,
            env=surroundings,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def door(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Ran]]:
    """`door("targets")`: the same in this process, where torch is loaded once for all tests."""
    path = list(sys.path)

    def run(*arguments: object) -> Ran:
        given = [str(argument) for argument in arguments]
        capfd.readouterr()
        code = app.run_cli(given)
        told = capfd.readouterr()
        return subprocess.CompletedProcess(given, code, stdout=told.out, stderr=told.err)

    yield run
    sys.path[:] = path  # the door leaves the working folder on it


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every entry below the folder with its bytes."""
    return {
        str(entry.relative_to(folder)): entry.read_bytes() if entry.is_file() else None
        for entry in sorted(folder.rglob("*"))
        if "__pycache__" not in entry.parts
    }


@pytest.fixture(name="contents")
def contents_fixture() -> Callable[[Path], dict[str, bytes | None]]:
    """`contents(folder)`: to be compared before and after."""
    return contents


@pytest.fixture
def refuse(
    door: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """`refuse("inspect", path, code=2)`: run it in tmp_path and see that it is refused well.

    One line of error and one of hint at the end of stderr, no traceback, nothing on stdout, and
    tmp_path as it was. Gives the two lines.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, code: int) -> str:
        before = contents(tmp_path)
        ran = door(*arguments)
        lines = ran.stderr.splitlines()
        starts = [line.split(" ")[0] for line in lines]
        assert ran.returncode == code, ran.stderr
        assert starts[-2:] == ["error:", "hint:"]
        assert (starts.count("error:"), starts.count("hint:")) == (1, 1)
        assert all(len(line.split(" ", 1)[1].strip()) > 0 for line in lines[-2:])
        assert "Traceback" not in ran.stderr
        assert ran.stdout == ""
        assert contents(tmp_path) == before
        return "\n".join(lines[-2:])

    return run


@pytest.fixture(scope="session")
def digits() -> tuple[str, ...]:
    """The arguments that say what the digits model is."""
    return DIGITS


@pytest.fixture(scope="session")
def weights() -> Path:
    """The digits checkpoint."""
    return SAMPLE_MODELS / "digits.safetensors"


@pytest.fixture(scope="session")
def demo_run(tmp_path_factory: pytest.TempPathFactory, modelc: Callable[..., Ran]) -> Ran:
    """One process that made digits TorchScript, ONNX and OpenVINO, in `out` of its folder."""
    wanted = ("--to", "torchscript", "--to", "onnx", "--to", "openvino", "-o")
    return modelc("export", *DIGITS, *wanted, tmp_path_factory.mktemp("demo") / "out")


@pytest.fixture(scope="session")
def demo(demo_run: Ran) -> Path:
    """The folder that it wrote. To change it, copy it."""
    return Path(str(demo_run.args[-1]))


@pytest.fixture(scope="session")
def gate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The arguments that say what the gate model is: a branch on its input's values."""
    from safetensors.torch import save_file

    from modelc.sample_models.gate import SIGNATURE
    from modelc.sample_models.gate import gate as build

    path = tmp_path_factory.mktemp("gate") / "gate.safetensors"
    save_file(build().state_dict(), path)
    return (str(path), "--model", "modelc.sample_models.gate:gate", "--input", *SIGNATURE)


@pytest.fixture(scope="session")
def gate_run(
    tmp_path_factory: pytest.TempPathFactory, modelc: Callable[..., Ran], gate: tuple[str, ...]
) -> Ran:
    """One process that forced a trace of the gate into TorchScript and ONNX: both are wrong."""
    wanted = ("--to", "torchscript", "--to", "onnx", "--capture", "trace", "-o")
    return modelc("export", *gate, *wanted, tmp_path_factory.mktemp("traced") / "out")
