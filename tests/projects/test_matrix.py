"""`to` times `precision`."""

from __future__ import annotations

import pytest

from modelc.converters.registry import TARGETS
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.kinds import Precision
from modelc.projects.artifact_selection import cross_formats

from ..reasons import has_code


def test_every_format_is_wanted_at_every_precision_that_it_has() -> None:
    names = [target.NAME for target in TARGETS]
    precisions = list(Precision)
    matrix = cross_formats(names, precisions)
    has = {(t.NAME, p) for t in TARGETS for p in t.MADE_FROM}
    assert {(one.target, one.precision) for one in matrix.wanted} == has
    assert len(matrix.left_out) == len(names) * len(precisions) - len(has)


def test_what_a_format_lacks_is_left_out_and_said() -> None:
    matrix = cross_formats(["torchscript", "onnx"], ["fp32", "fp16"])
    assert [one.name for one in matrix.wanted] == ["torchscript", "onnx", "onnx-fp16"]
    (left_out,) = matrix.left_out
    assert {"torchscript", "fp16"} <= set(left_out.split())


def test_a_format_with_its_own_precision_is_that_alone() -> None:
    matrix = cross_formats(["onnx", "openvino:fp16"], ["int8"])
    assert [one.name for one in matrix.wanted] == ["onnx-int8", "openvino-fp16"]


def test_what_is_named_twice_is_wanted_once() -> None:
    assert [one.name for one in cross_formats(["onnx", "onnx:fp32", "onnx"], ["fp32"]).wanted] == [
        "onnx"
    ]


def test_a_precision_that_no_format_has_is_an_error() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, naming="fp16")):
        cross_formats(["torchscript"], ["fp32", "fp16"])
