"""What torch.compile makes of models over their domain: breaks, guards, recompiles, the limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from modelc.core.compile_records import CompileReport, GraphBreak
from modelc.pipeline.compile_report import inspect_breaks
from modelc.pipeline.order import Source
from modelc.tests.nets import compile_nets
from modelc.tests.nets.compile_nets import FACTORY, INPUT

Inspect = Callable[[str], CompileReport]


@pytest.fixture(scope="module")
def report_of(tmp_path_factory: pytest.TempPathFactory) -> Inspect:
    """Inspect a model of compile_nets once."""
    known: dict[str, CompileReport] = {}

    def inspect(name: str) -> CompileReport:
        if name not in known:
            torch.manual_seed(0)
            path = tmp_path_factory.mktemp(name) / "net.pt"
            torch.save(compile_nets.build(name).state_dict(), path)
            source = Source(
                checkpoint=path, model=FACTORY, model_args={"name": name}, inputs=(INPUT,)
            )
            known[name] = inspect_breaks(source)
        return known[name]

    return inspect


def _code(one: GraphBreak) -> str:
    assert one.place is not None
    assert Path(one.place.file).name == "compile_nets.py"
    return one.place.code


def test_a_model_that_compiles_whole_has_one_graph(report_of: Inspect) -> None:
    found = report_of("Layered")
    trace = found.traces[0]
    assert (found.fullgraph, trace.graphs, trace.operators, trace.breaks) == (True, 1, 6, ())
    assert trace.guards["TENSOR_MATCH"] == 7  # six parameters and the input
    assert (trace.limit, trace.failure) == (None, None)


def test_with_dynamic_shapes_only_a_batch_of_one_recompiles(report_of: Inspect) -> None:
    default, dynamic = report_of("Layered").traces
    assert [one.sizes["batch"] for one in default.recompiles] == [1, 16]
    assert [one.sizes["batch"] for one in dynamic.recompiles] == [1]


def test_each_break_has_the_line_of_the_user(report_of: Inspect) -> None:
    found = report_of("Branching")
    codes = [_code(one) for one in found.traces[0].breaks]
    assert codes[:2] == ["if x.sum() > 0:", 'print("inside")']
    assert "count = int(x.sum().item()) % 3" in codes
    assert all(one.kind for one in found.traces[0].breaks)


def test_the_first_reason_against_one_graph(report_of: Inspect) -> None:
    found = report_of("Branching")
    assert found.fullgraph_reason is not None
    assert (found.fullgraph, _code(found.fullgraph_reason)) == (False, "if x.sum() > 0:")


def test_a_value_of_the_module_is_a_constant(report_of: Inspect) -> None:
    values = report_of("Branching").traces[0].values
    assert "self.scale == 2.0" in [one.text for one in values]


def test_a_function_that_dynamo_gives_up_is_one_break(report_of: Inspect) -> None:
    trace = report_of("GivenUp").traces[0]
    assert [(one.function, one.count) for one in trace.breaks] == [("forward", 1)]
    assert (trace.graphs, _code(trace.breaks[0])) == (0, "if x.mean() > number:")


def test_a_graph_for_each_size_reaches_the_limit(report_of: Inspect) -> None:
    trace = report_of("Unrolled").traces[0]
    assert trace.limit == torch._dynamo.config.recompile_limit
    guard = trace.sizes[0]
    assert (guard.dim, guard.low, guard.high) == ("batch", 16, 16)
    assert guard.place is not None
    assert guard.place.code.startswith("for number")
    last = trace.recompiles[-1]
    assert (last.place, last.guards[0].dim) == (guard.place, "batch")


def test_a_range_of_sizes_is_named(report_of: Inspect) -> None:
    guards = report_of("Limited").traces[1].sizes
    assert [(one.dim, one.low, one.high) for one in guards] == [
        ("batch", 7, None), ("batch", 2, 6),
    ]  # fmt: skip
    assert {one.place.code for one in guards if one.place} == {"if x.size(0) > 6:"}


def test_an_error_of_the_compiled_module_alone_is_a_finding(report_of: Inspect) -> None:
    failures = [trace.failure for trace in report_of("Raising").traces]
    assert all(one is not None and one.feed == "opt" for one in failures)


def test_nothing_of_dynamo_is_left_behind(report_of: Inspect) -> None:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase

    report_of("Layered")
    assert InstructionTranslatorBase.log_graph_break.__module__ == "torch._dynamo.symbolic_convert"
    assert not torch._dynamo.config.fail_on_recompile_limit_hit
