"""The verdict of NVIDIA's parser: its child process, and what it replaces in the pre-flight."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from modelc.benchmarks.tensorrt_parser import measure
from modelc.converters.trt.parser_verdict import ParserProblem, ParserVerdict, ask_parser
from modelc.converters.trt.trt_installation import TrtLibrary
from modelc.converters.trt.trt_preflight import look_up_table, run_preflight
from modelc.core.contract import Job
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.signature import merge_inputs
from modelc.tests.nets.one_operator import operators

VERSION = "1.7.1.116"
MODELS = {one.name: one for one in operators()}


def refusal(operator: str) -> ParserVerdict:
    problem = ParserProblem(node="node", operator=operator, text="no", code="UNSUPPORTED_NODE")
    return ParserVerdict(version=VERSION, problems=(problem,))


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Functions that a child process can import."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return importlib.import_module("staged_parse")


@pytest.fixture
def job_of(tmp_path: Path) -> Callable[..., Job]:
    """`job_of("Det")`: a job whose parent is the model of that name."""

    def make(name: str, **settings: str) -> Job:
        path = tmp_path / "model.trt.onnx"
        path.write_bytes(MODELS[name].make().SerializeToString())
        return Job(
            signature=merge_inputs([parse_input("x0:float32[4,4]")], {}).with_outputs(("y0",)),
            precision=Precision.FP32,
            folder=tmp_path,
            stem="model",
            example={"x0": np.zeros((4, 4), np.float32)},
            parent=path,
            settings=settings,
        )

    return make


def test_the_verdict_comes_from_a_child(staged: Any, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    assert ask_parser(tmp_path / "m.onnx", parse=staged.accept).is_accepted
    found = ask_parser(tmp_path / "m.onnx", parse=staged.reject)
    assert [(one.node, one.operator) for one in found.problems] == [("n", "Det")]
    assert not found.is_accepted


@pytest.mark.parametrize(("function", "word"), [("crash", "SIGABRT"), ("fail", "bindings")])
def test_a_failed_child_is_no_verdict(
    staged: Any, tmp_path: Path, function: str, word: str
) -> None:
    found = ask_parser(tmp_path, parse=getattr(staged, function))
    assert word in found.failure
    assert not found.is_accepted


def test_a_child_that_hangs_is_ended(staged: Any, tmp_path: Path) -> None:
    found = ask_parser(tmp_path, parse=staged.hang, timeout=1.0)
    assert found.failure
    assert found.problems == ()


def test_its_acceptance_removes_the_blockers_of_the_table(job_of: Callable[..., Job]) -> None:
    job = job_of("Det")
    assert run_preflight(job).blockers
    found = run_preflight(job, ask=lambda _: ParserVerdict(version=VERSION))
    assert (found.blockers, found.warnings) == ((), ())
    assert VERSION in found.source


def test_its_refusal_is_a_blocker(job_of: Callable[..., Job]) -> None:
    job = job_of("Trilu")
    assert not run_preflight(job).blockers
    (line,) = run_preflight(job, ask=lambda _: refusal("Trilu")).blockers
    assert "Trilu node" in line


def test_without_a_verdict_the_table_stands_with_a_warning(job_of: Callable[..., Job]) -> None:
    job = job_of("Det")
    plain = run_preflight(job)
    found = run_preflight(job, ask=lambda _: ParserVerdict(failure="the parser crashed"))
    assert (found.blockers, found.source) == (plain.blockers, plain.source)
    assert len(found.warnings) == len(plain.warnings) + 1


@pytest.mark.parametrize("library", [TrtLibrary.TENSORRT, TrtLibrary.RTX])
def test_a_plugin_that_only_tensorrt_has_blocks_only_rtx(
    job_of: Callable[..., Job], library: TrtLibrary
) -> None:
    found = run_preflight(job_of("Trilu"), library, lambda _: refusal("RoiAlign"))
    assert bool(found.blockers) is (library is TrtLibrary.RTX)


def test_the_parser_is_not_asked_about_plugins_of_the_user(job_of: Callable[..., Job]) -> None:
    def ask(_: Path) -> ParserVerdict:
        raise AssertionError("it does not have them")

    assert run_preflight(job_of("Trilu", plugins="/a.so"), ask=ask).blockers == ()


@pytest.mark.parametrize(
    ("name", "blocked"),
    [
        ("GridSample:5D", False),
        ("TopK:3840", False),
        ("TopK:3841", True),
        ("TopK:unsorted", False),
        ("OneHot:computed depth", False),
        ("CumSum:computed axis", False),
        ("Attention:3D", False),
        ("Swish", False),
        ("ScatterElements:none", False),
        ("ScatterElements:add", True),
        ("ScatterND:add", True),
        ("QuantizeLinear:uint8", True),
    ],
)
def test_the_table_agrees_with_the_parser(tmp_path: Path, name: str, blocked: bool) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODELS[name].make().SerializeToString())
    assert bool(look_up_table(path)[0]) is blocked


@pytest.mark.parametrize("name", ["MatMul:l", "Relu:int32", "ReduceMax:bool", "Mish:bf16"])
def test_the_table_warns_of_types_that_it_does_not_list(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODELS[name].make().SerializeToString())
    assert look_up_table(path)[1]


@pytest.mark.rtx
@pytest.mark.slow
@pytest.mark.parametrize("name", ["Relu", "TopK:3840", "Det", "RoiAlign", "MatMul:l", "Swish"])
def test_table_and_parser_agree(name: str) -> None:
    pytest.importorskip("tensorrt_rtx")
    assert measure(MODELS[name]).finding in {"right", "warned", "plugin"}


@pytest.mark.rtx
@pytest.mark.slow
def test_the_real_parser_names_the_node(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xy"]
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["a"], name="first"),
            helper.make_node("MyOp", ["a", "w"], ["y"], name="second", domain="mine"),
        ],
        "g",
        ends[:1],
        ends[1:],
        [numpy_helper.from_array(np.ones(4, np.float32), "w")],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    found = ask_parser(path)
    assert [(one.node, one.operator) for one in found.problems] == [("second", "MyOp")]


def test_a_node_that_the_parser_does_not_name_is_the_tables(job_of: Callable[..., Job]) -> None:
    job = job_of("Det")
    (table,) = run_preflight(job).blockers
    nameless = ParserProblem(node="", operator="Det", text="no", code="UNSUPPORTED_NODE_ATTR")
    verdict = ParserVerdict(version=VERSION, problems=(nameless,))
    (line,) = run_preflight(job, ask=lambda _: verdict).blockers
    assert line.partition(":")[0] == table.partition(":")[0]
    assert "Det node" in line


@pytest.mark.rtx
@pytest.mark.slow
def test_the_operator_is_known_by_the_function_that_failed(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    text = """<ir_version: 10, opset_import: ["": 20]>
        g (float[4,4] x, int64[4,4] i) => (float[4,4] y) {
            y = ScatterElements<axis = 0, reduction = "add">(x, i, x)
        }"""
    onnx.save(parser.parse_model(text), tmp_path / "model.onnx")
    (problem,) = ask_parser(tmp_path / "model.onnx").problems
    assert problem.operator == "ScatterElements"


def test_every_model_of_the_benchmark_is_one_operator() -> None:
    assert len(MODELS) == len(list(operators())) > 250
    assert all(len(one.make().graph.node) == 1 for one in operators())


def test_a_plugin_that_rtx_lacks_blocks_it_without_the_parser(job_of: Callable[..., Job]) -> None:
    job = job_of("RoiAlign")
    dims = run_preflight(job, TrtLibrary.TENSORRT).blockers  # the signature is of another model
    (line,) = set(run_preflight(job, TrtLibrary.RTX).blockers) - set(dims)
    assert "RoiAlign node" in line


def test_after_a_refusal_the_table_only_warns_of_other_nodes(job_of: Callable[..., Job]) -> None:
    job = job_of("Det")
    (table,) = run_preflight(job).blockers
    elsewhere = ParserProblem(node="other", operator="Relu", text="no", code="UNSUPPORTED_NODE")
    verdict = ParserVerdict(version=VERSION, problems=(elsewhere,))
    found = run_preflight(job, ask=lambda _: verdict)
    assert len(found.blockers) == 1
    assert table in found.warnings
    same = run_preflight(job, ask=lambda _: refusal("Det"))
    assert (len(same.blockers), same.warnings) == (1, ())


@pytest.mark.parametrize(
    ("name", "blocked"),
    [("Loop", False), ("Loop:no condition", True), ("Loop:no condition, none read", False)],
)
def test_a_loop_whose_body_reads_a_missing_condition(
    tmp_path: Path, name: str, blocked: bool
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODELS[name].make().SerializeToString())
    assert bool(look_up_table(path)[0]) is blocked
