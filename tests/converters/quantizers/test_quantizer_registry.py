"""The table of quantizers: names, consumers, methods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from modelc.converters.quantizers.quantizer_registry import (
    QUANTIZERS,
    find_quantizer,
    quantizers_for,
)
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.kinds import WEIGHTS_ONLY, Precision

from ...reasons import has_code

if TYPE_CHECKING:
    from .conftest import FloatModel


def test_names_are_unique() -> None:
    names = [quantizer.NAME for quantizer in QUANTIZERS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda q: str(q.NAME))
def test_every_consumer_has_a_method(quantizer) -> None:  # type: ignore[no-untyped-def]  # a module
    assert quantizer.METHODS
    assert all(quantizer.METHODS.values())


def test_an_unknown_name_is_an_error_with_the_nearest() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME)) as caught:
        find_quantizer("modelop")
    assert "'modelopt'" in caught.value.hint


@pytest.mark.parametrize("consumer", ["onnx", "openvino", "tensorrt-onnx"])
def test_every_int8_consumer_has_a_quantizer(consumer: str) -> None:
    assert quantizers_for(consumer, Precision.INT8)


def test_a_format_without_int8_has_none() -> None:
    assert quantizers_for("torchscript", Precision.INT8) == ()


def test_fp8_is_for_tensorrt_alone() -> None:
    assert quantizers_for("tensorrt-onnx", Precision.FP8)
    assert quantizers_for("onnx", Precision.FP8) == quantizers_for("openvino", Precision.FP8) == ()


@pytest.mark.parametrize("precision", sorted(WEIGHTS_ONLY))
@pytest.mark.parametrize("consumer", ["onnx", "openvino"])
def test_weights_alone_are_quantized_without_data(consumer: str, precision: Precision) -> None:
    (quantizer,) = quantizers_for(consumer, precision)
    assert (consumer, precision) in quantizer.DATA_FREE


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda q: str(q.NAME))
def test_an_unknown_method_is_an_error(  # type: ignore[no-untyped-def]  # a module
    quantizer, digits: FloatModel, tmp_path: Path
) -> None:
    consumer, _ = next(iter(quantizer.METHODS))
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming="'guess'")):
        quantizer.quantize(replace(digits.job(tmp_path, consumer), method="guess"))


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda q: str(q.NAME))
def test_an_unsupported_consumer_is_an_error(  # type: ignore[no-untyped-def]  # a module
    quantizer, digits: FloatModel, tmp_path: Path
) -> None:
    unsupported = has_code(ErrorCode.UNSUPPORTED, option="quantizer", naming="torchscript")
    with pytest.raises(UsageError, check=unsupported):
        quantizer.quantize(digits.job(tmp_path, "torchscript"))
