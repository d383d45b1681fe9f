"""The sidecar of an engine, and inspection without loading the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import parser

from modelc.converters import tensorrt_engine
from modelc.converters.trt.engine_layers import EngineLayer
from modelc.converters.trt.engine_records import (
    EngineSidecar,
    engine_sidecar_path,
    read_eager_dtypes,
    read_sidecar,
    write_sidecar,
)
from modelc.core.contract import TensorInfo
from modelc.core.errors import ErrorCode, RunnerError
from modelc.core.records import FileRecord, record_of

from ...reasons import has_code


@pytest.mark.parametrize(("half_io", "half"), [(False, {}), (True, {"h": "float32"})])
def test_ends_that_eager_has_in_another_dtype_are_found(
    tmp_path: Path, half_io: bool, half: dict[str, str]
) -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
        g (double[N,4] x, float16[N,4] h) => (double[N,4] y, float[N,4] z) {
            y = Neg(x) z = Cast<to=1>(h)
        }"""
    model = parser.parse_model(text)
    if half_io:
        model.metadata_props.add(key="modelc.half_io", value="true")
    onnx.save(model, tmp_path / "model.onnx")
    assert read_eager_dtypes(tmp_path / "model.onnx") == {"x": "float64", "y": "float64", **half}


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    path = tmp_path / "model.fp16.engine"
    path.write_bytes(b"ftrt and what follows")
    return path


def sidecar_for(engine: Path) -> EngineSidecar:
    return EngineSidecar(
        engine=record_of(engine),
        onnx=FileRecord(name="model.fp16.trt.onnx", size=1, sha256="a"),
        gpu="NVIDIA L4",
        capability="8.9",
        memory=24 << 30,
        cuda="13.1",
        tensorrt="11.4.0.106",
        builder="python",
        inputs=(TensorInfo(name="x", dtype="float32", dims=("?", "3")),),
        outputs=(TensorInfo(name="y", dtype="float16", dims=("?", "2")),),
        profiles=("x=1x3:4x3:8x3",),
        layers=(
            EngineLayer(
                name="conv", kind="CaskConvolution", dtype="fp16", computes=True, tactic="t"
            ),
            EngineLayer(name="fc", kind="gemm", dtype="fp32", computes=True),
            EngineLayer(name="r", kind="Reformat", dtype="fp32", computes=False),
        ),
        plugins=("/a.so",),
        options={"refittable": "True"},
    )


def test_a_written_sidecar_is_read(engine: Path) -> None:
    path = write_sidecar(sidecar_for(engine), engine)
    assert path.name == "model.fp16.engine.json"
    assert read_sidecar(engine) == sidecar_for(engine)


def test_inspect_without_a_sidecar_is_an_error(engine: Path) -> None:
    with pytest.raises(
        RunnerError, check=has_code(ErrorCode.NOT_FOUND, naming=engine_sidecar_path(engine).name)
    ):
        tensorrt_engine.inspect(engine)


def test_the_sidecar_of_another_engine_is_an_error(engine: Path) -> None:
    write_sidecar(sidecar_for(engine), engine)
    engine.write_bytes(b"ftrt and what else follows")
    with pytest.raises(
        RunnerError, check=has_code(ErrorCode.FILE_CHANGED, naming=engine_sidecar_path(engine).name)
    ):
        tensorrt_engine.inspect(engine)


@pytest.mark.parametrize("text", ["", "{}", '{"engine": 3}'])
def test_an_unreadable_sidecar_is_an_error(engine: Path, text: str) -> None:
    engine_sidecar_path(engine).write_text(text)
    with pytest.raises(
        RunnerError, check=has_code(ErrorCode.CORRUPT_FILE, naming=engine_sidecar_path(engine).name)
    ):
        read_sidecar(engine)


def test_inspect_returns_the_facts_of_the_engine(engine: Path) -> None:
    write_sidecar(sidecar_for(engine), engine)
    found = tensorrt_engine.inspect(engine)
    assert [info.name for info in (*found.inputs, *found.outputs)] == ["x", "y"]
    assert found.facts["gpu"] == "NVIDIA L4 (compute capability 8.9)"
    assert found.facts["compute layers"] == "1 fp16, 1 fp32"
    assert found.facts["profile 0"] == "x=1x3:4x3:8x3"
    assert found.facts["plugins"] == "/a.so"
    assert found.operators == {"CaskConvolution": 1, "gemm": 1, "Reformat": 1}


def test_a_stripped_engine_names_the_file_of_its_weights(engine: Path) -> None:
    write_sidecar(replace(sidecar_for(engine), stripped=True), engine)
    facts = tensorrt_engine.inspect(engine).facts
    assert facts["weights"].split()[-1] == "model.fp16.trt.onnx"


def test_coverage_counts_layers_where_the_engine_cannot_run(engine: Path) -> None:
    write_sidecar(sidecar_for(engine), engine)
    found = tensorrt_engine.coverage(engine, {}, "cpu")
    assert found is not None
    assert (found.layers, found.work) == ({"fp16": 1, "fp32": 1}, "layers")


def test_an_engine_without_known_layers_has_no_coverage(engine: Path) -> None:
    write_sidecar(replace(sidecar_for(engine), layers=()), engine)
    assert tensorrt_engine.coverage(engine, {}, "cpu") is None
