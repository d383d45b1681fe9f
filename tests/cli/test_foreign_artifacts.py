"""Artifacts of strangers that kill or hang whoever opens them end one command with one line."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import psutil
import pytest
from onnx import TensorProto, helper

SHAPE = [None, 4]
OPSET = helper.make_opsetid("", 20)
MINE = helper.make_opsetid("mine", 1)
COMMANDS = ("validate", "debug")


@pytest.fixture
def isolated(surroundings: dict[str, str]) -> dict[str, str]:
    """The environment of a user's command, which is isolated."""
    return {**surroundings, "MODELC_ISOLATE": "1"}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    from safetensors.torch import save_file

    from modelc.tests.nets.crash_net import net

    save_file(net().state_dict(), tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


def save(path: Path, nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto]) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy")
    graph = helper.make_graph(nodes, "main", [x], [y])
    imports = [OPSET, MINE]
    model = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)
    onnx.save(model, path)
    return path


@pytest.fixture
def recursive(tmp_path: Path) -> Path:
    """A function that calls itself: ONNX Runtime ends in a segmentation fault."""
    inner = [helper.make_node("f", ["a"], ["b"], domain="mine")]
    body = helper.make_function("mine", "f", ["a"], ["b"], inner, [OPSET, MINE])
    call = helper.make_node("f", ["x"], ["y"], domain="mine")
    return save(tmp_path / "recursive.onnx", [call], [body])


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A loop of 2^62 turns."""
    names = {"i": TensorProto.INT64, "c": TensorProto.BOOL}
    inputs = [helper.make_tensor_value_info(name, kind, []) for name, kind in names.items()]
    inputs.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, None))
    outputs = [
        helper.make_tensor_value_info("d", TensorProto.BOOL, []),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, None),
    ]
    inner = [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["v"], ["w"])]
    body = helper.make_graph(inner, "body", inputs, outputs)
    turns = helper.make_tensor("n", TensorProto.INT64, [], [2**62])
    true = helper.make_tensor("t", TensorProto.BOOL, [], [True])
    nodes = [
        helper.make_node("Constant", [], ["n"], value=turns),
        helper.make_node("Constant", [], ["t"], value=true),
        helper.make_node("Loop", ["n", "t", "x"], ["y"], body=body),
    ]
    return save(tmp_path / "endless.onnx", nodes, [])


def words(command: str, artifact: Path, weights: Path, *more: str) -> list[str]:
    net = ("--against", str(weights), "--model", "modelc.tests.nets.crash_net:net")
    given = (*net, "--input", "x:float32[batch=1..4,4]")
    return [sys.executable, "-m", "modelc", command, str(artifact), *given, *more]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_crash_of_the_runtime_is_one_error(
    command: str, recursive: Path, weights: Path, tmp_path: Path, isolated: dict[str, str]
) -> None:
    ran = subprocess.run(
        words(command, recursive, weights),
        cwd=tmp_path, env=isolated, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 6, ran.stderr
    assert "SIGSEGV" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_hang_ends_with_the_timeout(
    command: str, endless: Path, weights: Path, tmp_path: Path, isolated: dict[str, str]
) -> None:
    ran = subprocess.run(
        words(command, endless, weights, "--timeout", "60"),
        cwd=tmp_path, env=isolated, capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert ran.returncode == 6, ran.stderr
    assert "--timeout 120s" in ran.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_hang(
    sent: int, code: int, endless: Path, weights: Path, tmp_path: Path, isolated: dict[str, str]
) -> None:
    log = tmp_path / "stderr"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            words("validate", endless, weights),
            cwd=tmp_path, env=isolated, stdout=subprocess.DEVNULL, stderr=stream,
        )  # fmt: skip
    until = time.monotonic() + 300
    while "eager reference" not in log.read_text() and time.monotonic() < until:
        time.sleep(0.2)
        assert process.poll() is None, log.read_text()
    time.sleep(3)  # now it is in the loop
    kin = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(sent)
    assert process.wait(60) == code
    _, left = psutil.wait_procs(kin, timeout=20)
    assert not left


def test_commands_answer_in_a_process_of_their_own_as_in_this_one(
    tmp_path: Path, isolated: dict[str, str]
) -> None:
    path = save(tmp_path / "relu.onnx", [helper.make_node("Relu", ["x"], ["y"])], [])
    argv = [sys.executable, "-m", "modelc", "inspect", str(path), "--json"]
    found = [
        subprocess.run(
            argv, cwd=tmp_path, env={**isolated, "MODELC_ISOLATE": said},
            capture_output=True, text=True, check=False,
        )
        for said in "01"
    ]  # fmt: skip
    assert [one.returncode for one in found] == [0, 0], found[1].stderr
    assert found[0].stdout == found[1].stdout
