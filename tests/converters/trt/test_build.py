"""A build on the strict double, for TensorRT 10 and 11. No engine is built here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modelc.converters.trt.engine_build import (
    BuildWatch,
    CancelledBuildError,
    build_engine,
    load_plugin_libraries,
)
from modelc.converters.trt.engine_options import HardwareLevel, ShapeRange
from modelc.converters.trt.trt_callbacks import make_error_log
from modelc.core.errors import ConversionError, ErrorCode

from ...reasons import has_code

Stages = Callable[..., Any]
Requests = Callable[..., Any]
FAILED = has_code(ErrorCode.RUNTIME_FAILED)


def test_an_engine_is_written_with_its_version_tensors_and_layers(
    stage_of: Stages, request_of: Requests
) -> None:
    stage, request = stage_of(), request_of()
    built = build_engine(stage.trt, request, BuildWatch())
    assert Path(request.engine).read_bytes() == b"ftrt-engine"
    assert built.tensorrt == stage.trt.__version__
    assert [(t.name, t.dtype, t.dims) for t in (*built.inputs, *built.outputs)] == [
        ("x", "float32", ("?", "3")),
        ("y", "float16", ("?", "2")),
    ]
    assert built.layers == stage.layers
    assert not list(Path(request.engine).parent.glob(".*"))


def test_the_network_is_strongly_typed(stage_of: Stages, request_of: Requests) -> None:
    stage = stage_of()
    build_engine(stage.trt, request_of(), BuildWatch())
    number = int(stage.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    assert stage.calls("create_network") == [{"flags": 1 << number}]
    assert stage.flags == ["TF32"]  # no precision


def test_a_parser_error_names_operator_module_and_source(
    stage_of: Stages, request_of: Requests
) -> None:
    request = request_of()
    origin = {"module": "head.attention", "class": "Attention", "source": "/net.py:7"}
    sidecar = Path(request.onnx).with_suffix(".debug.json")
    sidecar.write_text(json.dumps({"nodes": {"node_7": origin}}))
    stage = stage_of(errors=[("node_7", "Det", "no such operator"), ("", "", "and more")])
    with pytest.raises(ConversionError, check=FAILED) as caught:
        build_engine(stage.trt, request, BuildWatch())
    message = caught.value.message
    values = ("head.attention", "Det", "node_7", "/net.py:7", "UNSUPPORTED_NODE", "and more")
    assert [value for value in values if value not in message] == []


def test_a_failed_build_is_an_error_with_the_logged_errors(
    stage_of: Stages, request_of: Requests
) -> None:
    complaint = "Could not find any implementation"
    stage = stage_of(engine=None, complaints=[complaint])
    request = request_of()
    failed = has_code(ErrorCode.RUNTIME_FAILED, naming=complaint)
    with pytest.raises(ConversionError, check=failed):
        build_engine(stage.trt, request, BuildWatch())
    assert not Path(request.engine).exists()


def test_a_cancelled_build_ends_at_its_next_step(stage_of: Stages, request_of: Requests) -> None:
    done: list[int] = []
    watch = BuildWatch(advance=lambda at, _: done.append(at), stopped=lambda: len(done) >= 2)
    stage, request = stage_of(steps=100), request_of()
    with pytest.raises(CancelledBuildError):
        build_engine(stage.trt, request, watch)
    assert len(done) == 2
    assert not Path(request.engine).exists()


def test_progress_grows_to_the_end_of_the_build(stage_of: Stages, request_of: Requests) -> None:
    progress: list[tuple[int, int]] = []
    build_engine(stage_of().trt, request_of(), BuildWatch(advance=lambda *at: progress.append(at)))
    assert progress == [(250, 1000), (500, 1000), (750, 1000), (1000, 1000)]


def test_the_profile_has_the_signatures_shapes(stage_of: Stages, request_of: Requests) -> None:
    stage = stage_of()
    build_engine(stage.trt, request_of(), BuildWatch())
    assert stage.calls("set_shape") == [{"input": "x", "min": (1, 3), "opt": (4, 3), "max": (8, 3)}]


def test_each_profile_is_added(stage_of: Stages, request_of: Requests) -> None:
    stage = stage_of()
    one = ShapeRange(name="x", low=(1, 3), opt=(1, 3), high=(1, 3))
    build_engine(stage.trt, request_of(profiles=((one,), (one,), (one,))), BuildWatch())
    assert len(stage.calls("add_optimization_profile")) == 3


def test_a_model_of_fixed_shapes_gets_no_profile(stage_of: Stages, request_of: Requests) -> None:
    stage = stage_of(inputs=[("x", "FLOAT", (4, 3))])
    build_engine(stage.trt, request_of(), BuildWatch())
    assert not stage.calls("add_optimization_profile")


def test_a_profile_that_tensorrt_rejects_is_an_error(
    stage_of: Stages, request_of: Requests
) -> None:
    failed = has_code(ErrorCode.RUNTIME_FAILED, option="profile", naming="x=1x3:4x3:8x3")
    with pytest.raises(ConversionError, check=failed):
        build_engine(stage_of(refused=("profile",)).trt, request_of(), BuildWatch())


def test_an_input_that_the_signature_lacks_is_an_error(
    stage_of: Stages, request_of: Requests
) -> None:
    stage = stage_of(inputs=[("x", "FLOAT", (-1, 3)), ("z", "FLOAT", (-1,))])
    with pytest.raises(ConversionError, check=has_code(ErrorCode.UNKNOWN_INPUT, naming="'z'")):
        build_engine(stage.trt, request_of(), BuildWatch())


def test_options_become_flags_and_limits(stage_of: Stages, request_of: Requests) -> None:
    stage = stage_of()
    options = {
        "refittable": True,
        "strip_weights": True,
        "weight_streaming": True,
        "version_compatible": True,
        "tf32": False,
        "workspace": 1 << 32,
        "optimization_level": 5,
        "hardware_compatible": HardwareLevel.AMPERE_PLUS,
    }
    build_engine(stage.trt, request_of(**options), BuildWatch())
    wanted = ["REFIT", "STRIP_PLAN", "VERSION_COMPATIBLE", "WEIGHT_STREAMING", "no TF32"]
    assert stage.flags == wanted
    limit = {"pool": stage.trt.MemoryPoolType.WORKSPACE, "pool_size": 1 << 32}
    assert stage.calls("set_memory_pool_limit") == [limit]
    config = stage.calls("config")[0]
    assert config["builder_optimization_level"] == 5
    assert (
        config["hardware_compatibility_level"] is stage.trt.HardwareCompatibilityLevel.AMPERE_PLUS
    )
    assert config["profiling_verbosity"] is stage.trt.ProfilingVerbosity.DETAILED


@pytest.mark.parametrize("trusted", [False, True])
def test_host_code_is_allowed_only_with_consent(
    stage_of: Stages, request_of: Requests, trusted: bool
) -> None:
    stage = stage_of()
    build_engine(stage.trt, request_of(trust_engine=trusted), BuildWatch())
    assert stage.calls("host code") == [trusted]
    assert not stage.calls("set_memory_pool_limit")  # TensorRT's own limit


def test_the_inspector_gets_the_opt_shapes(stage_of: Stages, request_of: Requests) -> None:
    stage = stage_of()
    build_engine(stage.trt, request_of(), BuildWatch())
    assert stage.calls("set_input_shape") == [{"name": "x", "shape": (4, 3)}]
    json_form = {"format": stage.trt.LayerInformationFormat.JSON}
    assert stage.calls("information") == [json_form, json_form]  # without a context, and with one


def test_a_context_that_rejects_the_shapes_still_has_layers(
    stage_of: Stages, request_of: Requests
) -> None:
    stage = stage_of(refused=("set_input_shape",))
    assert build_engine(stage.trt, request_of(), BuildWatch()).layers == stage.layers
    assert len(stage.calls("information")) == 1


def test_a_stripped_engine_gets_no_context(stage_of: Stages, request_of: Requests) -> None:
    stage = stage_of()
    build_engine(stage.trt, request_of(strip_weights=True), BuildWatch())
    assert not stage.calls("set_input_shape")


def test_an_engine_that_cannot_be_loaded_is_an_error_and_no_file(
    stage_of: Stages, request_of: Requests
) -> None:
    request = request_of()
    with pytest.raises(ConversionError, check=FAILED):
        build_engine(stage_of(loads=False).trt, request, BuildWatch())
    assert not Path(request.engine).exists()


def test_only_named_plugin_libraries_are_loaded(stage_of: Stages) -> None:
    stage = stage_of()
    loaded: list[str] = []
    log = make_error_log(stage.trt)
    load_plugin_libraries(stage.trt, (), log, load=loaded.append)
    assert not loaded
    load_plugin_libraries(stage.trt, ("/a.so", "/b.so"), log, load=loaded.append)
    assert loaded == ["/a.so", "/b.so"]


def test_a_plugin_library_that_cannot_be_loaded_is_named(
    stage_of: Stages, request_of: Requests
) -> None:
    with pytest.raises(ConversionError, check=has_code(ErrorCode.NOT_FOUND, naming="/no/such.so")):
        build_engine(stage_of().trt, request_of(plugins=("/no/such.so",)), BuildWatch())
