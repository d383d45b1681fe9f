"""Weights in a file of their own are never all in the memory of the process."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelc.converters import onnx_files, onnx_sessions
from modelc.converters.onnx_files import PROTOBUF_LIMIT
from modelc.converters.onnx_sessions import open_onnx
from modelc.converters.onnx_weight_file import write_weights
from modelc.converters.quantizers import onnxruntime_weights
from modelc.converters.quantizers.onnxruntime_weights import quantize_weights
from modelc.core.contract import Array, QuantizeJob
from modelc.core.dims import Dim
from modelc.core.kinds import Precision
from modelc.core.signature import InputSpec, Signature

SIDE, LAYERS = 1024, 16
WEIGHTS = LAYERS * SIDE * SIDE * 4  # bytes
X = np.random.default_rng(0).standard_normal((3, SIDE)).astype(np.float32)
SIGNATURE = Signature(
    inputs=(InputSpec(name="x", dtype="float32", dims=(Dim.of_size(3), Dim.of_size(SIDE))),),
    outputs=("y",),
)


class OwnMemory:
    """The most memory, that is no page of a file, that the process gained in the context."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._before = self.peak = 0

    def __enter__(self) -> OwnMemory:
        self._before = self._read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.peak -= self._before

    def _watch(self) -> None:
        while not self._ended.wait(0.002):
            self.peak = max(self.peak, self._read())

    @staticmethod
    def _read() -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(one.split()[1]) * 1024 for one in lines if one.startswith("RssAnon"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save products in a row, with 64 MiB of weights in a file of their own."""
    generator = np.random.default_rng(1)
    names = ["x", *(f"y{index}" for index in range(LAYERS - 1)), "y"]
    weights = [
        numpy_helper.from_array(
            (generator.standard_normal((SIDE, SIDE)) / SIDE**0.5).astype(np.float32), f"w{index}"
        )
        for index in range(LAYERS)
    ]
    nodes = [
        helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]], name=f"product{i}")
        for i in range(LAYERS)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, SIDE]) for name in "xy"]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = tmp_path_factory.mktemp("parent") / "model.onnx"
    onnx.save(made, str(path), save_as_external_data=True, location="model.onnx.data")
    return path


def run(path: Path) -> Array:
    """Run a file as its users do, without modelc."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": X})[0])


def quantize(model: Path, folder: Path, keep: tuple[str, ...] = ()) -> Path:
    """Quantize to 4 bits in a new folder."""
    folder.mkdir()
    job = QuantizeJob(
        parent=model, consumer="onnx", signature=SIGNATURE, calibration=None, folder=folder,
        precision=Precision.INT4, keep=keep,
    )  # fmt: skip
    return quantize_weights(job).path


linux = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's /proc")


@linux
@pytest.mark.slow
def test_the_judge_maps_large_weights(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OwnMemory() as usual, open_onnx(model, "cpu", SIGNATURE) as runner:
        wanted = runner.run({"x": X})["y"]
    monkeypatch.setattr(onnx_sessions, "_LARGE", 0)
    with OwnMemory() as mapped, open_onnx(model, "cpu", SIGNATURE) as runner:
        found = runner.run({"x": X})["y"]
    assert np.allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert usual.peak > 0.8 * WEIGHTS  # or the test shows nothing
    assert mapped.peak < 0.2 * WEIGHTS


@linux
@pytest.mark.slow
def test_integer_weights_are_made_one_at_a_time(model: Path, tmp_path: Path) -> None:
    quantize(model, tmp_path / "first")  # imports the library
    with OwnMemory() as memory:
        path = quantize(model, tmp_path / "made")
    assert memory.peak < 0.7 * WEIGHTS  # one of 16, with its checks, beside its file
    assert {one.name for one in path.parent.iterdir()} == {"model.onnx", "model.onnx.data"}
    assert path.stat().st_size < 100_000
    error = run(path) - run(model)
    assert (error**2).sum() < 0.3 * (run(model) ** 2).sum()


@pytest.mark.slow
def test_portions_of_columns_give_the_same_blocks(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quantize(model, tmp_path / "whole")
    monkeypatch.setattr(onnxruntime_weights, "_PORTION", 100 * SIDE)
    parts = quantize(model, tmp_path / "parts")
    assert (tmp_path / "whole/model.onnx.data").read_bytes() == (
        tmp_path / "parts/model.onnx.data"
    ).read_bytes()
    assert whole.read_bytes() == parts.read_bytes()


@pytest.mark.slow
def test_weights_that_stay_in_floating_point_move_along(model: Path, tmp_path: Path) -> None:
    before = model.with_name("model.onnx.data").read_bytes()
    path = quantize(model, tmp_path / "made", keep=("product3", "product15"))
    kept = {one.name: one for one in onnx.load(str(path)).graph.initializer}
    for name in ("w3", "w15"):
        known = next(o for o in onnx.load(str(model)).graph.initializer if o.name == name)
        assert np.array_equal(numpy_helper.to_array(kept[name]), numpy_helper.to_array(known))
    assert "w4" not in kept
    assert model.with_name("model.onnx.data").read_bytes() == before


def test_a_failure_leaves_no_model(model: Path, tmp_path: Path) -> None:
    graph = onnx.load(str(model), load_external_data=False)
    with (
        pytest.raises(ZeroDivisionError),
        write_weights(graph, tmp_path / "model.onnx", model, external=True),
    ):
        raise ZeroDivisionError
    assert not (tmp_path / "model.onnx").exists()


def test_a_protobuf_is_read_and_written_whole() -> None:
    assert PROTOBUF_LIMIT <= 2**30


@pytest.mark.parametrize("several", [False, True])
def test_weights_beyond_the_limit_of_a_file_are_in_several(
    model: Path, tmp_path: Path, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_files, "FILE_LIMIT", WEIGHTS // 4 if several else WEIGHTS)
    path = tmp_path / "model.int4.onnx"
    made = onnx_files.save_model(onnx_ir.load(model), path, external_data=True)
    assert made[0] == (path.name, "model")
    assert {role for _, role in made[1:]} == {"data"}
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(name for name, _ in made)
    sizes = [(tmp_path / name).stat().st_size for name, _ in made[1:]]
    assert len(sizes) == (4 if several else 1)
    assert max(sizes) <= onnx_files.FILE_LIMIT
    assert np.array_equal(run(path), run(model))
    with open_onnx(path, "cpu", SIGNATURE) as runner:
        assert np.array_equal(runner.run({"x": X})["y"], run(model))
