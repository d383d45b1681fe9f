"""The strict double of tensorrt with a small builder behind it, for both supported majors."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from modelc.converters.trt.engine_options import EngineOptions, Profile, ShapeRange
from modelc.converters.trt.engine_records import BuildRequest

TESTS = Path(__file__).parents[2]
X = ShapeRange(name="x", low=(1, 3), opt=(4, 3), high=(8, 3))
LAYERS = json.dumps(
    {
        "Layers": [
            {
                "Name": "conv",
                "LayerType": "CaskConvolution",
                "Inputs": [{"Name": "x", "Format/Datatype": "Half"}],
                "TacticName": "sm90_xmma_fprop_implicit_gemm_f16f16_f16f16_f16",
            }
        ],
        "Bindings": ["x", "y"],
    }
)


def double_module() -> ModuleType:
    """`tests/tensorrt_double.py`; tests are not a package."""
    spec = util.spec_from_file_location("tensorrt_double", TESTS / "tensorrt_double.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


DOUBLE = double_module()


@dataclass
class Stage:
    """What the double's builder is to do, and what it was asked for."""

    inputs: list[tuple[str, str, tuple[int, ...]]] = field(
        default_factory=lambda: [("x", "FLOAT", (-1, 3))]
    )
    errors: list[tuple[str, str, str]] = field(default_factory=list)  # node, operator, description
    engine: bytes | None = b"ftrt-engine"
    complaints: list[str] = field(default_factory=list)  # logged as errors by the build
    steps: int = 4
    pause: float = 0.0  # seconds that a step takes
    loads: bool = True
    layers: str = LAYERS
    failing: tuple[str, ...] = ()  # behaviours that return False
    layers_of_network: list[Any] = field(default_factory=list)
    sizes: tuple[str, ...] = ()  # inputs that set a size
    flags: list[str] = field(default_factory=list)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    double: Any = None

    @property
    def trt(self) -> ModuleType:
        """The module that is handed to the code under test."""
        module: ModuleType = self.double.module
        return module

    def log(self, message: str) -> None:
        logger = self.double.made[0] if not self._loggers() else self._loggers()[-1]
        logger.log(self.trt.ILogger.Severity.ERROR, message)

    def _loggers(self) -> list[Any]:
        return [one for one in self.double.made if isinstance(one, self.trt.ILogger)]

    def note(self, name: str, answer: Any = True) -> Callable[..., Any]:
        """A behaviour that writes down what it was called with."""

        def behave(_: Any, **values: Any) -> Any:
            self.asked.append((name, values))
            return False if name in self.failing else answer

        return behave

    def made(self, name: str, kind: str) -> Callable[..., Any]:
        """A behaviour that makes an object and writes down what it was called with."""

        def behave(_: Any, **values: Any) -> Any:
            self.asked.append((name, values))
            return self.double.new(kind)

        return behave

    def calls(self, name: str) -> list[Any]:
        return [values for called, values in self.asked if called == name]


def _tensor(stage: Stage, name: str, dtype: str, shape: tuple[int, ...]) -> Any:
    kind = getattr(stage.trt.DataType, dtype)
    sets_size = name in stage.sizes
    return stage.double.new(
        "ITensor", name=name, dtype=kind, shape=shape, is_shape_tensor=sets_size
    )


def _network(stage: Stage) -> dict[str, Callable[..., Any]]:
    return {
        "Builder.create_network": stage.made("create_network", "INetworkDefinition"),
        "INetworkDefinition.num_inputs": lambda _: len(stage.inputs),
        "INetworkDefinition.num_outputs": lambda _: 1,
        "INetworkDefinition.num_layers": lambda _: len(stage.layers_of_network),
        "INetworkDefinition.get_layer": lambda _, index: stage.layers_of_network[index],
        "INetworkDefinition.get_input": lambda _, index: _tensor(stage, *stage.inputs[index]),
        "INetworkDefinition.get_output": lambda *_, **__: _tensor(stage, "y", "HALF", (-1, 2)),
        "OnnxParser.parse_from_file": lambda *_, **__: not stage.errors,
        "OnnxParser.num_errors": lambda _: len(stage.errors),
        "OnnxParser.get_error": lambda _, index: stage.double.new(
            "ParserError", errors=stage.errors[index]
        ),
        "ParserError.node_name": lambda error: error.__dict__["_own"]["errors"][0],
        "ParserError.node_operator": lambda error: error.__dict__["_own"]["errors"][1],
        "ParserError.desc": lambda error: error.__dict__["_own"]["errors"][2],
        "ParserError.code": lambda _: stage.trt.ErrorCode.UNSUPPORTED_NODE,
        "init_libnvinfer_plugins": lambda **_: True,
    }


def _config(stage: Stage) -> dict[str, Callable[..., Any]]:
    def cache(_: Any, serialized_timing_cache: bytes) -> Any:
        if serialized_timing_cache.startswith(b"garbage"):
            return None
        return stage.double.new("ITimingCache", data=bytes(serialized_timing_cache))

    def set_cache(config: Any, cache: Any, ignore_mismatch: bool) -> bool:
        fits = not cache.__dict__["_own"]["data"].startswith(b"other")
        if fits or ignore_mismatch:
            config.__dict__["_own"]["cache"] = cache
        return fits or ignore_mismatch

    def combine(cache: Any, input_cache: Any, ignore_mismatch: bool) -> bool:
        own, there = cache.__dict__["_own"], input_cache.__dict__["_own"]["data"]
        if there.startswith(b"other") and not ignore_mismatch:
            return False
        known = {*own["data"].split(), *there.split()}
        own["data"] = b" ".join(sorted(known))
        return True

    return {
        "Builder.create_builder_config": lambda _: stage.double.new("IBuilderConfig"),
        "Builder.create_optimization_profile": lambda _: stage.double.new("IOptimizationProfile"),
        "IOptimizationProfile.set_shape": stage.note("set_shape", None),
        "IOptimizationProfile.set_shape_input": stage.note("set_shape_input", None),
        "IOptimizationProfile.__bool__": lambda _: "profile" not in stage.failing,
        "IBuilderConfig.add_optimization_profile": stage.note("add_optimization_profile", 0),
        "IBuilderConfig.set_memory_pool_limit": stage.note("set_memory_pool_limit", None),
        "IBuilderConfig.set_flag": lambda _, flag: stage.flags.append(flag.name),
        "IBuilderConfig.clear_flag": lambda _, flag: stage.flags.append(f"no {flag.name}"),
        "IBuilderConfig.create_timing_cache": cache,
        "IBuilderConfig.set_timing_cache": set_cache,
        "IBuilderConfig.get_timing_cache": lambda config: config.__dict__["_own"].get("cache"),
        "ITimingCache.combine": combine,
        "ITimingCache.serialize": lambda one: memory(stage, one.__dict__["_own"]["data"]),
    }


def memory(stage: Stage, data: bytes) -> Any:
    """An IHostMemory with these bytes."""
    made = stage.double.new("IHostMemory")
    made.extend(data)
    return made


def _building(stage: Stage) -> dict[str, Callable[..., Any]]:
    def build(_: Any, config: Any, **__: Any) -> Any:
        own = config.__dict__["_own"]
        stage.asked.append(("config", own))
        monitor = own["progress_monitor"]
        monitor.phase_start("Building Engine", None, stage.steps)
        for step in range(stage.steps):
            time.sleep(stage.pause)
            if "cache" in own:
                own["cache"].__dict__["_own"]["data"] += b" kernel%d" % step
            if not monitor.step_complete("Building Engine", step):
                return None
        monitor.phase_finish("Building Engine")
        for complaint in stage.complaints:
            stage.log(complaint)
        return None if stage.engine is None else memory(stage, stage.engine)

    def load(runtime: Any, **_: Any) -> Any:
        stage.asked.append(("host code", runtime.engine_host_code_allowed))
        return stage.double.new("ICudaEngine") if stage.loads else None

    return {
        "Builder.build_serialized_network": build,
        "Runtime.deserialize_cuda_engine": load,
        "ICudaEngine.create_engine_inspector": lambda _: stage.double.new("EngineInspector"),
        "ICudaEngine.create_execution_context": lambda _: stage.double.new("IExecutionContext"),
        "ICudaEngine.num_io_tensors": lambda _: 2,
        "ICudaEngine.get_tensor_name": lambda _, index: ("x", "y")[index],
        "IExecutionContext.set_input_shape": stage.note("set_input_shape"),
        "EngineInspector.get_engine_information": stage.note("information", stage.layers),
    }


def staged(version: str, **values: Any) -> Stage:
    """A stage for one version of TensorRT."""
    stage = Stage(**values)
    behaviours = {**_network(stage), **_config(stage), **_building(stage)}
    stage.double = DOUBLE.Double(DOUBLE.surface_of(version), behaviours)
    return stage


Stages = Callable[..., Stage]
Requests = Callable[..., BuildRequest]


@pytest.fixture(params=DOUBLE.VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each version whose surface is here."""
    return str(request.param)


@pytest.fixture
def stage_of(version: str) -> Stages:
    """`stage_of(engine=None)`: the double with a builder that gives none."""
    return lambda **values: staged(version, **values)


@pytest.fixture
def double_of(version: str) -> Callable[..., Any]:
    """`double_of(behaviours)`: the double with these."""
    surface = DOUBLE.surface_of(version)
    return lambda behaviours: DOUBLE.Double(surface, behaviours)


@pytest.fixture
def request_of(tmp_path: Path) -> Requests:
    """`request_of(workspace=1 << 30)`: a request with these options."""

    def make(
        profiles: tuple[Profile, ...] = ((X,),), cache: str = "", **values: Any
    ) -> BuildRequest:
        return BuildRequest(
            onnx=str(tmp_path / "model.onnx"),
            engine=str(tmp_path / "model.engine"),
            profiles=profiles,
            options=EngineOptions(**values),
            timing_cache=cache,
        )

    return make


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`child(engine=None)`: the function of a build's process, with a double on that stage."""
    return _staged_function(monkeypatch, "build")


@pytest.fixture
def inspector(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`inspector(layers="")`: the function of an inspecting process, with a double."""
    return _staged_function(monkeypatch, "inspect")


def _staged_function(monkeypatch: pytest.MonkeyPatch, name: str) -> Callable[..., Any]:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    function = getattr(importlib.import_module("staged_build"), name)

    def make(before: str = "pass", version: str = "11.4", **values: Any) -> Any:
        return partial(function, conftest=__file__, before=before, version=version, values=values)

    return make
