"""What ONNX layers compute in, weighed by their work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelc.converters import onnx_model
from modelc.converters.onnx_coverage import measure_coverage, node_flops
from modelc.core.contract import Converted
from modelc.core.kinds import Precision

from .conftest import OnnxFile

pytestmark = pytest.mark.filterwarnings("ignore")  # ModelOpt's own; the pipeline logs them
Made = Callable[..., tuple[Path, Converted]]
X = {"x": np.ones((2, 4), np.float32)}
EYE = np.eye(4, dtype=np.float32)
SCALES = {"s": np.float32(0.1), "z": np.int8(0), "w8": np.eye(4, dtype=np.int8)}
QDQ = "[xq] xq = QuantizeLinear(x, s, z) [xd] xd = DequantizeLinear(xq, s, z)"
WDQ = "[wd] wd = DequantizeLinear(w8, s, z)"


def test_layers_of_float_are_of_their_inputs_type(onnx_file: OnnxFile, made: Made) -> None:
    path = onnx_file("g (float[N,4] x) => (float[N,4] y) { [one] y = MatMul(x, w) }", w=EYE)
    found = {"fp32": measure_coverage(path, X)}
    for precision in (Precision.FP16, Precision.BF16):
        found[str(precision)] = measure_coverage(made(path, precision, X)[0], X)
    for name, one in found.items():
        assert (one.layers, one.share, one.work) == ({name: 1}, {name: 1.0}, "layers")
        assert one.source == "ONNX types"


def test_a_layer_with_both_inputs_dequantized_is_int8(onnx_file: OnnxFile) -> None:
    path = onnx_file(
        f"g (float[N,4] x) => (float[N,4] y) {{ {QDQ} {WDQ} [one] y = MatMul(xd, wd) }}", **SCALES
    )
    found = measure_coverage(path, X)
    assert (found.layers, found.share) == ({"int8": 1}, {"int8": 1.0})


@pytest.mark.parametrize(
    "body",
    [
        f"{WDQ} [one] y = MatMul(x, wd)",
        f"{QDQ} [one] y = MatMul(xd, w)",
        f"{QDQ} {WDQ} [relu] r = Relu(xd) [one] y = MatMul(r, wd)",
        "[one] y = MatMul(x, w)",
    ],
    ids=["weights only", "data only", "an operator between", "optimised away"],
)
def test_a_layer_that_lost_its_integers_is_not_int8(onnx_file: OnnxFile, body: str) -> None:
    path = onnx_file(f"g (float[N,4] x) => (float[N,4] y) {{ {body} }}", w=EYE, **SCALES)
    assert measure_coverage(path, X).layers == {"fp32": 1}


def test_a_change_of_shape_keeps_the_integers(onnx_file: OnnxFile) -> None:
    path = onnx_file(
        f"""g (float[N,4] x) => (float[N,4] y) {{ {QDQ} {WDQ}
            [turn] t = Transpose<perm=[1,0]>(wd)
            [view] v = Reshape(xd, shape)
            [one] y = MatMul(v, t)
        }}""",
        shape=np.array([-1, 4], np.int64),
        **SCALES,
    )
    assert measure_coverage(path, X).layers == {"int8": 1}


def test_a_32_bit_dequantize_is_not_int8(onnx_file: OnnxFile) -> None:
    path = onnx_file(
        f"""g (float[N,4] x) => (float[N,4] y) {{ {QDQ}
            [wd] wd = DequantizeLinear(w32, s)
            [one] y = MatMul(xd, wd)
        }}""",
        w32=np.eye(4, dtype=np.int32),
        **SCALES,
    )
    assert measure_coverage(path, X).layers == {"fp32": 1}


def test_operators_on_integers_are_int8(onnx_file: OnnxFile) -> None:
    path = onnx_file(
        "g (int8[N,4] x) => (int32[N,4] y) { [one] y = MatMulInteger(x, w8) }",
        w8=np.eye(4, dtype=np.int8),
    )
    assert measure_coverage(path, {"x": np.ones((2, 4), np.int8)}).layers == {"int8": 1}


def test_the_share_is_of_flops(onnx_file: OnnxFile) -> None:
    """2·2·4·4 = 64 FLOPs in int8, and 2·2·4·12 = 192 in fp32."""
    path = onnx_file(
        f"""g (float[N,4] x) => (float[N,12] y) {{ {QDQ} {WDQ}
            [small] a = MatMul(xd, wd)
            [large] y = MatMul(a, w)
        }}""",
        w=np.ones((4, 12), np.float32),
        **SCALES,
    )
    found = measure_coverage(path, X)
    assert found.layers == {"int8": 1, "fp32": 1}
    assert found.share == {"int8": 0.25, "fp32": 0.75}


def test_a_layer_in_a_body_has_no_flops_and_the_share_is_of_layers(onnx_file: OnnxFile) -> None:
    path = onnx_file(
        """g (float[N,4] x, bool c) => (float[N,4] y) {
            [one] a = MatMul(x, w)
            [branch] y = If (c) <
                then_branch = t () => (float[N,4] p) { [yes] p = MatMul(a, w) },
                else_branch = e () => (float[N,4] q) { [no] q = Neg(a) }>
        }""",
        w=EYE,
    )
    found = measure_coverage(path, {**X, "c": np.array(True)})
    assert (found.layers, found.share, found.work) == ({"fp32": 2}, {"fp32": 1.0}, "layers")


def test_a_model_that_does_not_run_here_still_has_layers(onnx_file: OnnxFile) -> None:
    path = onnx_file("g (float[N,4] x) => (float[N,4] y) { [one] y = MatMul(x, w) }", w=EYE)
    found = measure_coverage(path, {"x": np.ones((2, 5), np.float32)})
    assert (found.layers, found.work) == ({"fp32": 1}, "layers")


def test_a_model_without_compute_layers_has_none(onnx_file: OnnxFile) -> None:
    path = onnx_file("g (float[N,4] x) => (float[N,4] y) { [one] y = Relu(x) }")
    assert onnx_model.coverage(path, X, "cpu").layers == {}


@pytest.mark.parametrize(
    ("operator", "attributes", "inputs", "output", "wanted"),
    [
        ("Conv", {}, [(1, 8, 6, 6), (16, 8, 3, 3)], (1, 16, 6, 6), 2 * 16 * 36 * 8 * 9),
        ("Conv", {"group": 8}, [(1, 8, 6, 6), (8, 1, 3, 3)], (1, 8, 6, 6), 2 * 8 * 36 * 9),
        ("ConvTranspose", {}, [(1, 8, 6, 6), (8, 4, 2, 2)], (1, 4, 12, 12), 2 * 8 * 36 * 4 * 4),
        ("MatMul", {}, [(2, 3, 5, 7), (7, 4)], (2, 3, 5, 4), 2 * 2 * 3 * 5 * 4 * 7),
        ("Gemm", {"transA": 1, "transB": 1}, [(7, 5), (4, 7)], (5, 4), 2 * 5 * 4 * 7),
        ("LSTM", {}, [(9, 2, 3), (1, 16, 3), (1, 16, 4)], (9, 1, 2, 4), 2 * 18 * (48 + 64)),
        ("Einsum", {"equation": "bij, bjk -> bik"}, [(2, 3, 5), (2, 5, 4)], (2, 3, 4), 2 * 120),
        ("Attention", {}, [(2, 8, 3, 4), (2, 8, 5, 4), (2, 8, 5, 6)], (2, 8, 3, 6),
         2 * 16 * 3 * 5 * (4 + 6)),
        ("Attention", {}, [(2, 3, 32), (2, 5, 32), (2, 5, 32)], (2, 3, 32), 2 * 2 * 3 * 5 * 64),
    ],
)  # fmt: skip
def test_flops_are_two_for_each_multiply_and_add(
    operator: str,
    attributes: dict[str, Any],
    inputs: list[tuple[int, ...]],
    output: tuple[int, ...],
    wanted: int,
) -> None:
    from onnx import helper

    names = [f"i{index}" for index in range(len(inputs))]
    node = helper.make_node(operator, names, ["o"], **attributes)
    assert node_flops(node, {**dict(zip(names, inputs, strict=True)), "o": output}) == wanted


def test_flops_of_an_ellipsis_are_not_known() -> None:
    from onnx import helper

    node = helper.make_node("Einsum", ["a", "b"], ["o"], equation="...ij,...jk->...ik")
    assert node_flops(node, {"a": (2, 3, 5), "b": (2, 5, 4), "o": (2, 3, 4)}) is None
