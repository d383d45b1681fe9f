"""Operators of the user's are written in ONNX by the user's function, by either exporter."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.capture.refusals import RefusedError
from modelc.converters import onnx_model
from modelc.core.contract import Job
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.kinds import Capture

from ..reasons import has_code
from .eager_agreement import JobOf, assert_agrees

SPEC = "x:float32[batch=1..4,3]"
DOCS = Path(__file__).parents[2] / "docs" / "captures.md"
pytestmark = [
    pytest.mark.needs("onnx"),
    pytest.mark.filterwarnings("ignore"),  # torch's own; the pipeline sends them to a log
]


@torch.library.custom_op("modelc_tests::swish", mutates_args=())
def swish(x: Tensor, beta: float) -> Tensor:
    return x * torch.sigmoid(beta * x)


@swish.register_fake
def _(x: Tensor, beta: float) -> Tensor:  # noqa: ARG001 - as the operator has it
    return torch.empty_like(x)


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.ops.modelc_tests.swish(x, 1.5)
        return found


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), Inner()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def write(op: Any, x: Any, beta: float) -> Any:
    return op.Mul(x, op.Sigmoid(op.Mul(x, beta)))


def write_in_graph(g: Any, x: Any, beta: Any) -> Any:
    return g.op("Mul", x, g.op("Sigmoid", g.op("Mul", x, beta)))


def fails(op: Any, x: Any, beta: float) -> Any:  # noqa: ARG001 - as the operator has it
    raise ValueError("no such luck")


def asked(job_of: JobOf, capture: Capture, **functions: Callable[..., object]) -> Job:
    ops = {f"modelc_tests::{name}": function for name, function in functions.items()}
    return replace(job_of(Net(), SPEC, capture=capture), custom_ops=ops)


FEEDS = [{"x": np.linspace(-3, 3, 9, dtype="float32").reshape(3, 3)}]
CAPTURES = (Capture.EXPORT, Capture.SCRIPT, Capture.TRACE)


@pytest.mark.parametrize("capture", CAPTURES)
def test_function_of_op_serves_every_capture(job_of: JobOf, capture: Capture) -> None:
    assert_agrees(asked(job_of, capture, swish=write), FEEDS)


def test_symbolic_serves_the_torchscript_exporter(job_of: JobOf) -> None:
    assert_agrees(asked(job_of, Capture.TRACE, swish=write_in_graph), FEEDS)
    with pytest.raises(RefusedError, match="--custom-op modelc_tests::swish") as caught:
        onnx_model.convert(asked(job_of, Capture.EXPORT, swish=write_in_graph))
    assert "op" in caught.value.hint


@pytest.mark.parametrize("capture", CAPTURES)
def test_unknown_operator_is_named_with_module_line_and_option(
    job_of: JobOf, capture: Capture
) -> None:
    with pytest.raises(RefusedError) as caught:
        onnx_model.convert(asked(job_of, capture))
    said = caught.value.message
    assert {"modelc_tests::swish", "layers.1"} <= set(said.split())
    assert re.search(rf"\(at {re.escape(__file__)}:\d+\)", said)
    assert "--custom-op modelc_tests::swish=PKG.MOD:FN" in caught.value.hint


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.TRACE])
def test_operator_of_torch_is_named_as_in_the_program(job_of: JobOf, capture: Capture) -> None:
    class Bessel(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = torch.special.bessel_j0(x)
            return found

    with pytest.raises(RefusedError, match="operator aten::special_bessel_j0 has no ONNX"):
        onnx_model.convert(job_of(Bessel(), SPEC, capture=capture))


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.TRACE])
def test_error_of_a_function_names_its_line(job_of: JobOf, capture: Capture) -> None:
    with pytest.raises(RefusedError, match=r"\bfails\b.* ValueError: ") as caught:
        onnx_model.convert(asked(job_of, capture, swish=fails))
    assert f"(at {__file__}:" in caught.value.message
    assert caught.value.message.startswith("--custom-op modelc_tests::swish")


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.TRACE])
def test_unused_function_is_an_error(job_of: JobOf, capture: Capture) -> None:
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.NO_EFFECT, option="custom-op", naming="swosh")
    ) as caught:
        onnx_model.convert(asked(job_of, capture, swosh=write))
    assert "modelc_tests::swish" in caught.value.hint


def test_functions_are_unregistered_after_the_export(job_of: JobOf) -> None:
    assert_agrees(asked(job_of, Capture.TRACE, swish=write), FEEDS)
    with pytest.raises(RefusedError, match="modelc_tests::swish"):
        onnx_model.convert(replace(asked(job_of, Capture.TRACE), stem="again"))


def test_numbers_take_the_type_of_other_inputs(job_of: JobOf) -> None:
    def rows(op: Any, x: Any, beta: float) -> Any:
        back = op.Reshape(op.Reshape(x, [-1]), [-1, 3])  # sizes are int64, whatever x is
        part, _ = op.TopK(back, [3], axis=-1, sorted=0)  # two outputs
        return op.Add(op.Sub(write(op, x, beta), part), part)

    for capture in (Capture.EXPORT, Capture.TRACE):
        assert_agrees(asked(job_of, capture, swish=rows), FEEDS)


def test_the_example_in_the_docs_runs(job_of: JobOf) -> None:
    (source,) = re.findall(r"```python\n(# my_ops\.py.*?)```", DOCS.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(source, "my_ops.py", "exec"), names)
    for capture in (Capture.EXPORT, Capture.TRACE):
        assert_agrees(asked(job_of, capture, swish=names["swish"]), FEEDS)
