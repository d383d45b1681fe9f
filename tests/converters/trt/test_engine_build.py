"""A build on the strict double, for TensorRT 10 and 11. No engine is built here."""

from __future__ import annotations

import json
import re
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
from modelc.core.grammar import parse_input

from ...reasons import has_code

Stages: TypeAlias = Callable[..., Any]
Requests: TypeAlias = Callable[..., BuildRequest]
Build: TypeAlias = Callable[..., tuple[Any, BuildResult]]


@pytest.fixture
def build(stage_of: Stages, request_of: Requests) -> Build:
    """`build({"steps": 4}, refittable=True)`: a build on that stage, with these options."""

    def run(stage: dict[str, Any] | None = None, **options: Any) -> tuple[Any, BuildResult]:
        staged = stage_of(**(stage or {}))
        return staged, build_engine(
            staged.trt, request_of(**options), BuildWatch(), load_lean=lambda _: None
        )

    return run


def test_a_build_writes_the_engine_and_returns_version_and_tensors(
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


OTHER_INPUT = [("x", "FLOAT", (-1, 3)), ("z", "FLOAT", (-1,))]


@pytest.mark.parametrize(
    ("stage", "options", "code", "value"),
    [
        ({"engine": None, "complaints": ["no kernel"]}, {}, ErrorCode.RUNTIME_FAILED, "no kernel"),
        ({"failing": ("profile",)}, {}, ErrorCode.RUNTIME_FAILED, "x=1x3:4x3:8x3"),
        ({"inputs": OTHER_INPUT}, {}, ErrorCode.UNKNOWN_INPUT, "'z'"),
        ({}, {"plugins": ("/no/such.so",)}, ErrorCode.NOT_FOUND, "/no/such.so"),
    ],
    ids=["build", "profile", "input", "plugin"],
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


@pytest.mark.parametrize(
    ("complaints", "reason"),
    [
        (["the timing cache is of another version", "no kernel for node conv1"], "conv1"),
        (["Skipping tactic 0x3 due to exception: no memory", "no kernel for conv1"], "conv1"),
        (["Error in the timing cache"], "timing cache"),
    ],
)
def test_the_reason_of_a_failed_build_is_its_cause(
    build: Build, complaints: list[str], reason: str
) -> None:
    with pytest.raises(ConversionError) as caught:
        build({"engine": None, "complaints": complaints})
    assert reason in caught.value.message
    assert ("timing cache" in caught.value.message) is (reason == "timing cache")


def test_only_named_plugin_libraries_are_loaded(stage_of: Stages) -> None:
    stage = stage_of()
    loaded: list[str] = []
    log = make_error_log(stage.trt)
    load_plugin_libraries(stage.trt, (), log, load=loaded.append)
    assert not loaded
    load_plugin_libraries(stage.trt, ("/a.so", "/b.so"), log, load=loaded.append)
    assert loaded == ["/a.so", "/b.so"]


def test_a_plugin_library_in_the_current_folder_is_found(
    stage_of: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = stage_of()
    loaded: list[str] = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.so").touch()
    log = make_error_log(stage.trt)
    load_plugin_libraries(stage.trt, ("a.so", "libelsewhere.so"), log, load=loaded.append)
    assert loaded == [str(tmp_path / "a.so"), "libelsewhere.so"]


def test_attention_may_be_decomposed(stage_of: Stages, request_of: Requests) -> None:
    stage = stage_of()
    kinds, attention = stage.trt.LayerType, stage.double.new("IAttention")
    stage.double.behaviours["IAttentionBoundaryLayer.attention"] = lambda _: attention
    stage.layers_of_network = [
        stage.double.new("ILayer", type=kind) for kind in (kinds.CONSTANT, kinds.ATTENTION_INPUT)
    ]
    build_engine(stage.trt, request_of(), BuildWatch())
    assert attention.decomposable is True


def test_an_input_that_sets_a_size_has_its_values_in_the_profile(
    stage_of: Stages, request_of: Requests
) -> None:
    stage = stage_of(inputs=[("x", "FLOAT", (4, 3)), ("k", "INT64", (2,))], sizes=("k",))
    x = ShapeRange(name="x", low=(4, 3), opt=(4, 3), high=(4, 3))
    k = ShapeRange(name="k", low=(2,), opt=(2,), high=(2,), values=(1, 5, 9))
    build_engine(stage.trt, request_of(profiles=((x, k),)), BuildWatch())
    (given,) = stage.calls("set_shape_input")
    assert given == {"input": "k", "min": [1, 1], "opt": [5, 5], "max": [9, 9]}
    assert [one["input"] for one in stage.calls("set_shape")] == ["x"]


def test_without_a_stated_range_such_an_input_is_an_error(
    stage_of: Stages, request_of: Requests
) -> None:
    stage = stage_of(inputs=[("k", "INT64", ())], sizes=("k",))
    k = ShapeRange(name="k", low=(), opt=(), high=())
    with pytest.raises(
        ConversionError, check=has_code(ErrorCode.MISSING_DIMS, option="input", naming="'k'")
    ) as caught:
        build_engine(stage.trt, request_of(profiles=((k,),)), BuildWatch())
    (typed,) = re.findall(r'--input "(.*)"', caught.value.hint)
    assert parse_input(typed).values is not None


def test_a_size_of_floats_is_an_error(stage_of: Stages, request_of: Requests) -> None:
    stage = stage_of(inputs=[("scales", "FLOAT", (2,))], sizes=("scales",))
    scales = ShapeRange(name="scales", low=(2,), opt=(2,), high=(2,))
    with pytest.raises(
        ConversionError, check=has_code(ErrorCode.UNSUPPORTED, option="input", naming="'scales'")
    ):
        build_engine(stage.trt, request_of(profiles=((scales,),)), BuildWatch())
