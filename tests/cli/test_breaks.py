"""`modelc inspect --breaks`: what it takes, what it shows, how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from modelc.tests.nets import compile_nets
from modelc.tests.nets.compile_nets import FACTORY, INPUT

Door = Callable[..., CompletedProcess[str]]


@pytest.fixture
def inspect(door: Door, tmp_path: Path) -> Door:
    """Inspect a model of compile_nets."""

    def run(name: str, *options: str) -> CompletedProcess[str]:
        torch.manual_seed(0)
        path = tmp_path / "net.pt"
        torch.save(compile_nets.build(name).state_dict(), path)
        factory = ("--model", FACTORY, "--model-arg", f"name={name}", "--input", INPUT)
        return door("inspect", path, "--breaks", "--quiet", *factory, *options)

    return run


def test_breaks_have_their_source_line_and_nothing_of_the_model_is_printed(inspect: Door) -> None:
    ran = inspect("Branching", "--isolate")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("graph break ") >= 3
    assert "compile_nets.py:" in ran.stdout
    assert "\ninside" not in ran.stdout


def test_json_is_the_record_alone(inspect: Door) -> None:
    ran = inspect("Layered", "--json")
    found = json.loads(ran.stdout)
    assert (ran.returncode, found["fullgraph"], found["exit_code"]) == (0, True, 0)
    assert [one["dynamic"] for one in found["traces"]] == [None, True]


def test_the_limit_of_recompiles_is_shown(inspect: Door) -> None:
    ran = inspect("Unrolled")
    assert ran.returncode == 0
    assert "limit of 8" in ran.stdout


def test_an_error_of_torch_compile_is_a_finding(inspect: Door) -> None:
    ran = inspect("Raising")
    assert (ran.returncode, "TorchRuntimeError" in ran.stdout) == (0, True)


@pytest.mark.parametrize("option", [("--model", "a:b"), ("--input", "x:float32[1]")])
def test_options_of_the_model_need_it(
    door: Door, digits_copy: Path, option: tuple[str, str]
) -> None:
    ran = door("inspect", digits_copy / "model.onnx", *option)
    assert (ran.returncode, "--breaks" in ran.stderr) == (2, True)


def test_a_converted_model_is_no_checkpoint(door: Door, digits_copy: Path) -> None:
    ran = door("inspect", digits_copy / "model.onnx", "--breaks", "--quiet")
    assert ran.returncode == 2
    assert f"modelc inspect {digits_copy} --breaks" in ran.stderr


def test_a_torchscript_module_is_usage(door: Door, tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.jit.save(torch.jit.script(torch.nn.Sequential(torch.nn.ReLU())), path)
    ran = door("inspect", path, "--breaks", "--quiet", "--trust", "--input", "input:float32[2,4]")
    assert (ran.returncode, "TorchScript" in ran.stderr) == (2, True)


def test_validate_judges_the_compiled_module_alone(door: Door, digits_copy: Path) -> None:
    ran = door("validate", digits_copy / "model.onnx", "--compiled", "default")
    assert (ran.returncode, "--compiled" in ran.stderr) == (2, True)
    ran = door("validate", digits_copy / "nowhere", "--compiled", "default")
    assert (ran.returncode, "no such folder" in ran.stderr) == (2, True)
    ran = door("validate", digits_copy, "--compiled", "default", "--device", "cuda")
    assert (ran.returncode, "--device" in ran.stderr) == (2, True)


def test_an_output_folder_says_which_model_it_is(door: Door, digits_copy: Path) -> None:
    ran = door("inspect", digits_copy, "--breaks", "--json")
    assert (ran.returncode, json.loads(ran.stdout)["fullgraph"]) == (0, True)
    manifest = digits_copy / "manifest.json"
    recorded = json.loads(manifest.read_text("utf-8"))
    recorded["feeds"]["samples"] = None  # as exported with --input alone
    manifest.write_text(json.dumps(recorded), encoding="utf-8")
    ran = door("inspect", digits_copy, "--breaks", "--json")
    assert (ran.returncode, json.loads(ran.stdout)["fullgraph"]) == (0, True)
    recorded["checkpoint"]["path"] = "gone.safetensors"
    manifest.write_text(json.dumps(recorded), encoding="utf-8")
    ran = door("inspect", digits_copy, "--breaks", "--json")
    assert ran.returncode == 3
    assert "--checkpoint" not in ran.stdout  # inspect has no such option
    ran = door("inspect", digits_copy, "--breaks", "--model", "a:b", "--json")
    assert ran.returncode == 2
    assert json.loads(ran.stdout)["errors"][0]["option"] == "model"
