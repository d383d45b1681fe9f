"""A process loads no framework that its work does not use."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .conftest import DIGITS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow
_ASK = """
import json, sys
from modelc.cli import app
code = app.run_cli(sys.argv[1:])
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]))
"""
LOWERING = {"nncf", "modelopt", "tensorrt", "transformers"}


@pytest.fixture(scope="module")
def loaded(surroundings: dict[str, str]) -> Callable[..., set[str]]:
    """`loaded("inspect", path)`: the top names that a process had imported when it was done."""

    def run(*arguments: object) -> set[str]:
        asked = [sys.executable, "-c", _ASK, *map(str, arguments)]
        ran = subprocess.run(asked, env=surroundings, capture_output=True, text=True, check=True)
        code, names = json.loads(ran.stdout.splitlines()[-1])
        assert code == 0, ran.stderr
        return set(names)

    return run


@pytest.fixture(scope="module")
def onnx_folder(
    tmp_path_factory: pytest.TempPathFactory, loaded: Callable[..., set[str]]
) -> tuple[Path, set[str]]:
    """An export to ONNX, and what it loaded."""
    folder = tmp_path_factory.mktemp("onnx")
    return folder, loaded("export", *DIGITS, "--to", "onnx", "-q", "-o", folder)


def test_torchscript_alone_needs_torch_alone(
    tmp_path: Path, loaded: Callable[..., set[str]]
) -> None:
    names = loaded("export", *DIGITS, "--to", "torchscript", "-q", "-o", tmp_path)
    assert "torch" in names
    assert not names & {"onnx", "onnx_ir", "onnxscript", "onnxruntime", "openvino", *LOWERING}


def test_onnx_alone_does_without_other_runtimes(onnx_folder: tuple[Path, set[str]]) -> None:
    _, names = onnx_folder
    assert {"torch", "onnx", "onnxruntime"} <= names
    assert not names & {"openvino", *LOWERING}


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        (("inspect", "model.onnx"), {"torch", "onnxruntime", "openvino"}),
        (("validate", ".", "--rejudge"), {"torch", "onnx", "onnxruntime", "openvino"}),
        (("report", "."), {"torch", "onnx", "onnxruntime", "openvino"}),
    ],
    ids=["inspect", "rejudge", "report"],
)
def test_looking_at_what_is_there_loads_little(
    onnx_folder: tuple[Path, set[str]],
    loaded: Callable[..., set[str]],
    command: tuple[str, ...],
    unneeded: set[str],
) -> None:
    folder, _ = onnx_folder
    name, place, *options = command
    assert not loaded(name, folder / place, *options) & (unneeded | LOWERING)
