"""`--for`: the runtimes are checked in the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.cli.render import plan_rows
from modelc.core.errors import ErrorCode, UsageError
from modelc.pipeline.order import Order
from modelc.pipeline.plan import make_plan

from ..reasons import has_code

Orders = Callable[..., Order]


def test_the_plan_names_the_runtimes_of_each_onnx(order: Orders) -> None:
    asked = replace(order("onnx", "openvino"), runtimes=("onnxruntime==1.20",))
    rows = plan_rows(make_plan(asked), asked)
    first, second = [row.loads_in for row in rows]
    assert {"21:", "1.20", "21,", "10)"} <= set(first.split())
    assert second == ""


@pytest.mark.parametrize(
    ("runtimes", "opset", "wanted", "named"),
    [
        (("onnxruntime==1.17",), 21, "onnx", "--opset 21"),
        (("onxruntime==1.17",), None, "onnx", "onxruntime"),
        (("onnxruntime>=1.17",), None, "onnx", "RUNTIME==VERSION"),
        (("onnxruntime==1.20",), None, "onnx:bf16", "opset 22"),
        (("onnxruntime==1.20",), None, "torchscript", "--for"),
        ((), 7, "onnx", "--opset 7"),
    ],
)
def test_runtimes_and_opsets_are_checked_in_the_plan(
    order: Orders, runtimes: tuple[str, ...], opset: int | None, wanted: str, named: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(replace(order(wanted), runtimes=runtimes, opset=opset))
    assert named in caught.value.message


def test_a_custom_operator_without_an_onnx_is_an_error(order: Orders) -> None:
    asked = replace(order("torchscript"), custom_ops={"my::op": "ops:op"})
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT, option="custom-op")):
        make_plan(asked)
    assert make_plan(replace(order("openvino"), custom_ops=asked.custom_ops))


def test_a_patch_without_a_capture_is_an_error(order: Orders, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"\x08\x08")
    asked = replace(order("openvino"), parent=model, patches=("nets:fast",))
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT, option="patch")):
        make_plan(asked)
