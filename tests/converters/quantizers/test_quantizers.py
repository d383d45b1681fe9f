"""Properties of every quantizer and consumer: accuracy, 8 bits, names, clean folders."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import onnx
import openvino
import pytest

from modelc.converters.quantizers.quantization_checks import NothingQuantizedError, check_quantized
from modelc.converters.quantizers.quantizer_registry import find_quantizer
from modelc.core.contract import Feed
from modelc.core.errors import ConversionError, ErrorCode
from modelc.core.kinds import Precision

from ...reasons import has_code
from .conftest import FloatModel, Quantize, job_in, sqnr

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own; the pipeline logs them
# Each measured at 30 dB or more; what is wrong (a lost mask, swapped scales) is below 16.
FLOOR = 27.0


def int8_products(path: Path) -> set[str]:
    """The products that read 8 bits on both sides, by ONNX node name."""
    if path.suffix == ".onnx":
        model = onnx.load(path)
        made = {name: node for node in model.graph.node for name in node.output}
        return {
            node.name
            for node in model.graph.node
            if node.op_type in {"Conv", "Gemm", "MatMul"}
            and all(n in made and made[n].op_type == "DequantizeLinear" for n in node.input[:2])
        }
    model = openvino.Core().read_model(str(path))
    return {
        op.get_friendly_name().removesuffix("/WithoutBiases")
        for op in model.get_ordered_ops()
        if op.get_type_name() in {"Convolution", "MatMul"}
        and op.input_value(1).get_node().get_type_name() != "Constant"
        and op.input_value(0).get_node().get_type_name() == "FakeQuantize"
    }


@pytest.mark.parametrize("name", ["digits", "bert", "additive"])
def test_the_numbers_are_near_the_float_model(
    name: str, way: tuple[str, str], quantized: Quantize, request: pytest.FixtureRequest
) -> None:
    floats: FloatModel = request.getfixturevalue(name)
    assert sqnr(quantized(way[0], name, way[1]).path, floats) > FLOOR


@pytest.mark.parametrize("name", ["digits", "bert"])
def test_its_products_keep_their_names_and_compute_in_8_bits(
    name: str, way: tuple[str, str], quantized: Quantize, request: pytest.FixtureRequest
) -> None:
    floats: FloatModel = request.getfixturevalue(name)
    names = {node.name for node in onnx.load(floats.parent).graph.node}
    found = int8_products(quantized(way[0], name, way[1]).path)
    assert len(found) >= 3
    assert found <= names


def test_a_run_prints_nothing_leaves_only_the_model_and_reads_one_sample_at_a_time(
    way: tuple[str, str], digits: FloatModel, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in digits.parent.parent.iterdir()}
    here = sorted(Path.cwd().iterdir())
    progress: list[tuple[int, int]] = []
    feeds, printed = digits.feeds(40), io.StringIO()
    advance = lambda *at: progress.append(at)  # noqa: E731 - a listener
    job = job_in(digits, tmp_path, way[1], calibration=feeds, advance=advance)
    with redirect_stdout(printed), redirect_stderr(printed):
        made = find_quantizer(way[0]).quantize(job)
    assert printed.getvalue() == ""
    assert {path: path.read_bytes() for path in digits.parent.parent.iterdir()} == before
    assert sorted(Path.cwd().iterdir()) == here
    assert {path.stem for path in tmp_path.iterdir()} == {made.path.stem}
    assert feeds.most <= 4  # a reader's, a library's copy of it, one kept by either
    assert (40, 40) in progress
    assert {total for _, total in progress} == {40}


@pytest.mark.parametrize("name", ["node_Conv_53", "node_linear"])
def test_a_kept_node_stays_in_floating_point(
    name: str, way: tuple[str, str], digits: FloatModel, quantized: Quantize, tmp_path: Path
) -> None:
    made = find_quantizer(way[0]).quantize(job_in(digits, tmp_path, way[1], keep=(name,)))
    usual = int8_products(quantized(way[0], "digits", way[1]).path)
    assert int8_products(made.path) == usual - {name}
    assert made.options["kept"] == name


def test_method_samples_and_versions_are_recorded(
    way: tuple[str, str], quantized: Quantize
) -> None:
    made = quantized(way[0], "digits", way[1])
    assert made.options["method"] == find_quantizer(way[0]).METHODS[way[1], Precision.INT8][0]
    assert made.options["samples"] == "24"
    assert made.versions


@pytest.mark.slow
def test_every_method_quantizes_and_is_recorded(
    way: tuple[str, str], bert: FloatModel, tmp_path: Path
) -> None:
    for method in find_quantizer(way[0]).METHODS[way[1], Precision.INT8]:
        folder = tmp_path / method
        folder.mkdir()
        made = find_quantizer(way[0]).quantize(job_in(bert, folder, way[1], method=method))
        assert made.options["method"] == method
        assert sqnr(made.path, bert) > 10  # entropy and SmoothQuant are poor on so few samples


def test_external_weights_are_quantized(
    way: tuple[str, str], digits: FloatModel, tmp_path: Path
) -> None:
    apart, folder = tmp_path / "apart", tmp_path / "made"
    apart.mkdir()
    folder.mkdir()
    onnx.save(
        onnx.load(digits.parent), str(apart / "model.onnx"), save_as_external_data=True,
        location="model.onnx.data", size_threshold=256,
    )  # fmt: skip
    job = job_in(digits, folder, way[1], parent=apart / "model.onnx")
    assert sqnr(find_quantizer(way[0]).quantize(job).path, digits) > FLOOR


def test_a_model_without_products_is_an_error(
    way: tuple[str, str], digits: FloatModel, tmp_path: Path
) -> None:
    relu = onnx.helper.make_node("Relu", ["x"], ["output"], name="relu")
    shape: list[str | int | None] = ["batch", 1, 8, 8]
    graph = onnx.helper.make_graph(
        [relu],
        "relu",
        [onnx.helper.make_tensor_value_info("x", 1, shape)],
        [onnx.helper.make_tensor_value_info("output", 1, shape)],
    )
    opset = onnx.helper.make_opsetid("", 20)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), tmp_path / "m.onnx"
    )
    folder = tmp_path / "made"
    folder.mkdir()
    with pytest.raises(NothingQuantizedError):
        find_quantizer(way[0]).quantize(job_in(digits, folder, way[1], parent=tmp_path / "m.onnx"))


def test_a_sample_without_an_input_is_an_error(
    way: tuple[str, str], digits: FloatModel, tmp_path: Path
) -> None:
    from .conftest import Feeds

    def nameless(_: int) -> Feed:
        return {"image": np.zeros((1, 1, 8, 8), np.float32)}

    job = job_in(digits, tmp_path, way[1], calibration=Feeds(nameless, 3))
    with pytest.raises(ConversionError, check=has_code(ErrorCode.SAMPLE_MISMATCH, naming="'x'")):
        find_quantizer(way[0]).quantize(job)


def test_no_samples_are_an_error(way: tuple[str, str], digits: FloatModel, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, check=has_code(ErrorCode.NO_SAMPLES)):
        find_quantizer(way[0]).quantize(
            job_in(digits, tmp_path, way[1], calibration=digits.feeds(0))
        )


def test_every_onnx_result_passes_the_guard(way: tuple[str, str], quantized: Quantize) -> None:
    path = quantized(way[0], "bert", way[1]).path
    if path.suffix == ".onnx":
        assert check_quantized(onnx.load(path), {}) >= 3
