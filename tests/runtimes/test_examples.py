"""The example projects of docs/outside.md build against the installed wheels and compute right."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from openvino.utils import get_cmake_path

from modelc.core.installation import CheckState
from modelc.core.records import sha256_of
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.runtimes.outside_programs import check_programs
from modelc.runtimes.program_build import RECIPES, SOURCES

from ..conftest import saved
from ..nets import program_nets as nets

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="built on Linux"),
    pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed"),
    pytest.mark.skipif(check_programs().state is not CheckState.OK, reason=check_programs().detail),
]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def onnxruntime_flags() -> list[str]:
    (library,) = RECIPES["onnx"].link().beside.values()
    return [f"-DONNXRUNTIME_INCLUDE={SOURCES}", f"-DONNXRUNTIME_LIBRARY={library}"]


def torch_flags() -> list[str]:
    return [f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"]


PROJECTS = {
    "c-onnxruntime": ("onnx", onnxruntime_flags),
    "cpp-openvino": ("openvino", lambda: [f"-DOpenVINO_DIR={get_cmake_path()}"]),
    "cpp-torchscript": ("torchscript", torch_flags),
    "cpp-aoti": ("aoti", torch_flags),
}


def call(*command: object) -> str:
    ran = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def read_outputs(printed: str) -> list[np.ndarray]:
    """Read what an example prints: a shape, a colon and values, for each output."""
    found = []
    for line in printed.splitlines():
        shape, _, values = line.partition(":")
        array = np.array(values.split(), np.float64)
        found.append(array.reshape([int(size) for size in shape.split()]))
    return found


@pytest.mark.parametrize("project", PROJECTS)
def test_an_example_prints_what_eager_computes(project: str, tmp_path: Path) -> None:
    target, flags = PROJECTS[project]
    source = Source(
        checkpoint=saved("pair", nets.pair(), tmp_path),
        model="modelc.tests.nets.program_nets:pair",
        inputs=nets.PAIR_INPUTS,
    )
    manifest = run(Order(source=source, wanted=(Wanted(target=target),), out=tmp_path / "out"))
    assert manifest.passed, manifest.verdicts or manifest.failures
    inputs = [torch.rand(2, 3, generator=torch.Generator().manual_seed(n)) for n in (1, 2)]
    for index, tensor in enumerate(inputs):
        tensor.numpy().tofile(tmp_path / f"{index}.bin")
    build = tmp_path / "build"

    call("cmake", "-S", EXAMPLES / project, "-B", build, *flags())
    call("cmake", "--build", build)
    model = next(a for a in manifest.artifacts if a.target == target).files[0]
    path = tmp_path / "out" / model.name
    assert sha256_of(path) == model.sha256
    printed = call(build / "run", path, "2x3", tmp_path / "0.bin", "2x3", tmp_path / "1.bin")

    with torch.no_grad():
        expected = nets.pair()(*inputs)
    outputs = read_outputs(printed)
    assert len(outputs) == len(expected)
    for found, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-6)
