"""The runner's flow on the strict double, with CPU memory in place of the GPU's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modelc.converters.trt.engine_options import EngineOptions
from modelc.converters.trt.engine_runner import EngineRunner, LoadedEngine, load_engine
from modelc.converters.trt.trt_callbacks import make_error_log
from modelc.core.contract import Feed
from modelc.core.errors import ErrorCode, RunnerError
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs

from ...reasons import has_code

SIGNATURE = merge_inputs([parse_input("x:float32[batch=1..8,3]")], {}).with_outputs(("y",))
FEED = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
RANGES = [((1, 3), (4, 3), (8, 3)), ((16, 3), (16, 3), (32, 3))]


@dataclass
class Device:
    """An engine that doubles its one input, on CPU memory."""

    double: Any = None
    fails: str = ""  # the call that returns an error
    grows: bool = False  # whether the output's shape depends on data
    dtype: str = "FLOAT"
    values: list[list[int]] = field(default_factory=list)  # if its input sets a size
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    allocators: dict[str, Any] = field(default_factory=dict)
    profiles: list[int] = field(default_factory=list)

    def answer(self, name: str) -> bool:
        return name != self.fails

    def execute(self, context: Any, stream_handle: int) -> bool:
        if not self.answer("execute"):
            return False
        size = 4 * self.shapes["x"][0] * self.shapes["x"][1]
        target = self.addresses.get("y", 0)
        if self.grows:
            allocator = self.allocators["y"]
            target = allocator.reallocate_output_async("y", 0, size, 256, stream_handle)
            allocator.notify_shape("y", self.shapes["x"])
            if not target:
                return False
        given = (ctypes.c_float * (size // 4)).from_address(self.addresses["x"])
        made = (ctypes.c_float * (size // 4)).from_address(target)
        made[:] = [2 * value for value in given]
        self._profile(context)
        return True

    def _profile(self, context: Any) -> None:
        profiler = context.__dict__["_own"].get("profiler")
        if profiler is not None:
            profiler.report_layer_time("conv", 0.5)

    def shape(self, name: str) -> tuple[int, ...]:
        return (-1, 3) if name == "y" and self.grows else self.shapes["x"]

    def known(self, name: str, book: dict[str, Any]) -> Callable[..., bool]:
        """A behaviour that keeps a value by tensor name, unless it fails."""

        def keep(_: Any, **given: Any) -> bool:
            tensor, value = given.values()
            if not self.answer(name) or not self.answer(f"{name} {tensor}"):
                return False
            book[tensor] = value
            return True

        return keep

    def made(self, name: str, kind: str) -> Callable[..., Any]:
        """A behaviour that makes an object, unless it fails."""
        return lambda *_, **__: self.double.new(kind) if self.answer(name) else None

    def trt(self, enum: str, member: str) -> Any:
        return getattr(getattr(self.double.module, enum), member)

    def behaviours(self) -> dict[str, Callable[..., Any]]:
        return {**self._of_engine(), **self._of_context()}

    def _of_engine(self) -> dict[str, Callable[..., Any]]:
        engine: dict[str, Callable[..., Any]] = {
            "create_execution_context": self.made("context", "IExecutionContext"),
            "streamable_weights_size": lambda _: 0,
            "num_io_tensors": lambda _: 2,
            "num_optimization_profiles": lambda _: len(RANGES),
            "get_tensor_name": lambda _, index: ("y", "x")[index],
            "get_tensor_mode": lambda _, name: self.trt(
                "TensorIOMode", "INPUT" if name == "x" else "OUTPUT"
            ),
            "get_tensor_dtype": lambda _, name: self.trt(
                "DataType", self.dtype if name == "y" else "FLOAT"
            ),
            "get_tensor_location": lambda *_, **__: self.trt("TensorLocation", "DEVICE"),
            "is_shape_inference_io": lambda *_, **__: bool(self.values),
            "get_tensor_profile_values": lambda *_, **__: self.values,
            "get_tensor_profile_shape": lambda _, profile_index, **__: RANGES[profile_index],
        }
        named = {f"ICudaEngine.{name}": behave for name, behave in engine.items()}
        loads = self.made("deserialize", "ICudaEngine")
        return {**named, "Runtime.deserialize_cuda_engine": loads}

    def _of_context(self) -> dict[str, Callable[..., Any]]:
        context: dict[str, Callable[..., Any]] = {
            "active_optimization_profile": lambda _: [0, *self.profiles][-1],
            "set_optimization_profile_async": self._take,
            "set_input_shape": self.known("shape", self.shapes),
            "set_tensor_address": self.known("address", self.addresses),
            "set_output_allocator": self.known("allocator", self.allocators),
            "infer_shapes": lambda _: [] if self.answer("infer") else ["x"],
            "get_tensor_shape": lambda _, name: self.shape(name),
            "execute_async_v3": self.execute,
        }
        return {f"IExecutionContext.{name}": behave for name, behave in context.items()}

    def _take(self, _: Any, profile_index: int, **__: int) -> bool:
        if not self.answer("profile"):
            return False
        self.profiles.append(profile_index)
        return True


Devices = Callable[..., Device]


@pytest.fixture
def device_of(double_of: Callable[..., Any]) -> Devices:
    """`device_of(fails="execute")`: a device whose runs fail."""

    def make(**values: Any) -> Device:
        device = Device(**values)
        device.double = double_of(device.behaviours())
        return device

    return make


def runner_on(device: Device, eager_dtypes: dict[str, str] | None = None) -> EngineRunner:
    trt = device.double.module
    engine, runtime = device.double.new("ICudaEngine"), device.double.new("Runtime")
    loaded = LoadedEngine(engine=engine, runtime=runtime, log=make_error_log(trt))
    loaded = loaded._replace(eager_dtypes=eager_dtypes or {})
    return EngineRunner(trt, loaded, SIGNATURE, torch.device("cpu"))


def test_a_feed_goes_in_and_outputs_come_out(device_of: Devices) -> None:
    with runner_on(device_of()) as runner:
        assert runner.inputs == ("x",)
        outputs = runner.run(FEED)
    assert list(outputs) == ["y"]
    np.testing.assert_array_equal(outputs["y"], 2 * FEED["x"])


def test_an_output_whose_shape_depends_on_data_is_allocated_during_the_run(
    device_of: Devices,
) -> None:
    with runner_on(device_of(grows=True)) as runner:
        np.testing.assert_array_equal(runner.run(FEED)["y"], 2 * FEED["x"])


@pytest.mark.parametrize("eager", [np.float64, np.float32])
def test_inputs_and_outputs_have_eagers_dtype(device_of: Devices, eager: type[Any]) -> None:
    name = np.dtype(eager).name
    with runner_on(device_of(), {"x": name, "y": name}) as runner:
        outputs = runner.run({"x": FEED["x"].astype(eager)})
    assert outputs["y"].dtype == eager
    np.testing.assert_array_equal(outputs["y"], 2 * FEED["x"])


def test_outputs_are_copies(device_of: Devices) -> None:
    with runner_on(device_of()) as runner:
        first = runner.run(FEED)["y"]
        kept = first.copy()
        runner.run({"x": FEED["x"] + 1})
        np.testing.assert_array_equal(first, kept)


def test_the_first_fitting_profile_is_selected_and_only_set_on_change(device_of: Devices) -> None:
    device = device_of()
    with runner_on(device) as runner:
        for feed in (FEED, LARGE, LARGE, FEED):
            runner.run(feed)
    assert device.profiles == [1, 0]


LARGE = {"x": np.ones((16, 3), np.float32)}  # fits the second profile only


@pytest.mark.parametrize(
    ("changes", "feed", "code", "value"),
    [
        ({}, {"x": np.ones((12, 3), np.float32)}, ErrorCode.INPUT_REJECTED, "x (12, 3)"),
        ({}, {"x": FEED["x"].astype(np.float16)}, ErrorCode.INPUT_REJECTED, "float16"),
        ({"dtype": "FP4"}, FEED, ErrorCode.UNSUPPORTED, "FP4"),
        ({"fails": "shape"}, FEED, ErrorCode.RUNTIME_FAILED, "set_input_shape(x"),
        ({"fails": "address x"}, FEED, ErrorCode.RUNTIME_FAILED, "set_tensor_address(x"),
        ({"fails": "address y"}, FEED, ErrorCode.RUNTIME_FAILED, "set_tensor_address(y"),
        ({"fails": "infer"}, FEED, ErrorCode.RUNTIME_FAILED, "infer_shapes"),
        ({"fails": "execute"}, FEED, ErrorCode.RUNTIME_FAILED, "execute_async_v3"),
        ({"fails": "context"}, FEED, ErrorCode.RUNTIME_FAILED, "create_execution_context"),
        ({"fails": "profile"}, LARGE, ErrorCode.RUNTIME_FAILED, "profile_async(1)"),
        (
            {"fails": "allocator", "grows": True},
            FEED,
            ErrorCode.RUNTIME_FAILED,
            "set_output_allocator(y",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_rejected_feed_or_failed_call_is_an_error(
    device_of: Devices, changes: dict[str, Any], feed: Feed, code: ErrorCode, value: str
) -> None:
    with pytest.raises(RunnerError, check=has_code(code, naming=value)):
        runner_on(device_of(**changes)).run(feed)


@pytest.mark.parametrize(
    ("error", "option"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "input"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), None),
        (AttributeError("'NoneType' object has no attribute 'data_ptr'"), None),
        (TypeError("pybind11::init(): factory function returned nullptr"), None),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("method", ["run", "layer_times"])
def test_whatever_is_raised_on_the_gpu_is_a_runner_error(
    device_of: Devices, error: Exception, option: str | None, method: str
) -> None:
    def breaks(*_: object, **__: object) -> bool:
        raise error

    device = device_of()
    device.double.behaviours["IExecutionContext.execute_async_v3"] = breaks
    code = ErrorCode.RUNTIME_FAILED if option is None else ErrorCode.OUT_OF_MEMORY
    cause = has_code(code, naming=str(error)[:30])
    with runner_on(device) as runner, pytest.raises(RunnerError, check=cause) as caught:
        getattr(runner, method)(FEED)
    assert caught.value.options == (() if option is None else (option,))
    assert caught.value.__cause__ is error


def test_a_context_without_memory_has_the_hint_for_memory(device_of: Devices) -> None:
    device = device_of(fails="execute")
    with runner_on(device) as runner:
        loaded = runner._loaded
        assert loaded is not None
        loaded.log.errors = ["[defaultAllocator.cpp] Out of memory while allocating 8 GiB"]
        with pytest.raises(RunnerError, check=has_code(ErrorCode.OUT_OF_MEMORY)) as caught:
            runner.run(FEED)
    assert caught.value.options == ("input",)


def test_the_hint_for_a_shape_outside_the_profiles_lists_them(device_of: Devices) -> None:
    with runner_on(device_of()) as runner, pytest.raises(RunnerError) as caught:
        runner.run({"x": np.ones((12, 3), np.float32)})
    assert "x=1x3:4x3:8x3; x=16x3:16x3:32x3" in caught.value.hint


def test_layer_times_are_the_mean_of_the_runs(device_of: Devices) -> None:
    with runner_on(device_of()) as runner:
        assert runner.layer_times(FEED, runs=4) == {"conv": 0.5}


def loading(device: Device, path: Path, **values: Any) -> LoadedEngine:
    trt = device.double.module
    return load_engine(trt, path, EngineOptions(**values), make_error_log(trt))


@pytest.mark.parametrize("trusted", [False, True])
def test_host_code_is_allowed_only_with_consent(
    device_of: Devices, tmp_path: Path, trusted: bool
) -> None:
    (tmp_path / "m.engine").write_bytes(b"ftrt")
    loaded = loading(device_of(), tmp_path / "m.engine", trust_engine=trusted)
    assert loaded.runtime.engine_host_code_allowed is trusted


def test_an_engine_that_cannot_be_loaded_is_an_error(device_of: Devices, tmp_path: Path) -> None:
    (tmp_path / "m.engine").write_bytes(b"ftrt")
    failed = has_code(ErrorCode.RUNTIME_FAILED, naming="m.engine")
    with pytest.raises(RunnerError, check=failed) as caught:
        loading(device_of(fails="deserialize"), tmp_path / "m.engine")
    assert "m.engine.json" in caught.value.hint


def test_doubles_are_fed_as_float32(device_of: Devices) -> None:
    with runner_on(device_of()) as runner:
        outputs = runner.run({"x": FEED["x"].astype(np.float64)})
    np.testing.assert_array_equal(outputs["y"], 2 * FEED["x"])


def test_values_outside_the_profiles_are_rejected(device_of: Devices) -> None:
    with runner_on(device_of(values=[[1, 1], [3, 3], [6, 6]])) as runner:
        runner.run({"x": np.full((2, 3), 6, np.float32)})
        with pytest.raises(RunnerError, check=has_code(ErrorCode.INPUT_REJECTED)) as caught:
            runner.run({"x": np.full((1, 3), 7, np.float32)})
    assert "x (7, 7, 7)" in caught.value.message
    assert "x {1..6}" in caught.value.hint
