"""What is known of a quantized artifact's compute dtypes decides whether it is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelc.converters import tensorrt_engine, tensorrt_onnx
from modelc.converters.trt.engine_layers import engine_coverage, read_layers
from modelc.core.errors import ConversionError
from modelc.core.kinds import Precision
from modelc.core.records import UNKNOWN_DTYPE, Coverage
from modelc.pipeline.order import Wanted
from modelc.pipeline.plan import Step
from modelc.pipeline.quantization import check_quantized_share

OUTPUTS = Path(__file__).parents[1] / "converters" / "trt" / "inspector"
NOT_INT8 = {
    "bert_fp16_myelin", "pointwise_matmul_tensorrt82", "resnet18_fp16_a100", "resnet18_fp32_a100",
    "resnet50_fp32_tensorrt9",
}  # fmt: skip
INT8 = {"mobilenet_v2_qat_turing", "resnet18_int8_detailed", "resnet18_qat_a100"}


def step(precision: Precision = Precision.INT8) -> Step:
    wanted = Wanted(target="tensorrt", precision=precision)
    return Step(target=tensorrt_engine, wanted=wanted, captures=(), parent="tensorrt-onnx")


def coverage(**layers: int) -> Coverage:
    return Coverage(layers=layers, share={}, work="layers", source="test")


@pytest.mark.parametrize("path", sorted(OUTPUTS.iterdir()), ids=lambda path: path.stem)
def test_only_an_engine_that_is_read_and_has_no_int8_layer_is_an_error(path: Path) -> None:
    layers = read_layers(path.read_text(encoding="utf-8")).layers
    found = engine_coverage(layers) if any(layer.computes for layer in layers) else None
    if path.stem in NOT_INT8:
        with pytest.raises(ConversionError):
            check_quantized_share(step(), found)
    else:
        assert bool(check_quantized_share(step(), found)) is (path.stem not in INT8)


@pytest.mark.parametrize("found", [None, coverage(unknown=3), coverage(unknown=1, fp16=9)])
def test_what_is_not_known_is_a_note(found: Coverage | None) -> None:
    assert len(check_quantized_share(step(), found)) == 1


def test_one_int8_layer_is_enough() -> None:
    assert check_quantized_share(step(), coverage(int8=1, unknown=3, fp32=5)) == ()


@pytest.mark.parametrize("found", [coverage(fp16=3), coverage(fp32=1, tf32=2), coverage()])
def test_no_int8_layer_among_known_ones_is_an_error(found: Coverage) -> None:
    for keeps, option in ((True, "keep-fp"), (False, "")):
        with pytest.raises(ConversionError) as caught:
            check_quantized_share(step(), found, keeps=keeps)
        assert caught.value.option == option


def test_other_precisions_are_not_checked() -> None:
    assert check_quantized_share(step(Precision.FP16), None) == ()
    assert UNKNOWN_DTYPE in coverage(unknown=1).layers


@pytest.mark.parametrize("precision", [Precision.FP8, Precision.INT4])
def test_layers_of_another_quantized_dtype_do_not_count(precision: Precision) -> None:
    wanted = Wanted(target="tensorrt-onnx", precision=precision)
    own = Step(target=tensorrt_onnx, wanted=wanted, captures=(), parent="onnx")
    assert check_quantized_share(own, coverage(**{str(precision): 1, "fp16": 4})) == ()
    with pytest.raises(ConversionError):
        check_quantized_share(own, coverage(int8=4))


@pytest.mark.parametrize("precision", [Precision.FP8, Precision.INT4])
def test_an_engine_that_describes_no_such_layer_has_a_note(precision: Precision) -> None:
    assert check_quantized_share(step(precision), coverage(**{str(precision): 1})) == ()
    (note,) = check_quantized_share(step(precision), coverage(int8=4))
    assert "4 in int8" in note
