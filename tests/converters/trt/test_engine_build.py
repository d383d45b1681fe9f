"""A build on the strict double, for TensorRT 10 and 11. No engine is built here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from modelc.converters.trt.engine_build import (
    BuildWatch,
    CancelledBuildError,
    build_engine,
    load_plugin_libraries,
)
from modelc.converters.trt.engine_options import HardwareLevel, ShapeRange
from modelc.converters.trt.engine_records import BuildRequest, BuildResult
from modelc.converters.trt.trt_callbacks import make_error_log
from modelc.core.errors import ConversionError, ErrorCode

from ...reasons import has_code

Stages: TypeAlias = Callable[..., Any]
Requests: TypeAlias = Callable[..., BuildRequest]
Build: TypeAlias = Callable[..., tuple[Any, BuildResult]]


@pytest.fixture
def build(stage_of: Stages, request_of: Requests) -> Build:
    """`build({"steps": 4}, refittable=True)`: a build on that stage, with these options."""

    def run(stage: dict[str, Any] | None = None, **options: Any) -> tuple[Any, BuildResult]:
        staged = stage_of(**(stage or {}))
        return staged, build_engine(staged.trt, request_of(**options), BuildWatch())

    return run


def test_a_build_writes_the_engine_and_returns_version_tensors_and_layers(
    build: Build, tmp_path: Path
) -> None:
    stage, built = build()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "model.engine": b"ftrt-engine"
    }
    assert built.tensorrt == stage.trt.__version__
    assert [(t.name, t.dtype, t.dims) for t in (*built.inputs, *built.outputs)] == [
        ("x", "float32", ("?", "3")),
        ("y", "float16", ("?", "2")),
    ]
    assert built.layers == stage.layers


def test_the_network_is_strongly_typed_and_the_profile_is_the_signatures(build: Build) -> None:
    stage, _ = build()
    number = int(stage.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    assert stage.calls("create_network") == [{"flags": 1 << number}]
    assert stage.flags == ["TF32"]  # no precision
    assert stage.calls("set_shape") == [{"input": "x", "min": (1, 3), "opt": (4, 3), "max": (8, 3)}]
    assert not stage.calls("set_memory_pool_limit")  # TensorRT's own


def test_a_parser_error_names_operator_module_and_source(build: Build, tmp_path: Path) -> None:
    origin = {"module": "head.attention", "class": "Attention", "source": "/net.py:7"}
    sidecar = tmp_path / "model.debug.json"
    sidecar.write_text(json.dumps({"nodes": {"node_7": origin}}))
    errors = [("node_7", "Det", "no such operator"), ("", "", "and more")]
    with pytest.raises(ConversionError, check=has_code(ErrorCode.RUNTIME_FAILED)) as caught:
        build({"errors": errors})
    values = ("head.attention", "Det", "node_7", "/net.py:7", "UNSUPPORTED_NODE", "and more")
    assert [value for value in values if value not in caught.value.message] == []


def test_attention_may_be_decomposed(build: Build) -> None:
    stage, _ = build({"network": ["CONVOLUTION", "ATTENTION_INPUT", "ATTENTION_OUTPUT"]})
    set_to = [stage.calls(kind)[0].decomposable for kind in stage.network]
    assert set_to == [False, True, False]


K = ShapeRange(name="k", low=(2,), opt=(2,), high=(2,))
SHAPE_INPUT: dict[str, Any] = {"inputs": [("k", "INT64", (2,))], "shape_inputs": ("k",)}


def test_a_shape_input_gets_the_range_of_its_values(build: Build) -> None:
    stage, _ = build(SHAPE_INPUT, profiles=((K,),), ranges={"k": (1, 4, 9)})
    asked = {"input": "k", "min": (1, 1), "opt": (4, 4), "max": (9, 9)}
    assert stage.calls("set_shape_input") == [asked]
    assert len(stage.calls("add_optimization_profile")) == 1  # although no dim varies


def test_a_shape_input_without_a_range_is_an_error_that_names_the_form(build: Build) -> None:
    with pytest.raises(ConversionError, check=has_code(ErrorCode.MISSING_DIMS)) as caught:
        build(SHAPE_INPUT, profiles=((K,),))
    assert "k:int64[2]{1..10}" in str(caught.value.hint)


OTHER_INPUT = [("x", "FLOAT", (-1, 3)), ("z", "FLOAT", (-1,))]


@pytest.mark.parametrize(
    ("stage", "options", "code", "value"),
    [
        ({"engine": None, "complaints": ["no kernel"]}, {}, ErrorCode.RUNTIME_FAILED, "no kernel"),
        ({"loads": False}, {}, ErrorCode.RUNTIME_FAILED, "load"),
        ({"failing": ("profile",)}, {}, ErrorCode.RUNTIME_FAILED, "x=1x3:4x3:8x3"),
        ({"inputs": OTHER_INPUT}, {}, ErrorCode.UNKNOWN_INPUT, "'z'"),
        ({}, {"plugins": ("/no/such.so",)}, ErrorCode.NOT_FOUND, "/no/such.so"),
    ],
    ids=["build", "load", "profile", "input", "plugin"],
)
def test_a_failed_build_is_an_error_and_no_engine(
    build: Build,
    tmp_path: Path,
    stage: dict[str, Any],
    options: dict[str, Any],
    code: ErrorCode,
    value: str,
) -> None:
    with pytest.raises(ConversionError, check=has_code(code, naming=value)):
        build(stage, **options)
    assert not list(tmp_path.iterdir())


def test_a_cancelled_build_ends_at_its_next_step(
    stage_of: Stages, request_of: Requests, tmp_path: Path
) -> None:
    done: list[int] = []
    watch = BuildWatch(advance=lambda at, _: done.append(at), stopped=lambda: len(done) >= 2)
    with pytest.raises(CancelledBuildError):
        build_engine(stage_of(steps=100).trt, request_of(), watch)
    assert len(done) == 2
    assert not list(tmp_path.iterdir())


def test_progress_grows_to_the_end_of_the_build(stage_of: Stages, request_of: Requests) -> None:
    progress: list[tuple[int, int]] = []
    build_engine(stage_of().trt, request_of(), BuildWatch(advance=lambda *at: progress.append(at)))
    assert progress == [(250, 1000), (500, 1000), (750, 1000), (1000, 1000)]


def test_each_profile_is_added_unless_all_shapes_are_fixed(build: Build) -> None:
    one = ShapeRange(name="x", low=(1, 3), opt=(1, 3), high=(1, 3))
    stage, _ = build(profiles=((one,), (one,), (one,)))
    assert len(stage.calls("add_optimization_profile")) == 3
    stage, _ = build({"inputs": [("x", "FLOAT", (4, 3))]})
    assert not stage.calls("add_optimization_profile")


def test_options_become_flags_and_limits(build: Build) -> None:
    stage, _ = build(
        refittable=True,
        strip_weights=True,
        weight_streaming=True,
        version_compatible=True,
        tf32=False,
        workspace=1 << 32,
        optimization_level=5,
        hardware_compatible=HardwareLevel.AMPERE_PLUS,
    )
    wanted = ["REFIT", "STRIP_PLAN", "VERSION_COMPATIBLE", "WEIGHT_STREAMING", "no TF32"]
    assert stage.flags == wanted
    limit = {"pool": stage.trt.MemoryPoolType.WORKSPACE, "pool_size": 1 << 32}
    assert stage.calls("set_memory_pool_limit") == [limit]
    config = stage.calls("config")[0]
    assert config["builder_optimization_level"] == 5
    hardware = stage.trt.HardwareCompatibilityLevel
    assert config["hardware_compatibility_level"] is hardware.AMPERE_PLUS
    assert config["profiling_verbosity"] is stage.trt.ProfilingVerbosity.DETAILED


@pytest.mark.parametrize("trusted", [False, True])
def test_host_code_is_allowed_only_with_consent(build: Build, trusted: bool) -> None:
    stage, _ = build(trust_engine=trusted)
    assert stage.calls("host code") == [trusted]


def test_the_inspector_gets_the_opt_shapes(build: Build) -> None:
    stage, _ = build()
    assert stage.calls("set_input_shape") == [{"name": "x", "shape": (4, 3)}]
    json_form = {"format": stage.trt.LayerInformationFormat.JSON}
    assert stage.calls("information") == [json_form, json_form]  # without a context, and with one


def test_a_context_that_rejects_the_shapes_still_has_layers(build: Build) -> None:
    stage, built = build({"failing": ("set_input_shape",)})
    assert built.layers == stage.layers
    assert len(stage.calls("information")) == 1


def test_a_stripped_engine_gets_no_context(build: Build) -> None:
    stage, _ = build(strip_weights=True)
    assert not stage.calls("set_input_shape")


def test_only_named_plugin_libraries_are_loaded(stage_of: Stages) -> None:
    stage = stage_of()
    loaded: list[str] = []
    log = make_error_log(stage.trt)
    load_plugin_libraries(stage.trt, (), log, load=loaded.append)
    assert not loaded
    load_plugin_libraries(stage.trt, ("/a.so", "/b.so"), log, load=loaded.append)
    assert loaded == ["/a.so", "/b.so"]
