"""A process that runs feeds elsewhere: what it gives, and each way in which it gives nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import parser

from modelc.core.errors import RunnerError
from modelc.runtimes import environment_child
from modelc.runtimes.environment_runner import EnvironmentRunner
from modelc.runtimes.runtime_environments import provide_environment
from modelc.runtimes.runtime_requirement import parse_requirement

from .conftest import CRASHING, HANGING, LISTING, RIGHT, TALKING

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the interpreters are shell scripts")
Opened = Callable[..., EnvironmentRunner]
TEXT = '<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x) => (float[N,2] y) { y = Neg(x) }'
FEED = {"x": np.array([[1, 2], [3, 4]], np.float32)}


@pytest.fixture
def request_of(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(TEXT), path)
    return {
        "open": str(path), "runtime": "onnxruntime", "format": "onnx", "inputs": ["x"],
        "outputs": ["y"],
    }  # fmt: skip


@pytest.fixture
def opened(index: Path, cache: Path, request_of: dict[str, Any]) -> Opened:  # noqa: ARG001
    """`opened("1.20.1")`: the model in that release."""

    def open_release(version: str, seconds: float = 60.0) -> EnvironmentRunner:
        found = provide_environment(parse_requirement(f"onnxruntime=={version}"), cache)
        return EnvironmentRunner(found.interpreter, request_of, seconds)

    return open_release


def fake_interpreter(folder: Path, *lines: str) -> Path:
    """Return a program that answers each request with one of these lines, then with the last."""
    path = folder / "python"
    answers = "".join(f"read line; printf '%s\\n' '{line}'\n" for line in lines)
    path.write_text(f'#!/bin/sh\nFOLDER="$3"\n{answers}while read line; do :; done\n')
    path.chmod(0o755)
    return path


def test_outputs_have_names_values_and_dtypes(opened: Opened) -> None:
    with opened(RIGHT) as runner:
        assert runner.inputs == ("x",)
        for _ in range(3):
            (name, value), *_ = runner.run(FEED).items()
            assert (name, str(value.dtype)) == ("y", "float32")
            assert np.array_equal(value, -FEED["x"])


def test_an_error_of_the_runtime_is_its_own_words_and_the_next_feed_runs(opened: Opened) -> None:
    with opened(RIGHT) as runner:
        with pytest.raises(RunnerError, match="INVALID_ARGUMENT"):
            runner.run({"x": FEED["x"].astype(np.float64)})
        assert runner.run(FEED)


@pytest.mark.slow
def test_a_crash_has_the_name_of_its_signal(opened: Opened) -> None:
    with opened(CRASHING) as runner:
        for _ in range(2):
            with pytest.raises(RunnerError, match="SIGSEGV"):
                runner.run(FEED)


@pytest.mark.slow
def test_a_runtime_that_hangs_is_ended(opened: Opened) -> None:
    with opened(HANGING, seconds=8.0) as runner:
        for _ in range(20):  # the process is asked once
            with pytest.raises(RunnerError, match="8 s"):
                runner.run(FEED)


@pytest.mark.slow
def test_lines_that_are_no_answers_are_an_error(opened: Opened) -> None:
    with opened(TALKING) as runner, pytest.raises(RunnerError, match="no answer"):
        runner.run(FEED)


@pytest.mark.slow
def test_an_output_that_is_no_array_is_an_error(opened: Opened) -> None:
    with opened(LISTING) as runner, pytest.raises(RunnerError, match="list"):
        runner.run(FEED)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense", "[]", "{}", '{"inputs": "x"}', '{"inputs": [1]}', '{"inputs": ["x", "x"]}',
        '{"error": "no"}',
    ],
)  # fmt: skip
def test_an_answer_of_another_form_opens_nothing(
    tmp_path: Path, request_of: dict[str, Any], line: str
) -> None:
    with pytest.raises(RunnerError):
        EnvironmentRunner(fake_interpreter(tmp_path, line), request_of)


def test_an_output_without_its_file_is_an_error(tmp_path: Path, request_of: dict[str, Any]) -> None:
    answers = ('{"inputs": ["x"]}', '{"outputs": ["y"]}')
    runner = EnvironmentRunner(fake_interpreter(tmp_path, *answers), request_of)
    with runner, pytest.raises(RunnerError, match="be read"):
        runner.run(FEED)


def write_header(path: Path, text: str) -> None:
    header = text.encode().ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "__import__('os').abort()",
    ],
)
def test_an_array_is_not_read_on_trust(
    tmp_path: Path, request_of: dict[str, Any], header: str
) -> None:
    write_header(tmp_path / "planted.npy", header)
    script = fake_interpreter(tmp_path, '{"inputs": ["x"]}', '{"outputs": ["y"]}')
    copy = f'cp "{tmp_path}/planted.npy" "$FOLDER/out-1-0.npy"\n'
    script.write_text(script.read_text().replace('FOLDER="$3"\n', f'FOLDER="$3"\n{copy}'))
    with EnvironmentRunner(script, request_of) as runner, pytest.raises(RunnerError):
        runner.run(FEED)


def test_an_interpreter_that_is_not_there_is_an_error(
    tmp_path: Path, request_of: dict[str, Any]
) -> None:
    with pytest.raises(RunnerError, match="be started"):
        EnvironmentRunner(tmp_path / "none", request_of)


class NestedNet(torch.nn.Module):
    def forward(
        self, parts: dict[str, torch.Tensor], both: list[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        found = torch.complex(parts["b"], both[0]).conj()
        return {"z": found, "a": both[1] - parts["a"], "half": both[1].to(torch.bfloat16)}


def test_a_script_takes_nested_inputs_and_gives_what_numpy_lacks(tmp_path: Path) -> None:
    path = tmp_path / "model.torchscript"
    torch.jit.save(torch.jit.script(NestedNet()), path)
    names = ["parts.a", "parts.b", "both.0", "both.1"]
    asked = {"format": "torchscript", "inputs": names, "outputs": ["z", "a", "half"]}
    feed = {name: np.full(2, place, np.float32) for place, name in enumerate(names)}

    found = dict(environment_child.Torch(str(path), asked).run(feed))

    assert {name: (str(one.dtype), one.tolist()) for name, one in found.items()} == {
        "z": ("complex64", [1 - 2j] * 2),
        "a": ("float32", [3.0] * 2),
        "half": ("float32", [3.0] * 2),
    }
