"""`--for`: what is asked of runtimes is answered before anything slow."""

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


def test_the_plan_says_what_each_onnx_loads_in(order: Orders) -> None:
    asked = replace(order("onnx", "openvino"), runtimes=("onnxruntime==1.20",))
    rows = plan_rows(make_plan(asked), asked)
    assert [row.loads_in for row in rows] == [
        "opset 21: loads in onnxruntime 1.20 (opset <= 21, IR <= 10)",
        "",
    ]


@pytest.mark.parametrize(
    ("runtimes", "opset", "wanted", "said"),
    [
        (("onnxruntime==1.17",), 21, "onnx", "--opset 21 is newer than --for allows"),
        (("onxruntime==1.17",), None, "onnx", "unknown runtime"),
        (("onnxruntime>=1.17",), None, "onnx", "is not RUNTIME==VERSION"),
        (("onnxruntime==1.20",), None, "onnx:bf16", "bf16 requires opset 22"),
        (("onnxruntime==1.20",), None, "torchscript", "has no effect: nothing here is ONNX"),
        ((), 7, "onnx", "--opset 7 is not supported"),
    ],
)
def test_what_cannot_be_is_refused_in_the_plan(
    order: Orders, runtimes: tuple[str, ...], opset: int | None, wanted: str, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(replace(order(wanted), runtimes=runtimes, opset=opset))
    assert said in caught.value.message


def test_a_custom_operator_without_an_onnx_is_refused(order: Orders) -> None:
    asked = replace(order("torchscript"), custom_ops={"my::op": "ops:op"})
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT, option="custom-op")):
        make_plan(asked)
    assert make_plan(replace(order("openvino"), custom_ops=asked.custom_ops))


def test_a_patch_without_a_capture_is_refused(order: Orders, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"\x08\x08")
    asked = replace(order("openvino"), parent=model, patches=("nets:fast",))
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT, option="patch")):
        make_plan(asked)
