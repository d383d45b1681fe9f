"""The target onnx-tensorrt, against the names that the wheel of ONNX Runtime has."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import helper, parser

from modelc.converters import onnx_tensorrt as target
from modelc.converters.archive_records import trust_file
from modelc.converters.registry import target_for, target_named
from modelc.converters.trt import provider_options as options
from modelc.converters.trt.context_files import find_engines
from modelc.converters.trt.engine_options import check_libraries, options_for, parse_options
from modelc.converters.trt.trt_installation import TrtLibrary
from modelc.converters.trt.trt_preflight import load_typed_model
from modelc.core.contract import Deferred, Job, Native
from modelc.core.errors import ErrorCode, MissingError, RunnerError, UsageError
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.signature import Signature, merge_inputs

from ...reasons import has_code

SURFACE: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data" / "onnxruntime_tensorrt" / "1.24.4.json").read_text("utf-8")
)
X = "x:float32[n=1..4,8]"
WHOLE = "a = Relu(x) y = Sin(a)"
PARTS = "a = Relu(x) i = Cast<to=6>(a) b = BitwiseNot(i) c = Cast<to=1>(b) d = Sin(c) y = Abs(d)"
SETTINGS = [
    {}, {"workspace": "1G"}, {"min_block_size": "1"}, {"optimization_level": "5"},
    {"hardware_compatible": "ampere-plus"},
]  # fmt: skip


def signature_of(*specs: str) -> Signature:
    return merge_inputs([parse_input(one) for one in specs], {})


def job_for(folder: Path, nodes: str, **settings: str) -> Job:
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[n,8] x) => (float[n,8] y)'
    path = folder / "parent.onnx"
    onnx.save_model(parser.parse_model(f"{text} {{ {nodes} }}"), str(path))
    return Job(
        signature=signature_of(X), precision=Precision.FP32, folder=folder, stem="model",
        example={"x": np.ones((2, 8), np.float32)}, parent=path, settings=settings,
    )  # fmt: skip


def every_option(job: Job) -> dict[str, str]:
    """All options that a build and the opening of its result may use."""
    assert job.parent is not None
    model = load_typed_model(job.parent)
    ranges = {**options.input_ranges(job), **options.measure_ranges(job, job.parent, model)}
    return {
        "device_id": "0",
        **options.build_options(parse_options(job.settings), model, ranges),
        **options.cache_options("model", job.folder),
        **options.context_options(job.folder / "model.ctx.onnx"),
        **options.keep_timings(job.folder),
    }


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_options_are_those_of_the_provider(tmp_path: Path, settings: dict[str, str]) -> None:
    given = every_option(job_for(tmp_path, PARTS, **settings))
    assert not set(given) - set(SURFACE["options"])
    assert SURFACE["provider"] == options.PROVIDER


def test_the_names_are_in_the_installed_library() -> None:
    try:
        files = metadata.files("onnxruntime-gpu") or ()
    except metadata.PackageNotFoundError:
        pytest.skip("onnxruntime-gpu is not installed")
    found = [one for one in files if one.name == "libonnxruntime_providers_tensorrt.so"]
    if not found or metadata.version("onnxruntime-gpu") != SURFACE["version"]:
        pytest.skip("onnxruntime-gpu is of another version, or has no TensorRT provider")
    library = Path(str(found[0].locate())).read_bytes()
    assert [one for one in SURFACE["options"] if one.encode() not in library] == []


def test_the_precision_is_that_of_the_types(tmp_path: Path) -> None:
    job = job_for(tmp_path, "a = Cast<to=10>(x) b = Sin(a) y = Cast<to=1>(b)")
    assert job.parent is not None
    model = load_typed_model(job.parent)
    given = options.build_options(parse_options({}), model, {})
    assert given == {"trt_min_subgraph_size": "5", "trt_fp16_enable": "1"}


def test_the_profile_is_that_of_the_inputs(tmp_path: Path) -> None:
    given = every_option(job_for(tmp_path, WHOLE))
    for end, size in (("min", 1), ("max", 4)):
        entries = given[f"trt_profile_{end}_shapes"].split(",")
        assert f"x:{size}x8" in entries


def test_inner_tensors_have_measured_sizes(tmp_path: Path) -> None:
    nodes = "a = Concat<axis=0>(x, x) i = Cast<to=6>(a) b = BitwiseNot(i) y = Cast<to=1>(b)"
    job = job_for(tmp_path, nodes)
    assert job.parent is not None
    found = options.measure_ranges(job, job.parent, load_typed_model(job.parent))
    assert found["b"] == ((2, 8), found["a"][1], (8, 8))


@pytest.mark.parametrize("load", [load_typed_model, onnx_ir.load], ids=["typed", "unknown"])
def test_a_number_has_no_range(tmp_path: Path, load: Callable[[Path], Any]) -> None:
    job = job_for(tmp_path, "r = ReduceSum<keepdims=0>(x) y = Add(x, r)")
    assert job.parent is not None
    assert "r" not in options.measure_ranges(job, job.parent, load(job.parent))


def test_a_sequence_has_no_range(tmp_path: Path) -> None:
    job = job_for(
        tmp_path, "k = Constant<value_int=0>() s = SequenceConstruct(x) y = SequenceAt(s, k)"
    )
    assert job.parent is not None
    found = options.measure_ranges(job, job.parent, load_typed_model(job.parent))
    assert set(found) == {"y"}


def test_a_name_with_a_comma_is_refused(tmp_path: Path) -> None:
    model = load_typed_model(job_for(tmp_path, WHOLE).parent or tmp_path)
    ranges = {"a,b": ((1,), (2,), (3,))}
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, naming="a,b")):
        options.build_options(parse_options({}), model, ranges)


@pytest.mark.parametrize(
    ("name", "value"),
    [("tf32", "false"), ("timing_cache", "/a.timing"), ("torch_ops", "aten.sin"),
     ("plugins", "/a.so"), ("profiles", "x=1x8:2x8:4x8"), ("refittable", "true")],
)  # fmt: skip
def test_an_option_that_the_provider_lacks_is_an_error(name: str, value: str) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED)):
        check_libraries({name: value}, [TrtLibrary.ORT])
    assert options_for(parse_options({name: value}), TrtLibrary.ORT) == parse_options({})


def test_a_dim_without_bounds_is_refused() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.MISSING_DIMS, naming="n")):
        target.check_settings(signature_of("x:float32[n,8]"), {})


def test_engines_for_the_same_capability_are_refused() -> None:
    given = {"hardware_compatible": "same-compute-capability"}
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED)):
        target.check_settings(signature_of("x:float32[2,8]"), given)


def test_the_preflight_names_what_stays_outside(tmp_path: Path) -> None:
    found = target.preflight(job_for(tmp_path, PARTS, min_block_size="1"))
    assert found.blockers == ()
    assert any("BitwiseNot" in one for one in found.warnings)
    assert found.memory > 0


def test_a_model_without_engines_is_a_blocker(tmp_path: Path) -> None:
    assert len(target.preflight(job_for(tmp_path, PARTS)).blockers) == 1


def context_model(folder: Path, *, engine: str = "model_1.engine", embed: int = 0) -> Path:
    """A context model with its engine beside it."""
    x, y = (helper.make_tensor_value_info(name, 1, ["n", 8]) for name in "xy")
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=embed, ep_cache_context=engine
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [x], [y])
    path = folder / "model.ctx.onnx"
    onnx.save_model(helper.make_model(graph, opset_imports=opsets), str(path))
    (folder / "model_1.engine").write_bytes(b"ftrt")
    return path


def test_the_target_claims_its_own_files(tmp_path: Path) -> None:
    assert target_for(context_model(tmp_path)) is target
    assert target_named("onnx-tensorrt") is target
    assert isinstance(target, Deferred)
    assert isinstance(target, Native)


def test_inspect_counts_nodes_and_engines_without_opening_them(tmp_path: Path) -> None:
    facts = target.inspect(context_model(tmp_path)).facts
    counted = [facts[name] for name in ("engines", "EPContext nodes", "other operators")]
    assert counted == ["1", "1", "0"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that has a device and the provider, as far as the target asks."""
    monkeypatch.setattr(target, "load_tensorrt", lambda _: None)


@pytest.mark.usefixtures("gpu")
def test_a_file_of_another_maker_is_not_opened(tmp_path: Path) -> None:
    path = context_model(tmp_path)
    with pytest.raises(RunnerError, check=has_code(ErrorCode.CONSENT_REQUIRED)):
        target.open_runner(path, "cuda", signature_of(X))


def test_an_exchanged_engine_is_not_trusted(tmp_path: Path) -> None:
    path = context_model(tmp_path)
    for file in (path, *find_engines(path)):
        trust_file(file)
    assert target.distrust_reason(path, {}) == ""
    (tmp_path / "model_1.engine").write_bytes(b"other")
    assert target.distrust_reason(path, {})


@pytest.mark.parametrize(("engine", "embed"), [("../a.engine", 0), ("/a.engine", 0), ("", 0),
                                               ("model_1.engine", 1)])  # fmt: skip
@pytest.mark.usefixtures("gpu")
def test_an_engine_outside_the_folder_is_refused(tmp_path: Path, engine: str, embed: int) -> None:
    path = context_model(tmp_path, engine=engine, embed=embed)
    with pytest.raises(RunnerError, check=has_code(ErrorCode.UNSAFE_PATH)):
        target.open_runner(path, "cuda", signature_of(X), {"trust_engine": "true"})


@pytest.mark.usefixtures("gpu")
def test_a_model_without_its_engine_is_not_opened(tmp_path: Path) -> None:
    path = context_model(tmp_path)
    (tmp_path / "model_1.engine").unlink()
    with pytest.raises(RunnerError, check=has_code(ErrorCode.NOT_FOUND)):
        target.open_runner(path, "cuda", signature_of(X), {"trust_engine": "true"})


def test_an_engine_in_a_folder_within_is_found(tmp_path: Path) -> None:
    path = context_model(tmp_path, engine="within/model_1.engine")
    assert find_engines(path) == (tmp_path / "within" / "model_1.engine",)
    assert target.inspect(path).facts["engines"] == "1"


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 200_000], ids=["cut", "list", "deep"])
@pytest.mark.usefixtures("gpu")
def test_options_that_cannot_be_read_are_an_error(tmp_path: Path, text: str) -> None:
    path = context_model(tmp_path)
    model = onnx.load(path)
    helper.set_model_props(model, {"modelc.provider_options": text})
    onnx.save_model(model, str(path))
    with pytest.raises(RunnerError, check=has_code(ErrorCode.CORRUPT_FILE)):
        target.open_runner(path, "cuda", signature_of(X), {"trust_engine": "true"})


def test_it_runs_on_cuda_alone(tmp_path: Path) -> None:
    with pytest.raises(MissingError, check=has_code(ErrorCode.UNSUPPORTED)):
        target.open_runner(context_model(tmp_path), "cpu", signature_of(X))
