"""A half-precision file itself, run in a child process with ONNX Runtime's default options."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from modelc.converters import onnx_model
from modelc.converters.onnx_default_session import run_by_default
from modelc.converters.onnx_half import separate_transposes
from modelc.core.contract import Feed

_HEAD = '<ir_version: 9, opset_import: ["": 20]> g (float[b,s,32] x) => (float16[s,b,64] y)'
_CRASHES = "{ h = Cast<to = 10>(x) t = Transpose<perm = [1, 0, 2]>(h) y = MatMul(t, w) }"
_OUTER = "{ t = Transpose<perm = [1, 0, 2]>(x) h = Cast<to = 10>(t) y = MatMul(h, w) }"
_FEEDS: tuple[Feed, ...] = tuple(
    {"x": np.full((batch, 3, 32), 0.5, np.float32)} for batch in (2, 4)
)


def _model(body: str) -> onnx.ModelProto:
    model = parser.parse_model(f"{_HEAD} {body}")
    weight = numpy_helper.from_array(np.ones((32, 64), np.float16), "w")
    model.graph.initializer.append(weight)
    return model


def _saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, str(path))
    return path


def test_every_feed_is_run_in_one_session(tmp_path: Path) -> None:
    found = onnx_model.run_by_default(_saved(_model(_OUTER), tmp_path), "cpu", _FEEDS)
    assert found is not None
    assert not found.failure
    assert [one["y"].shape for one in found.outputs] == [(3, 2, 64), (3, 4, 64)]
    assert {one["y"].dtype.name for one in found.outputs} == {"float32"}
    assert all((one["y"] == 16).all() for one in found.outputs)


def test_crash_of_the_runtime_is_a_failure(tmp_path: Path) -> None:
    """If this fails, ONNX Runtime no longer crashes: remove the separation of transposes."""
    found = onnx_model.run_by_default(_saved(_model(_CRASHES), tmp_path), "cpu", _FEEDS)
    assert found is not None
    assert "SIGSEGV" in found.failure
    assert found.outputs == ()
    assert not found.unsupported


def test_separated_transposes_do_not_crash(tmp_path: Path) -> None:
    model = _model(_CRASHES)
    assert separate_transposes(model.graph) == 1
    found = onnx_model.run_by_default(_saved(model, tmp_path), "cpu", _FEEDS)
    assert found is not None
    assert not found.failure
    assert all((one["y"] == 16).all() for one in found.outputs)


@pytest.mark.parametrize(
    ("perm", "count"),
    [([1, 0, 2], 1), ([1, 2, 0], 1), ([0, 2, 1], 0), ([2, 0, 1], 0), ([2, 1, 0], 0)],
)
def test_only_batch_transposes_are_separated(perm: list[int], count: int) -> None:
    body = _CRASHES.replace("[1, 0, 2]", str(perm))
    assert separate_transposes(_model(body).graph) == count


def test_missing_kernel_is_unsupported(tmp_path: Path) -> None:
    """ONNX Runtime's CPU provider multiplies no bfloat16."""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> g (float[2,2] x) => (float[2,2] y)'
        "{ h = Cast<to = 16>(x) t = MatMul(h, h) y = Cast<to = 1>(t) }"
    )
    feed = {"x": np.eye(2, dtype=np.float32)}
    found = onnx_model.run_by_default(_saved(model, tmp_path), "cpu", [feed])
    assert found is not None
    assert found.unsupported


def test_bfloat16_ends_are_exchanged_as_float32(tmp_path: Path) -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> g (bfloat16[2] x) => (bfloat16[2] y)'
        "{ h = Cast<to = 1>(x) t = Neg(h) y = Cast<to = 16>(t) }"
    )
    found = run_by_default(_saved(model, tmp_path), [{"x": np.array([1.5, -2.0], np.float32)}])
    assert not found.failure
    (outputs,) = found.outputs
    assert outputs["y"].dtype == np.float32
    np.testing.assert_array_equal(outputs["y"], [-1.5, 2.0])


def test_float32_file_is_judged_as_it_is(tmp_path: Path) -> None:
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    path = _saved(model, tmp_path)
    assert onnx_model.run_by_default(path, "cpu", [{"x": np.ones(2, np.float32)}]) is None
