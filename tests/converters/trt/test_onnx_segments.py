"""The plan of an ONNX model for ONNX Runtime's TensorRT provider."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import parser

from modelc.converters import onnx_model, tensorrt_onnx
from modelc.converters.trt.onnx_segments import plan_onnx
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.segments import LeftOutReason, Segmented, SegmentOptions, SegmentPlan

from ...reasons import has_code

X = "(float[n,8] x) => (float[n,8] y)"
Plan = Callable[..., SegmentPlan]


@pytest.fixture
def plan_of(tmp_path: Path) -> Plan:
    """`plan_of("y = Relu(x)")`: the plan of that graph, with a sidecar for the maker of `b`."""

    def run(nodes: str, *, head: str = X, least: int = 1, weights: str = "") -> SegmentPlan:
        text = f'<ir_version: 10, opset_import: ["" : 20]> g {head} <{weights}> {{ {nodes} }}'
        model = parser.parse_model(text)
        for node in model.graph.node:
            node.name = f"node_{node.output[0]}"
        path = tmp_path / "model.onnx"
        onnx.save_model(model, str(path))
        sidecar = {"schema_version": 1, "nodes": {"node_b": {"module": "head.bad"}}}
        path.with_suffix(".debug.json").write_text(json.dumps(sidecar))
        return plan_onnx(path, SegmentOptions(min_block_size=least))

    return run


def shape_of(plan: SegmentPlan) -> list[tuple[bool, int]]:
    return [(one.engine, one.nodes) for one in plan.segments]


MIDDLE = "a = Relu(x) i = Cast<to=6>(a) b = BitwiseNot(i) c = Cast<to=1>(b) d = Sin(c) y = Abs(d)"


def test_an_operator_in_the_middle_splits_the_model(plan_of: Plan) -> None:
    plan = plan_of(MIDDLE)
    assert shape_of(plan) == [(True, 2), (False, 1), (True, 3)]
    assert (plan.switches, plan.engines, plan.work) == (2, 2, "operators")
    (left,) = plan.left_out
    assert (left.operator, left.reason) == ("BitwiseNot", LeftOutReason.NO_IMPORTER)
    assert (left.count, left.module) == (1, "head.bad")


def test_a_short_run_stays_outside(plan_of: Plan) -> None:
    plan = plan_of(MIDDLE, least=3)
    assert shape_of(plan) == [(False, 3), (True, 3)]
    small = [one.operator for one in plan.left_out if one.reason is LeftOutReason.SMALL_BLOCK]
    assert small == ["Relu", "Cast"]


def test_runs_become_one_engine_where_no_path_returns(plan_of: Plan) -> None:
    head = "(float[n,8] x, int32[n,8] i) => (float[n,8] y)"
    plan = plan_of("a = Relu(x) b = BitwiseNot(i) c = Cast<to=1>(b) y = Add(a, c)", head=head)
    assert shape_of(plan) == [(False, 1), (True, 3)]


def test_constants_and_what_nobody_reads_are_left_away(plan_of: Plan) -> None:
    nodes = "s = Sin(w) u = Unique(x) k = Shape(w) y = Add(x, s)"
    plan = plan_of(nodes, weights="float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}")
    assert shape_of(plan) == [(True, 1)]


def test_a_restriction_names_what_is_not_taken(plan_of: Plan) -> None:
    plan = plan_of("y = Resize<antialias=1, mode='linear'>(x, , , s)".replace("'", '"'),
                   weights="int64[2] s = {8, 8}")  # fmt: skip
    (left,) = plan.left_out
    assert left.reason is LeftOutReason.RESTRICTED
    assert left.detail


BRANCH = """
y = If (c) <
    then_branch = g1 () => (float[n,8] p) {{ p = {then}(x) }},
    else_branch = g2 () => (float[n,8] q) {{ q = Relu(x) }}
>
"""


@pytest.mark.parametrize(("then", "engine"), [("Sin", True), ("Det", False)])
def test_a_branch_is_taken_if_its_bodies_are(plan_of: Plan, then: str, engine: bool) -> None:
    head = "(float[n,8] x, bool c) => (float[n,8] y)"
    plan = plan_of(BRANCH.format(then=then), head=head)
    assert shape_of(plan) == [(engine, 1)]
    assert [one.reason for one in plan.left_out] == [] if engine else [LeftOutReason.BODY]


def test_a_body_is_rejected_for_any_of_its_nodes(plan_of: Plan) -> None:
    """The last of two nodes of one operator is taken, the first is not."""
    branch = BRANCH.replace("p = {then}(x)", 'r = Resize<antialias=1, mode="linear">(x, , , s) '
                            'p = Resize<mode="linear">(r, , , s)')  # fmt: skip
    head = "(float[8,8] x, bool c) => (float[8,8] y)"
    weights = "int64[2] s = {8, 8}"
    (left,) = plan_of(branch.format(then=""), head=head, weights=weights).left_out
    assert (left.reason, left.detail) == (LeftOutReason.BODY, "Resize")


def test_bodies_within_bodies_are_judged_once(plan_of: Plan) -> None:
    nodes = "y0 = Sin(x)"
    for depth in range(24):
        then = f"t{depth} () => (float[n,8] y{depth}) {{ {nodes} }}"
        other = f"e{depth} () => (float[n,8] z{depth}) {{ z{depth} = Abs(x) }}"
        nodes = f"y{depth + 1} = If (c) <then_branch = {then}, else_branch = {other}>"
    nodes = nodes.replace("y24", "y")
    plan = plan_of(nodes, head="(float[n,8] x, bool c) => (float[n,8] y)")
    assert shape_of(plan) == [(True, 1)]


def test_work_is_flops_where_they_are_known(plan_of: Plan) -> None:
    nodes = (
        "a = MatMul(x, w) i = Cast<to=6>(a) b = BitwiseNot(i) c = Cast<to=1>(b) y = MatMul(c, w)"
    )
    weight = ", ".join(["1"] * 64)
    head = "(float[2,8] x) => (float[2,8] y)"
    plan = plan_of(nodes, head=head, weights=f"float[8,8] w = {{{weight}}}")
    assert plan.work == "FLOPs"
    assert [one.share for one in plan.segments] == [0.5, 0, 0.5]


def test_sizes_that_depend_on_data_are_named(plan_of: Plan) -> None:
    plan = plan_of("i = NonZero(x) y = Cast<to=1>(i)")
    assert plan.data_dependent == {"NonZero": 1}
    assert plan.uncertain == {}


def test_operators_of_torch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT, naming="torch-ops")):
        plan_onnx(tmp_path / "model.onnx", SegmentOptions(torch_ops=("aten.sin",)))


def test_onnx_targets_are_segmented() -> None:
    assert isinstance(onnx_model, Segmented)
    assert isinstance(tensorrt_onnx, Segmented)
