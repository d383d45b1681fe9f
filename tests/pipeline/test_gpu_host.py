"""`modelc build-trt` on a host with a GPU, whose engines ONNX Runtime computes: tests/gpu_host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
SAMPLES = TESTS.parent / "sample_models"
DIGITS = (
    str(SAMPLES / "digits.safetensors"),
    "--model", "modelc.sample_models.digits:build",
    "--input", "x:float32[batch=1..8,1,8,8]",
)  # fmt: skip
Build = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """`build("out", *arguments, gpu=True)`: the exit code, and the manifest of the folder."""

    def run(
        out: str, *arguments: str, gpu: bool = True, **variables: str
    ) -> tuple[int, dict[str, Any]]:
        path = [str(TESTS / "gpu_host")] if gpu else []
        path += filter(None, [os.environ.get("PYTHONPATH")])
        ran = subprocess.run(
            [sys.executable, "-m", "modelc", "build-trt", *arguments, "--no-cache"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode != 70, ran.stderr
        return ran.returncode, json.loads((tmp_path / out / "manifest.json").read_text())

    return run


def verdict_of(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in manifest["verdicts"] if one["artifact"] == name)
    return found


@pytest.mark.parametrize("rtx", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_engine_is_built_and_judged(build: Build, tmp_path: Path, rtx: bool) -> None:
    target, flags = ("tensorrt-rtx", ["--rtx"]) if rtx else ("tensorrt", [])
    code, manifest = build("out", *DIGITS, "--fp16", *flags, "-o", "out")
    assert code == 0
    engine = next(one for one in manifest["artifacts"] if one["name"] == f"{target}-fp16")
    assert verdict_of(manifest, engine["name"])["state"] == "passed"
    assert all((tmp_path / "out" / file["name"]).is_file() for file in engine["files"])
    assert manifest["pending"] == []


def test_a_program_with_engines_is_built_and_judged(build: Build, tmp_path: Path) -> None:
    code, manifest = build("out", *DIGITS, "--partial", "-o", "out")
    assert code == 0
    made = next(one for one in manifest["artifacts"] if one["name"] == "torch-tensorrt")
    verdict = verdict_of(manifest, "torch-tensorrt")
    assert (verdict["state"], verdict["device"]) == ("passed", "cuda")
    assert made["options"]["engines"] == "1"
    assert (tmp_path / "out" / "model.trt.pt2").is_file()


@pytest.mark.slow
def test_a_wrong_program_with_engines_is_rejected(build: Build, tmp_path: Path) -> None:
    code, manifest = build("out", *DIGITS, "--partial", "-o", "out", GPU_HOST_FAULT="offset")
    assert code == 1
    assert verdict_of(manifest, "rejected/torch-tensorrt")["state"] == "failed"
    assert (tmp_path / "out" / "rejected" / "model.trt.pt2").is_file()


@pytest.mark.slow
def test_a_prepared_program_is_finished_with_its_options(build: Build) -> None:
    options = ("--partial", "--fp16", "--torch-ops", "aten.relu", "--min-block-size", "2")
    code, manifest = build("out", *DIGITS, *options, "-o", "out", gpu=False)
    assert code == 4
    pending = manifest["pending"][0]
    assert (pending["step"], pending["made_from"]) == ("torch-tensorrt-fp16", "pt2")
    assert any("aten.relu.default" in one for one in pending["warnings"])
    assert pending["settings"] == {"torch_ops": "aten.relu", "min_block_size": "2"}
    code, manifest = build("out", "out")
    assert (code, manifest["pending"]) == (0, [])
    assert verdict_of(manifest, "torch-tensorrt-fp16")["state"] == "passed"


@pytest.mark.slow
def test_no_program_is_prepared_that_would_have_no_engine(build: Build) -> None:
    options = ("--partial", "--min-block-size", "1000", "-o", "out")
    code, manifest = build("out", *DIGITS, *options, gpu=False)
    assert (code, manifest["pending"]) == (5, [])
    assert [one["step"] for one in manifest["failures"]] == ["torch-tensorrt"]


ORT = ("--onnxruntime", "-o", "out")
PARTS = ("net.pt", "--model", "parts:build", "--input", "x:float32[batch=1..8,16]", *ORT,
         "--min-block-size", "2")  # fmt: skip


@pytest.fixture
def parts(tmp_path: Path) -> None:
    """A net with an operator in the middle that TensorRT does not take, and its checkpoint."""
    (tmp_path / "parts.py").write_text(NET_OF_PARTS)
    subprocess.run([sys.executable, "parts.py"], cwd=tmp_path, check=True)


def test_a_context_model_is_built_and_judged(build: Build, tmp_path: Path) -> None:
    code, manifest = build("out", *DIGITS, *ORT)
    assert code == 0
    made = next(one for one in manifest["artifacts"] if one["name"] == "onnx-tensorrt")
    verdict = verdict_of(manifest, "onnx-tensorrt")
    assert (verdict["state"], verdict["device"]) == ("passed", "cuda")
    assert (made["options"]["engines"], made["options"]["form"]) == ("1", "context model")
    names = [file["name"] for file in made["files"]]
    assert [Path(name).suffix for name in names] == [".onnx", ".engine", ".profile"]
    assert all((tmp_path / "out" / name).is_file() for name in names)


@pytest.mark.slow
@pytest.mark.usefixtures("parts")
def test_a_model_of_parts_keeps_its_graph_beside_the_engines(build: Build) -> None:
    code, manifest = build("out", *PARTS)
    assert code == 0
    made = next(one for one in manifest["artifacts"] if one["name"] == "onnx-tensorrt")
    assert (made["options"]["engines"], made["options"]["form"]) == ("1", "ONNX with engines")
    assert verdict_of(manifest, "onnx-tensorrt")["state"] == "passed"


@pytest.mark.slow
@pytest.mark.parametrize("flags", [DIGITS + ORT, PARTS], ids=["whole", "parts"])
@pytest.mark.usefixtures("parts")
def test_a_wrong_model_with_engines_is_rejected(
    build: Build, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    code, manifest = build("out", *flags, GPU_HOST_FAULT="offset")
    assert code == 1
    assert verdict_of(manifest, "rejected/onnx-tensorrt")["state"] == "failed"
    assert (tmp_path / "out" / "rejected" / "model.ctx.onnx").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("parts")
def test_a_prepared_model_of_parts_is_finished_with_its_options(build: Build) -> None:
    code, manifest = build("out", *PARTS, "--fp16", gpu=False)
    assert code == 4
    pending = manifest["pending"][0]
    assert (pending["step"], pending["made_from"]) == ("onnx-tensorrt-fp16", "tensorrt-onnx-fp16")
    assert any("BitwiseNot" in one for one in pending["warnings"])
    assert pending["settings"] == {"min_block_size": "2"}
    code, manifest = build("out", "out")
    assert (code, manifest["pending"]) == (0, [])
    assert verdict_of(manifest, "onnx-tensorrt-fp16")["state"] == "passed"


@pytest.mark.slow
@pytest.mark.parametrize("gpu", [False, True])
def test_no_onnx_is_prepared_or_built_that_would_have_no_engine(build: Build, gpu: bool) -> None:
    code, manifest = build("out", *DIGITS, *ORT, "--min-block-size", "1000", gpu=gpu)
    assert (code, manifest["pending"]) == (5, [])
    assert [one["step"] for one in manifest["failures"]] == ["onnx-tensorrt"]


@pytest.mark.slow
def test_a_provider_that_does_not_load_is_missing(build: Build) -> None:
    code, manifest = build("out", *DIGITS, *ORT, GPU_HOST_FAULT="provider")
    assert code == 4
    assert [one["name"] for one in manifest["artifacts"]] == ["onnx", "tensorrt-onnx"]


NET_OF_PARTS = """
import torch

def build():
    torch.manual_seed(0)
    return Net()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)

    def forward(self, x):
        y = self.a(x)
        sign = torch.bitwise_not((y > 0).to(torch.int32)).float()
        return torch.tanh(self.b(y * sign))

if __name__ == "__main__":
    torch.save(build().state_dict(), "net.pt")
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--fp16"], ["--fp16", "--half-io"]])
def test_ends_of_float64_or_half_are_judged(build: Build, tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "doubles.py").write_text(DOUBLES)
    subprocess.run([sys.executable, "doubles.py"], cwd=tmp_path, check=True)
    model = ("net.pt", "--model", "doubles:build", "--input", "x:float64[batch=1..8,16]")
    code, manifest = build("out", *model, *flags, "-o", "out")
    assert code == 0
    assert verdict_of(manifest, f"tensorrt{'-fp16' if flags else ''}")["state"] == "passed"


DOUBLES = """
import torch

def build():
    torch.manual_seed(0)
    return Net()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)

    def forward(self, x):
        y = self.b(torch.relu(self.a(x.float())))
        return y, y.double().softmax(-1)

if __name__ == "__main__":
    torch.save(build().state_dict(), "net.pt")
"""


@pytest.mark.slow
def test_a_wrong_engine_is_rejected_and_kept(build: Build, tmp_path: Path) -> None:
    code, manifest = build("out", *DIGITS, "--fp16", "-o", "out", GPU_HOST_FAULT="offset")
    assert code == 1
    verdict = verdict_of(manifest, "rejected/tensorrt-fp16")
    assert verdict["state"] == "failed"
    assert (tmp_path / "out" / "rejected" / "model.fp16.engine").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "expected"), [("memory", 6), ("context", 6), ("crash", 5)])
def test_an_engine_that_cannot_run_is_kept_and_judged_later(
    build: Build, tmp_path: Path, fault: str, expected: int
) -> None:
    asked = (*DIGITS, "--fp16", "-o", "out")
    code, manifest = build("out", *asked, GPU_HOST_FAULT=fault, MODELC_ISOLATE="1")
    assert code == expected
    assert [one["step"] for one in manifest["failures"]] == ["tensorrt-fp16"]
    kept = manifest["pending"][0]["files"][0]["name"]
    engine = (tmp_path / "out" / kept).read_bytes()
    code, manifest = build("out", "out", GPU_HOST_FAULT="build")  # a build fails now
    assert code == 0
    assert verdict_of(manifest, "tensorrt-fp16")["state"] == "passed"
    assert (tmp_path / "out" / "model.fp16.engine").read_bytes() == engine
    assert not (tmp_path / "out" / kept).exists()


@pytest.mark.slow
def test_a_prepared_folder_is_finished(build: Build, tmp_path: Path) -> None:
    code, manifest = build("out", *DIGITS, "--fp16", "-o", "out", gpu=False)
    assert code == 4
    assert [one["step"] for one in manifest["pending"]] == ["tensorrt-fp16"]
    shutil.move(tmp_path / "out", tmp_path / "there")
    code, manifest = build("there", "there")
    assert code == 0
    assert verdict_of(manifest, "tensorrt-fp16")["state"] == "passed"
    assert manifest["pending"] == []


@pytest.mark.rtx
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "offset"])
def test_an_engine_of_the_real_builder_is_judged_on_the_gpu_host(
    build: Build, tmp_path: Path, fault: str
) -> None:
    pytest.importorskip("tensorrt_rtx")
    code, manifest = build("out", *DIGITS, "--fp16", "--rtx", "-o", "out", gpu=False)
    assert code == 4
    built = manifest["pending"][0]["files"]
    assert [file["name"] for file in built] == [
        "pending/model.fp16.rtx.engine", "pending/model.fp16.rtx.engine.json",
    ]  # fmt: skip
    engine = (tmp_path / "out" / built[0]["name"]).read_bytes()
    assert engine.startswith(b"vtrt")
    onnx = tmp_path / "out" / "model.fp16.trt.onnx"
    code, manifest = build("out", "out", GPU_HOST_ONNX=str(onnx), GPU_HOST_FAULT=fault)
    assert code == (1 if fault else 0)
    place = "rejected/" if fault else ""
    assert verdict_of(manifest, f"{place}tensorrt-rtx-fp16")["state"] in {"failed", "passed"}
    assert (tmp_path / "out" / f"{place}model.fp16.rtx.engine").read_bytes() == engine
    assert not (tmp_path / "out" / built[0]["name"]).exists()
