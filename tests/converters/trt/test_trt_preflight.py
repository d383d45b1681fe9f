"""The pre-flight: planted faults, and models without any."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import pytest
from onnx import parser

from modelc.converters.trt.trt_findings import TrtFault, TrtFinding, TrtSeverity
from modelc.converters.trt.trt_preflight import examine_parent, run_preflight
from modelc.core.contract import Job, Preflight
from modelc.core.errors import ConversionError, ErrorCode, UsageError
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.signature import merge_inputs

from ...reasons import has_code

X = "x:float32[n=1..4,8]"
Fly = Callable[..., Preflight]
Spot = Callable[..., list[TrtFinding]]
ERROR, WARNING = TrtSeverity.ERROR, TrtSeverity.WARNING


def saved(folder: Path, nodes: str, *, head: str, weights: str, opset: str) -> Path:
    """The graph as a file, with a sidecar that calls the maker of `z` the module `head.bad`."""
    text = f"<ir_version: 10, opset_import: [{opset}]> g {head} <{weights}> {{ {nodes} }}"
    model = parser.parse_model(text)
    for node in model.graph.node:
        node.name = f"node_{node.output[0]}"
    path = folder / "model.onnx"
    onnx.save_model(model, str(path))
    sidecar = {"schema_version": 1, "nodes": {"node_z": {"module": "head.bad"}}}
    path.with_suffix(".debug.json").write_text(json.dumps(sidecar))
    return path


@pytest.fixture
def job_of(tmp_path: Path) -> Callable[..., Job]:
    """`job_of("y = Relu(x)")`: the job whose parent is that graph."""

    def run(
        nodes: str,
        *inputs: str,
        head: str = "(float[n,8] x) => (float[n,8] y)",
        weights: str = "",
        opset: str = '"" : 20',
        settings: Mapping[str, str] | None = None,
        precision: Precision = Precision.FP16,
    ) -> Job:
        path = saved(tmp_path, nodes, head=head, weights=weights, opset=opset)
        return job_for(path, *(inputs or (X,)), settings=settings, precision=precision)

    return run


@pytest.fixture
def fly(job_of: Callable[..., Job]) -> Fly:
    """`fly("y = Relu(x)")`: the pre-flight of that graph."""
    return lambda *given, **options: run_preflight(job_of(*given, **options))


@pytest.fixture
def spot(job_of: Callable[..., Job]) -> Spot:
    """`spot("y = Relu(x)")`: the findings of the pre-flight of that graph."""
    return lambda *given, **options: list(examine_parent(job_of(*given, **options))[0])


def errors_of(findings: list[TrtFinding]) -> list[TrtFinding]:
    return [one for one in findings if one.severity is ERROR]


def job_for(
    path: Path,
    *inputs: str,
    settings: Mapping[str, str] | None = None,
    precision: Precision = Precision.FP16,
) -> Job:
    return Job(
        signature=merge_inputs([parse_input(text) for text in inputs], {}),
        precision=precision,
        folder=path.parent,
        stem="model",
        example={},
        parent=path,
        settings=settings or {},
    )


def test_a_plain_model_has_neither_blockers_nor_warnings(fly: Fly) -> None:
    found = fly("y = Relu(x)")
    assert (found.blockers, found.warnings) == ((), ())
    assert "operators.md" in found.source


def test_the_memory_is_that_of_the_largest_sizes_and_the_workspace(fly: Fly) -> None:
    assert fly("y = Add(x, x)").memory == 2 * 4 * 8 * 4
    assert fly("y = Add(x, x)", settings={"workspace": "1M"}).memory == 2 * 4 * 8 * 4 + (1 << 20)


def test_an_operator_that_is_not_supported_is_a_blocker_with_its_module(
    fly: Fly, spot: Spot
) -> None:
    graph, head = "z = Det(x) y = Relu(z)", "(float[n,n] x) => (float y)"
    (found,) = spot(graph, head=head)
    assert (found.fault, found.severity) == (TrtFault.UNSUPPORTED_OPERATOR, ERROR)
    assert found.place == "head.bad (Det node_z)"
    assert fly(graph, head=head).blockers == (str(found),)


def test_an_operator_outside_the_table_is_a_blocker(spot: Spot) -> None:
    (found,) = errors_of(spot("z = NotYetKnown(x) y = Relu(z)"))
    assert (found.fault, found.severity) == (TrtFault.UNLISTED_OPERATOR, ERROR)
    assert found.place == "head.bad (NotYetKnown node_z)"


def test_repeated_findings_are_counted(fly: Fly) -> None:
    (line,) = fly("z = BitwiseNot(x) b = BitwiseNot(z) y = BitwiseNot(b)").blockers
    assert line.startswith("3 × BitwiseNot ")  # noqa: RUF001 - a count
    assert " head.bad (" in line


def test_an_operator_of_another_domain_requires_a_plugin(spot: Spot) -> None:
    opset = '"" : 20, "my.domain" : 1'
    (found,) = errors_of(spot("z = my.domain.Mine(x) y = Relu(z)", opset=opset))
    assert (found.fault, found.severity) == (TrtFault.MISSING_PLUGIN, ERROR)
    assert {"Mine", "my.domain", "--plugins"} <= set(found.what.split())


@pytest.mark.parametrize(
    ("operator", "settings"),
    [("my.domain.Mine", {"plugins": "libmine.so"}), ("EfficientNMS_TRT", {})],
)
def test_an_operator_of_a_plugin_is_a_warning(
    spot: Spot, operator: str, settings: Mapping[str, str]
) -> None:
    opset = '"" : 20, "my.domain" : 1'
    found = spot(f"z = {operator}(x) y = Relu(z)", opset=opset, settings=settings)
    assert (found[0].fault, found[0].severity) == (TrtFault.UNCHECKED_PLUGIN, WARNING)
    assert errors_of(found) == []


def test_the_models_own_functions_are_checked(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
        g (float[n,8] x) => (float[n,8] y) { y = own.twice(x) }
        <domain: "own", opset_import: ["" : 20]> twice (a) => (b) { z = Det(a) b = Add(z, a) }"""
    path = tmp_path / "model.onnx"
    onnx.save_model(parser.parse_model(text), str(path))
    (found,), _ = examine_parent(job_for(path, X))
    assert (found.fault, found.severity) == (TrtFault.UNSUPPORTED_OPERATOR, ERROR)
    assert "Det" in found.what.split()


def test_a_size_that_depends_on_data_is_a_warning(spot: Spot) -> None:
    found = spot(
        "z = NonZero(x) y = Cast <to: int = 1> (z)", head="(float[n,8] x) => (float[2,k] y)"
    )
    assert {one.severity for one in found} == {WARNING}
    places = {one.fault: one.place for one in found}
    assert places[TrtFault.SIZE_FROM_DATA].startswith("head.bad ")
    assert TrtFault.UNKNOWN_SIZES in places


def test_a_restriction_of_an_operator_is_a_blocker(spot: Spot) -> None:
    (found,) = spot(
        "z, i = MaxPool <kernel_shape: ints = [2, 2]> (x) y = Relu(z)",
        "x:float32[n=1..4,3,8,8]",
        head="(float[n,3,8,8] x) => (float[n,3,7,7] y, int64[n,3,7,7] i)",
    )
    assert (found.fault, found.severity) == (TrtFault.RESTRICTION, ERROR)
    assert found.place == "head.bad (MaxPool node_z)"
    assert "indices" in found.what


@pytest.mark.parametrize("dtype", ["string", "complex64", "int16", "uint64"])
def test_a_type_that_tensorrt_does_not_have_is_a_blocker(spot: Spot, dtype: str) -> None:
    found = spot("z = Identity(x) y = Identity(z)", head=f"({dtype}[n,8] x) => ({dtype}[n,8] y)")
    assert {(one.fault, one.what.split()[-1]) for one in errors_of(found)} == {
        (TrtFault.UNKNOWN_TYPE, dtype)
    }


def test_uint8_is_supported_for_inputs_and_casts_only(spot: Spot) -> None:
    head = "(uint8[n,8] x) => (float[n,8] y)"
    assert spot("y = Cast <to: int = 1> (x)", "x:uint8[n=1..4,8]", head=head) == []
    (found,) = spot("z = Add(x, x) y = Cast <to: int = 1> (z)", "x:uint8[n=1..4,8]", head=head)
    assert (found.fault, found.severity) == (TrtFault.INNER_UINT8, ERROR)


def test_doubles_and_constants_beyond_float32_are_warnings(spot: Spot) -> None:
    found = spot(
        "d = Cast <to: int = 11> (x) z = Add(d, c) y = Cast <to: int = 1> (z)",
        weights="double c = {1e300}",
    )
    assert {one.severity for one in found} == {WARNING}
    assert {one.fault: one.place for one in found} == {
        TrtFault.DOUBLE: "",
        TrtFault.DOUBLE_RANGE: "c",
    }


def test_a_type_that_the_table_does_not_list_is_a_warning(spot: Spot) -> None:
    (found,) = spot(
        "i = Cast <to: int = 6> (x) z = MatMul(i, i) y = Cast <to: int = 1> (z)",
        head="(float[n,n] x) => (float[n,n] y)",
    )
    assert (found.fault, found.severity) == (TrtFault.UNLISTED_TYPE, WARNING)
    assert {"MatMul", "int32"} <= set(found.what.split())


def test_indices_of_int64_have_no_finding(fly: Fly) -> None:
    found = fly(
        "s = Shape(x) t = CumSum(x, a) y = Reshape(t, s)",
        weights="int64 a = {1}",
    )
    assert (found.blockers, found.warnings) == ((), ())


def test_a_dim_without_bounds_is_a_blocker(spot: Spot) -> None:
    (found,) = spot(
        "y = Relu(x)", "x:float32[rows,8]", head="(float[rows,8] x) => (float[rows,8] y)"
    )
    assert (found.fault, found.severity) == (TrtFault.UNBOUNDED_DIM, ERROR)
    assert "'rows'" in found.what
    assert "rows=min..max" in found.what


def test_a_profile_bounds_a_dim(fly: Fly) -> None:
    found = fly(
        "y = Relu(x)",
        "x:float32[rows,8]",
        head="(float[rows,8] x) => (float[rows,8] y)",
        settings={"profiles": "x=1x8:2x8:16x8"},
    )
    assert found.blockers == ()


def test_a_fixed_dim_of_the_model_is_a_blocker(spot: Spot) -> None:
    (found,) = spot("y = Relu(x)", head="(float[4,8] x) => (float[4,8] y)")
    assert (found.fault, found.severity) == (TrtFault.FIXED_DIM, ERROR)
    assert {"0", "x", "4", "n=1..4"} <= set(found.what.split())


@pytest.mark.parametrize(
    ("opset", "blockers", "warnings"), [(8, 0, 1), (20, 0, 0), (24, 0, 0), (25, 0, 1), (26, 0, 1)]
)
def test_opsets_outside_the_parsers_are_found(
    fly: Fly, opset: int, blockers: int, warnings: int
) -> None:
    found = fly("y = Relu(x)", opset=f'"" : {opset}')
    assert (len(found.blockers), len(found.warnings)) == (blockers, warnings)


@pytest.mark.parametrize(
    ("zero", "precision", "fault"),
    [("3", Precision.FP16, TrtFault.ASYMMETRIC), ("0", Precision.INT8, TrtFault.NOT_QUANTIZED)],
)
def test_a_fault_of_the_qdq_is_a_blocker(
    spot: Spot, zero: str, precision: Precision, fault: TrtFault
) -> None:
    found = spot(
        "q = QuantizeLinear(x, s, z0) z = DequantizeLinear(q, s, z0) y = Relu(z)",
        weights=f"float s = {{0.1}}, int8 z0 = {{{zero}}}",
        precision=precision,
    )
    assert fault in [one.fault for one in errors_of(found)]


def test_missing_weights_are_a_blocker(tmp_path: Path) -> None:
    import numpy as np
    from onnx import numpy_helper

    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[n,8] x) => (float[n,8] y)'
        " { y = MatMul(x, w) }"
    )
    weight = np.ones((8, 8), dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = tmp_path / "model.onnx"
    onnx.save_model(
        model, str(path), save_as_external_data=True, location="model.onnx.data", size_threshold=0
    )
    assert run_preflight(job_for(path, X)).blockers == ()
    (tmp_path / "model.onnx.data").unlink()
    (line,) = run_preflight(job_for(path, X)).blockers
    assert "model.onnx.data" in line


def test_a_tensor_of_more_than_2_to_the_31_elements_is_a_warning(fly: Fly) -> None:
    found = fly("y = Add(x, x)", "x:float32[n=1..300000000,8]")
    assert any("2,400,000,000" in line for line in found.warnings)


def test_faults_in_the_branches_of_an_if_are_found(fly: Fly) -> None:
    found = fly(
        "z = If (c) <then_branch = t () => (float a) { a = Det(x) }, "
        "else_branch = e () => (float b) { b = Det(x) }> y = Relu(z)",
        head="(float[n,n] x, bool c) => (float y)",
    )
    assert any(line.startswith("2 × Det ") for line in found.blockers)  # noqa: RUF001 - a count


def test_every_finding_is_in_the_log(fly: Fly, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        fly("z = BitwiseNot(x) b = BitwiseNot(z) y = BitwiseNot(b)")
    assert sum(": BitwiseNot is " in line for line in caplog.messages) == 3


def test_an_unknown_option_is_an_error(fly: Fly) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming="'nosuch'")):
        fly("y = Relu(x)", settings={"nosuch": "1"})


def test_a_file_that_is_no_model_is_a_conversion_error(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x99 not a model")
    with pytest.raises(ConversionError, match="onnx_ir"):
        run_preflight(job_for(path, X))


@pytest.mark.slow
@pytest.mark.needs("onnx")
@pytest.mark.filterwarnings("ignore")  # the exporter's own; the pipeline logs them
@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("nested", None),
        ("lstm", ("tokens:int64[batch=1..4,seq=2..16]{0..49}",)),
        (
            "bert",
            ("ids:int64[batch=1..4,seq=2..16]{0..99}", "mask:int64[batch=1..4,seq=2..16]{0..1}"),
        ),
    ],
)
def test_the_sample_models_have_no_blocker(
    exports: Callable[[str], Path], name: str, inputs: tuple[str, ...] | None
) -> None:
    from modelc.sample_models import nested

    path = exports(name) / "model.onnx"
    found = run_preflight(job_for(path, *(inputs or nested.SIGNATURE), precision=Precision.FP32))
    assert found.blockers == ()
    assert found.memory > path.stat().st_size // 2


@pytest.mark.needs("onnx")
@pytest.mark.filterwarnings("ignore")
def test_digits_have_neither_blockers_nor_warnings(exported_digits: Path) -> None:
    job = job_for(
        exported_digits / "model.onnx", "x:float32[batch=1..8,1,8,8]", precision=Precision.FP32
    )
    found = run_preflight(job)
    assert (found.blockers, found.warnings) == ((), ())


def test_inputs_and_outputs_of_float64_are_noted(tmp_path: Path) -> None:
    def found(inner: str) -> tuple[int, int]:
        path = tmp_path / f"{inner.split(maxsplit=1)[0]}.onnx"
        text = f'<ir_version: 10, opset_import: ["" : 20]> g (double[4] x) => ({inner}[4] y) '
        node = "y = Abs(x)" if inner == "double" else "y = Cast <to = 1> (x)"
        onnx.save(parser.parse_model(text + "{ " + node + " }"), path)
        result = run_preflight(job_for(path, "x:float64[4]"))
        return len(result.blockers), sum("float64" in one for one in result.warnings)

    assert found("float") == (0, 1)
    assert found("double") == (0, 2)


def test_an_input_that_sets_a_size_needs_a_range(spot: Spot) -> None:
    head = "(float[n,8] x, int64[1] k) => (float[n,m] y, int64[n,m] i)"

    def faults(k: str) -> list[str]:
        return [str(one) for one in spot("y, i = TopK(x, k)", X, k, head=head)
                if one.fault is TrtFault.UNSTATED_RANGE]  # fmt: skip

    (line,) = faults("k:int64[1]")
    assert '--input "k:int64[1]{1..10}"' in line
    assert not faults("k:int64[1]{1..8}")


@pytest.mark.parametrize(
    ("builder", "dtype", "warned"),
    [("trtexec", "float", True), ("trtexec", "float16", False), ("python", "float", False)],
)
def test_attention_of_float32_is_not_for_trtexec(
    spot: Spot, builder: str, dtype: str, warned: bool
) -> None:
    head = f"({dtype}[1,2,4,8] q) => ({dtype}[1,2,4,8] z)"
    found = spot("z = Attention(q, q, q)", "q:float32[1,2,4,8]", head=head, opset='"" : 23',
                 settings={"builder": builder})  # fmt: skip
    lines = [one for one in found if one.fault is TrtFault.WHOLE_ATTENTION]
    assert [one.place for one in lines] == ["head.bad (Attention node_z)"] * warned
