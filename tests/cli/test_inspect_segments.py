"""`modelc inspect --segments`: the plan of a program for torch-tensorrt, or of an ONNX model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from onnx import parser

from ..nets.segment_nets import Middle, export_net
from .conftest import Ran


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    path = tmp_path_factory.mktemp("segments") / "net.pt2"
    torch.export.save(export_net(Middle, dynamic=True), path)
    return path


@pytest.fixture(scope="module")
def inspect(modelc: Callable[..., Ran], program: Path) -> Callable[..., Ran]:
    def run(*arguments: str) -> Ran:
        return modelc("inspect", str(program), "--trust", *arguments, cwd=program.parent)

    return run


def test_the_plan_is_in_the_document(inspect: Callable[..., Ran]) -> None:
    done = inspect("--segments", "--min-block-size", "1", "--torch-ops", "aten.sin", "--json")
    plan = json.loads(done.stdout)["segments"]
    assert plan["min_block_size"] == 1
    assert {one["operator"] for one in plan["left_out"]} == {
        "aten.searchsorted.Tensor", "aten.sin.default",
    }  # fmt: skip


def test_the_plan_is_shown(inspect: Callable[..., Ran]) -> None:
    done = inspect("--segments")
    assert done.returncode == 0
    assert "aten.searchsorted.Tensor" in done.stdout


@pytest.mark.parametrize(
    "arguments", [("--min-block-size", "3"), ("--torch-ops", "aten.sin"), ("--segments=1",)]
)
def test_an_option_without_its_main_option_is_an_error(
    inspect: Callable[..., Ran], arguments: tuple[str, ...]
) -> None:
    assert inspect(*arguments).returncode == 2


def test_an_onnx_model_has_a_plan(modelc: Callable[..., Ran], tmp_path: Path) -> None:
    nodes = "i = Cast<to=6>(x) b = BitwiseNot(i) c = Cast<to=1>(b) y = Abs(c)"
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[n,8] x) => (float[n,8] y)'
    onnx.save_model(parser.parse_model(f"{text} {{ {nodes} }}"), str(tmp_path / "net.onnx"))
    given = ("inspect", "net.onnx", "--segments", "--min-block-size", "2")
    plan = json.loads(modelc(*given, "--json", cwd=tmp_path).stdout)["segments"]
    assert [(one["engine"], one["nodes"]) for one in plan["segments"]] == [(False, 2), (True, 2)]
    assert plan["rest"] in modelc(*given, cwd=tmp_path).stdout


def test_another_format_has_no_segments(refuse: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "net.engine").write_bytes(b"ftrt")
    assert "--segments" in refuse("inspect", "net.engine", "--segments", code=2)


def test_a_checkpoint_is_exported_first(refuse: Callable[..., str], tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, tmp_path / "net.pt")
    assert "--to pt2" in refuse("inspect", "net.pt", "--segments", code=2)
