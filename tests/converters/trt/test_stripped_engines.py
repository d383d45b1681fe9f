"""Stripped engines get their weights from the ONNX that they were built from, and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modelc.converters.trt.engine_options import EngineOptions
from modelc.converters.trt.engine_records import EngineSidecar, write_sidecar
from modelc.converters.trt.engine_runner import load_engine
from modelc.converters.trt.trt_callbacks import make_error_log
from modelc.core.errors import ErrorCode, RunnerError
from modelc.core.records import record_of

from ...reasons import has_code

Doubles = Callable[..., Any]


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A stripped engine, its sidecar and its ONNX, side by side."""
    path, onnx = tmp_path / "m.engine", tmp_path / "m.trt.onnx"
    path.write_bytes(b"ftrt")
    onnx.write_bytes(b"weights")
    (tmp_path / "m.trt.onnx.data").write_bytes(b"more weights")
    write_sidecar(
        EngineSidecar(
            engine=record_of(path),
            onnx=record_of(onnx),
            external=(record_of(tmp_path / "m.trt.onnx.data"),),
            gpu="NVIDIA L4",
            capability="8.9",
            memory=1,
            cuda="13.1",
            tensorrt="11.4",
            builder="python",
            inputs=(),
            outputs=(),
            profiles=(),
            layers=(),
            stripped=True,
        ),
        path,
    )
    return path


def opened(
    doubles: Doubles, path: Path, taken: list[str], *, fits: bool = True, **values: Any
) -> Any:
    def take(_: Any, model: str) -> bool:
        taken.append(model)
        return True

    double: Any = doubles(
        {
            "Runtime.deserialize_cuda_engine": lambda _, **given: double.new(
                "ICudaEngine", **given
            ),
            "ICudaEngine.streamable_weights_size": lambda _: 64,
            "ICudaEngine.get_weight_streaming_automatic_budget": lambda _: 32,
            "OnnxParserRefitter.refit_from_file": take,
            "Refitter.refit_cuda_engine": lambda _: fits,
        }
    )
    return load_engine(double.module, path, EngineOptions(**values), make_error_log(double.module))


def test_weights_come_from_the_onnx_beside_the_engine(double_of: Doubles, engine: Path) -> None:
    taken: list[str] = []
    opened(double_of, engine, taken)
    assert taken == [str(engine.parent / "m.trt.onnx")]


def test_weights_come_from_the_named_onnx(double_of: Doubles, engine: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    moved = (tmp_path / "m.trt.onnx").rename(tmp_path / "other" / "elsewhere.onnx")
    (tmp_path / "m.trt.onnx.data").rename(tmp_path / "other" / "m.trt.onnx.data")
    taken: list[str] = []
    opened(double_of, engine, taken, weights=str(moved))
    assert taken == [str(moved)]


@pytest.mark.parametrize("name", ["m.trt.onnx", "m.trt.onnx.data"])
def test_missing_weights_are_an_error(double_of: Doubles, engine: Path, name: str) -> None:
    (engine.parent / name).unlink()
    with pytest.raises(RunnerError, check=has_code(ErrorCode.NOT_FOUND, naming=name)):
        opened(double_of, engine, [])


@pytest.mark.parametrize("name", ["m.trt.onnx", "m.trt.onnx.data"])
def test_weights_of_another_model_are_an_error(double_of: Doubles, engine: Path, name: str) -> None:
    (engine.parent / name).write_bytes(b"other weights")
    taken: list[str] = []
    with pytest.raises(RunnerError, check=has_code(ErrorCode.FILE_CHANGED, naming=name)):
        opened(double_of, engine, taken)
    assert not taken


def test_weights_that_tensorrt_cannot_refit_are_an_error(double_of: Doubles, engine: Path) -> None:
    with pytest.raises(RunnerError, check=has_code(ErrorCode.RUNTIME_FAILED, naming="m.trt.onnx")):
        opened(double_of, engine, [], fits=False)


def test_an_engine_streams_its_weights_if_it_can(double_of: Doubles, engine: Path) -> None:
    assert opened(double_of, engine, []).engine.weight_streaming_budget_v2 == 32
