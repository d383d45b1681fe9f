"""`--guard`: an ONNX that fails in its runtime outside of the domain, and nowhere inside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir
import onnxruntime
import openvino
import pytest
from onnx import TensorProto, checker, helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from modelc.converters.onnx_domain_guard import GUARD_PREFIX, add_guard
from modelc.converters.openvino_reader import drop_domain_guard
from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, merge_inputs

TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int32": TensorProto.INT32}


def identity_of(signature: Signature) -> onnx_ir.Model:
    """A graph that hands each input on."""
    inputs, outputs, nodes = [], [], []
    for spec in signature.inputs:
        dims = [dim.name if dim.dynamic else dim.opt for dim in spec.dims]
        inputs.append(helper.make_tensor_value_info(spec.name, TYPES[spec.dtype], dims))
        outputs.append(helper.make_tensor_value_info(f"{spec.name}_out", TYPES[spec.dtype], dims))
        nodes.append(helper.make_node("Identity", [spec.name], [f"{spec.name}_out"]))
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx_ir.from_proto(model)


def guarded(*inputs: str) -> tuple[onnxruntime.InferenceSession, int]:
    signature = merge_inputs([parse_input(text) for text in inputs], {})
    model = identity_of(signature)
    conditions = add_guard(model, signature)
    proto = onnx_ir.to_proto(model)
    checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session, conditions


def ran(session: onnxruntime.InferenceSession, *arrays: np.ndarray) -> bool:
    names = [value.name for value in session.get_inputs()]
    try:
        outputs = session.run(None, dict(zip(names, arrays, strict=True)))
    except InvalidArgument as error:
        return "modelc_domain" not in str(error)  # an error of anything but the guard is a fault
    assert all(np.array_equal(one, other) for one, other in zip(outputs, arrays, strict=True))
    return True


def floats(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("inputs", "inside", "outside"),
    [
        (("x:float32[batch=2..4,3]",), [(2, 3), (4, 3)], [(1, 3), (5, 3)]),
        (("x:float32[1,h=32*(k=1..3)]",), [(1, 32), (1, 96)], [(1, 33), (1, 128)]),
        (("x:float32[1,n=4*(k=1..3)+1]",), [(1, 5), (1, 13)], [(1, 8), (1, 17)]),
    ],
)
def test_sizes_outside_are_rejected(
    inputs: tuple[str, ...], inside: Sequence[tuple[int, ...]], outside: Sequence[tuple[int, ...]]
) -> None:
    session, _ = guarded(*inputs)
    assert all(ran(session, floats(*shape)) for shape in inside)
    assert not any(ran(session, floats(*shape)) for shape in outside)


def test_equal_and_related_sizes_are_checked() -> None:
    session, conditions = guarded("a:float32[batch=1..4,s=1..9]", "b:float32[batch,t=s+1]")
    assert conditions == 5  # batch, s, batch again, t's interval and its relation
    assert ran(session, floats(2, 3), floats(2, 4))
    assert not ran(session, floats(2, 3), floats(3, 4))
    assert not ran(session, floats(2, 3), floats(2, 3))


def test_sum_is_checked() -> None:
    session, _ = guarded("m:float32[n=a+2*b]", "x:float32[a=0..4]", "y:float32[b=1..3]")
    assert ran(session, floats(6), floats(2), floats(2))
    assert ran(session, floats(2), floats(0), floats(1))
    assert not ran(session, floats(7), floats(2), floats(2))


def test_relation_is_checked_where_its_base_comes_later_or_is_no_input() -> None:
    session, _ = guarded("a:float32[n=past+1]", "b:float32[past=2..6]")
    assert ran(session, floats(4), floats(3))
    assert not ran(session, floats(6), floats(3))
    session, _ = guarded("a:float32[2*(k=1..8)]", "b:float32[3*k]", "c:float32[k+1]")
    assert ran(session, floats(4), floats(6), floats(3))
    assert not ran(session, floats(4), floats(9), floats(3))
    assert not ran(session, floats(4), floats(6), floats(4))


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_values_outside_are_rejected(dtype: str) -> None:
    session, _ = guarded(f"ids:{dtype}[batch=1..4]{{0..9}}")
    assert ran(session, np.array([0, 9], dtype))
    assert not ran(session, np.array([0, 10], dtype))
    assert not ran(session, np.array([-1, 9], dtype))


def test_fixed_inputs_need_no_guard() -> None:
    signature = merge_inputs([parse_input("x:float32[2,3]")], {})
    model = identity_of(signature)
    assert add_guard(model, signature) == 0
    assert len(list(model.graph)) == 1


def test_order_of_values_is_checked() -> None:
    session, _ = guarded("box:int64[n=1..4,m=1..9]{0..9 ascending}")
    assert ran(session, np.array([[0, 0, 3, 9], [1, 2, 3, 4]]))
    assert ran(session, np.array([[5], [4]]))
    assert not ran(session, np.array([[0, 0, 3, 9], [1, 2, 4, 3]]))
    session, _ = guarded("lengths:int64[n=1..4]{0..9 descending}")
    assert ran(session, np.array([9, 4, 4, 0]))
    assert not ran(session, np.array([4, 9]))


def test_openvino_gets_the_model_without_the_check() -> None:
    signature = merge_inputs(
        [parse_input("x:float32[n=1..4]"), parse_input("i:int64[n]{0..9}")], {}
    )
    model = identity_of(signature)
    add_guard(model, signature)
    read = openvino.Core().read_model(onnx_ir.to_proto(model).SerializeToString())
    drop_domain_guard(read)
    names = [node.get_friendly_name() for node in read.get_ordered_ops()]
    assert not any(name.startswith(GUARD_PREFIX) for name in names)
    x, i = floats(2), np.array([10, -1])  # beyond the range, which ONNX Runtime rejects
    made = openvino.Core().compile_model(read, "CPU")([x, i])
    assert [np.array_equal(made[at], one) for at, one in enumerate((x, i))] == [True, True]
