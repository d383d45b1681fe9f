"""The plan of segments for torch-tensorrt, against what its own partitioner made."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modelc.converters.trt import torch_converters as table
from modelc.converters.trt import torch_segments
from modelc.converters.trt.torch_lowering import lower_program
from modelc.converters.trt.torch_segments import plan_segments
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.segments import DEFAULT_MIN_BLOCK, LeftOutReason, SegmentOptions, SegmentPlan

from ...nets import segment_nets
from ...nets.segment_nets import Branches, Middle, Whole, export_net
from ...reasons import has_code

DATA = Path(__file__).parents[2] / "data" / "torch_tensorrt"
RECORDED: list[dict[str, Any]] = json.loads((DATA / "segments.json").read_text("utf-8"))
SURFACE: dict[str, Any] = json.loads((DATA / "2.13.json").read_text("utf-8"))

LOWERED = cache(lower_program)  # a program has records for several sizes of blocks


@pytest.mark.parametrize(
    "recorded", RECORDED, ids=lambda one: f"{one['net']}-{one['dynamic']}-{one['min_block_size']}"
)
def test_the_segments_are_those_of_the_package(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_segments, "lower_program", LOWERED)
    kind = getattr(segment_nets, recorded["net"])
    program = program_of(kind, dynamic=recorded["dynamic"])
    plan = plan_segments(program, SegmentOptions(min_block_size=recorded["min_block_size"]))
    ours = [{"engine": one.engine, "operators": one.operators} for one in plan.segments]
    assert ours == recorded["segments"]


@cache
def program_of(kind: type[nn.Module], *, dynamic: bool) -> torch.export.ExportedProgram:
    return export_net(kind, dynamic=dynamic)


def middle(*torch_ops: str, least: int = 1) -> SegmentPlan:
    options = SegmentOptions(min_block_size=least, torch_ops=torch_ops)
    return plan_segments(program_of(Middle, dynamic=True), options)


def reasons_of(plan: SegmentPlan) -> dict[str, LeftOutReason]:
    return {one.operator: one.reason for one in plan.left_out}


def test_an_operator_without_a_converter_is_left_out() -> None:
    assert reasons_of(middle()) == {"aten.searchsorted.Tensor": LeftOutReason.NO_CONVERTER}


@pytest.mark.parametrize("name", ["aten.sin", "aten.sin.default"])
def test_an_operator_stays_in_torch_on_request(name: str) -> None:
    assert reasons_of(middle(name))["aten.sin.default"] is LeftOutReason.REQUESTED


def test_an_operator_that_the_program_lacks_is_an_error() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_FOUND, naming="torch-ops")):
        middle("aten.cosine")


def test_an_engine_that_is_too_small_runs_in_torch() -> None:
    plan = middle(least=5)
    assert (plan.switches, middle().switches) == (1, 2)
    assert reasons_of(plan)["aten.mul.Tensor"] is LeftOutReason.SMALL_BLOCK


def test_the_module_of_an_operator_in_torch_is_named() -> None:
    (found,) = [one for one in middle("aten.linear").left_out if "linear" in one.operator]
    assert found.module.endswith("line")


def test_the_share_is_of_the_flops() -> None:
    plan = middle("aten.linear")
    conv, line = 2 * 2 * 4 * 36 * 9, 2 * 2 * 10 * 144
    assert plan.work == "FLOPs"
    assert plan.share == pytest.approx(conv / (conv + line))


def test_a_converter_that_needs_fixed_sizes_takes_no_dynamic_ones() -> None:
    class Log(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log1p(x)

    shapes = ({0: torch.export.Dim("n", min=1, max=8)},)
    fixed, free = (
        plan_segments(
            torch.export.export(Log(), (torch.ones(2),), dynamic_shapes=one),
            SegmentOptions(min_block_size=1),
        )
        for one in (None, shapes)
    )
    assert fixed.left_out == ()
    assert fixed.work == "operators"
    assert reasons_of(free) == {"aten.log1p.default": LeftOutReason.DYNAMIC_SIZES}


def test_a_net_of_converted_operators_is_one_engine() -> None:
    plan = plan_segments(program_of(Whole, dynamic=True))
    assert (len(plan.segments), plan.switches, plan.share) == (1, 0, 1.0)


def test_each_operator_is_in_one_segment() -> None:
    plan = plan_segments(program_of(Branches, dynamic=False), SegmentOptions(min_block_size=1))
    assert sum(sum(one.operators.values()) for one in plan.segments) == sum(
        one.nodes for one in plan.segments
    )
    assert sum(one.share for one in plan.segments) == pytest.approx(1)


def test_the_table_has_the_converters_of_the_wheel() -> None:
    theirs = {name for name in SURFACE["converters"] if name.startswith("aten.")}
    assert theirs == table.CONVERTED | table.CHECKED
    assert not table.CONVERTED & table.CHECKED
    primitives = {name for name in SURFACE["converters"] if name.startswith("prims.")}
    assert primitives <= table.PRIMITIVES
    functions = {name.partition(".")[2] for name in SURFACE["converters"]
                 if name.startswith(("operator.", "torch."))}  # fmt: skip
    assert functions == table.SIZE_FUNCTIONS


@pytest.mark.parametrize(
    ("known", "keyword", "value"),
    [
        (table.CHECKED, "capability_validator", None),
        (table.DATA_DEPENDENT, "requires_output_allocator", "True"),
    ],
)
def test_the_table_has_the_conditions_of_the_wheel(
    known: frozenset[str], keyword: str, value: str | None
) -> None:
    for name in known:
        given = [one.get(keyword) for one in SURFACE["converters"][name]]
        assert any(given) if value is None else value in given


def test_operators_for_fixed_sizes_are_those_of_the_wheel() -> None:
    free = {
        name for name, rows in SURFACE["converters"].items()
        if any(one.get("supports_dynamic_shapes") == "True" for one in rows)
    }  # fmt: skip
    assert (table.CONVERTED | table.CHECKED | table.PRIMITIVES) - free == table.STATIC_ONLY


def test_the_least_block_is_that_of_the_package() -> None:
    assert SURFACE["settings"]["min_block_size"] == str(DEFAULT_MIN_BLOCK)
    assert "torch_executed_ops" in SURFACE["functions"]["torch_tensorrt.dynamo.compile"]
