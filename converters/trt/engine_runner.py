"""Runs an engine on torch's CUDA tensors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING

from ...core.arrays import to_array
from ...core.contract import Feed, Outputs
from ...core.errors import RunnerError
from ...core.signature import Signature
from ..opened import RunnerBase, order_inputs
from .network import TRT_DTYPES
from .opening import LoadedEngine
from .profiles import Profile, ShapeRange, profile_text, select_profile
from .tensors import OutputMemory, addressable, make_layer_profiler, make_output_memory

if TYPE_CHECKING:
    import tensorrt
    import torch

_PROFILED_RUNS = 10


class EngineRunner(RunnerBase):
    """An engine with one execution context; each run takes the first profile that fits."""

    def __init__(
        self, trt: ModuleType, loaded: LoadedEngine, signature: Signature, device: torch.device
    ) -> None:
        self._trt = trt
        self._loaded: LoadedEngine | None = loaded
        self._device = device
        engine = loaded.engine
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        taken = [n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT]
        known = [spec.name for spec in signature.inputs if spec.name in taken]
        self.inputs = (*known, *(name for name in taken if name not in known))
        self._outputs = tuple(name for name in names if name not in taken)
        self._profiles = _engine_profiles(engine, self.inputs)
        self._context: tensorrt.IExecutionContext | None = self._new_context(engine)

    def _new_context(self, engine: tensorrt.ICudaEngine) -> tensorrt.IExecutionContext:
        context: tensorrt.IExecutionContext | None = engine.create_execution_context()
        if context is None:
            raise self._engine_error("made no execution context")
        return context

    def _engine_error(self, what: str) -> RunnerError:
        reason = self._loaded.log.reason if self._loaded else "the engine is closed"
        return RunnerError(f"TensorRT {what}: {reason}", hint="the whole text is in the log")

    def run(self, feed: Feed) -> Outputs:
        """Run one feed on a stream of its own and wait for it; outputs are copies."""
        if self._context is None or self._loaded is None:
            raise RuntimeError("the engine is closed")
        return self._run(self._context, self._loaded.engine, feed)

    def _run(
        self, context: tensorrt.IExecutionContext, engine: tensorrt.ICudaEngine, feed: Feed
    ) -> Outputs:
        import torch

        given = order_inputs(feed, self.inputs)
        stream, within = _cuda_stream(self._device)
        handle = stream.cuda_stream if stream is not None else 0
        with within:
            self._take_profile(context, handle, feed)
            held = [torch.tensor(array) for array in given]
            moved = [
                self._feed(context, engine, n, t) for n, t in zip(self.inputs, held, strict=True)
            ]
            unknown = context.infer_shapes()
            if unknown:
                raise self._engine_error(f"cannot tell shapes without {', '.join(unknown)}")
            made = [self._give(context, engine, name) for name in self._outputs]
            if not context.execute_async_v3(handle):
                raise self._engine_error(_allocation_error(made) or "did not run")
            if stream is not None:
                stream.synchronize()
            results = {one.name: to_array(one.tensor()) for one in made}
        del held, moved  # their memory was read until now
        return results

    def _take_profile(self, context: tensorrt.IExecutionContext, handle: int, feed: Feed) -> None:
        shapes = {name: tuple(feed[name].shape) for name in self.inputs}
        index = select_profile(self._profiles, shapes)
        if index is None:
            fed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise RunnerError(
                f"TensorRT: no optimization profile holds {fed}",
                hint=f"the engine's are {'; '.join(map(profile_text, self._profiles))}",
            )
        if context.active_optimization_profile != index and not (
            context.set_optimization_profile_async(index, handle)
        ):
            raise self._engine_error(f"did not take optimization profile {index}")

    def _feed(
        self,
        context: tensorrt.IExecutionContext,
        engine: tensorrt.ICudaEngine,
        name: str,
        tensor: torch.Tensor,
    ) -> torch.Tensor:
        """Move the input to where the engine reads it and say so; keep it until the run is over."""
        code = engine.get_tensor_dtype(name).name
        wanted = TRT_DTYPES.get(code, code.lower())
        found = str(tensor.dtype).removeprefix("torch.")
        if found != wanted:
            raise RunnerError(
                f"TensorRT: input {name!r} is {found}, the engine takes {wanted}",
                hint=f"feed it as {wanted}",
            )
        here = engine.get_tensor_location(name) == self._trt.TensorLocation.HOST
        moved = addressable(tensor if here else tensor.to(self._device))
        if not context.set_input_shape(name, tuple(tensor.shape)):
            raise self._engine_error(f"refused {name} with shape {tuple(tensor.shape)}")
        if not context.set_tensor_address(name, moved.data_ptr()):
            raise self._engine_error(f"refused the memory of {name}")
        return moved

    def _give(
        self, context: tensorrt.IExecutionContext, engine: tensorrt.ICudaEngine, name: str
    ) -> OutputMemory:
        """Memory for an output: of its shape, or as it asks where only the data tells its shape."""
        import torch

        code = engine.get_tensor_dtype(name).name
        dtype: torch.dtype | None = getattr(torch, TRT_DTYPES.get(code, ""), None)
        if dtype is None:
            raise RunnerError(
                f"TensorRT: output {name!r} is {code}, which torch has not", hint="cast it before"
            )
        here = engine.get_tensor_location(name) == self._trt.TensorLocation.HOST
        device = torch.device("cpu") if here else self._device
        shape = tuple(context.get_tensor_shape(name))
        memory = make_output_memory(self._trt, name, dtype, device)
        if min(shape, default=0) < 0:
            if not context.set_output_allocator(name, memory.allocator):
                raise self._engine_error(f"took no allocator for {name}")
        elif not context.set_tensor_address(name, memory.allocate(shape)):
            raise self._engine_error(f"refused the memory of {name}")
        return memory

    def layer_times(self, feed: Feed, runs: int = _PROFILED_RUNS) -> Mapping[str, float]:
        """Milliseconds by layer name, the mean of `runs` runs after one to warm up."""
        if self._loaded is None:
            raise RuntimeError("the engine is closed")
        engine = self._loaded.engine
        times = make_layer_profiler(self._trt)
        context: tensorrt.IExecutionContext = self._new_context(engine)  # of its own: it keeps it
        self._run(context, engine, feed)
        context.profiler = times
        for _ in range(runs):
            self._run(context, engine, feed)
        return {name: total / runs for name, total in times.totals.items()}

    def close(self) -> None:
        """Give back the context before the engine, and the engine before the runtime."""
        self._context = None
        self._loaded = None


def _allocation_error(made: list[OutputMemory]) -> str:
    """What went wrong while an output asked for memory; TensorRT itself swallows it."""
    return next((f"got no memory for {one.name}: {one.error}" for one in made if one.error), "")


def _cuda_stream(
    device: torch.device,
) -> tuple[torch.cuda.Stream | None, AbstractContextManager[object]]:
    import torch

    if device.type != "cuda":
        return None, nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own
    return stream, torch.cuda.stream(stream)


def _engine_profiles(engine: tensorrt.ICudaEngine, inputs: tuple[str, ...]) -> tuple[Profile, ...]:
    return tuple(
        tuple(_shape_range(engine, name, index) for name in inputs)
        for index in range(engine.num_optimization_profiles)
    )


def _shape_range(engine: tensorrt.ICudaEngine, name: str, index: int) -> ShapeRange:
    low, opt, high = engine.get_tensor_profile_shape(name, index)
    return ShapeRange(name=name, low=tuple(low), opt=tuple(opt), high=tuple(high))
