"""Load an engine and run it on torch's CUDA tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

from ...core.contract import Feed, Outputs
from ...core.errors import (
    LOGGED,
    ConversionError,
    ErrorCode,
    Hint,
    ModelcError,
    Option,
    RunnerError,
    first_line,
    text_of,
)
from ...core.records import sha256_of
from ...core.signature import Signature
from ...core.torch_tools import to_array
from ..runner_base import RunnerBase, order_inputs
from .engine_build import TRT_DTYPES, load_plugin_libraries
from .engine_options import EngineOptions, Profile, ShapeRange, profile_text
from .engine_profiles import select_profile
from .engine_records import EngineSidecar, engine_sidecar_path, read_sidecar
from .trt_callbacks import (
    ErrorLog,
    OutputMemory,
    addressable,
    make_layer_profiler,
    make_output_memory,
)

if TYPE_CHECKING:
    import tensorrt
    import torch

_PROFILED_RUNS = 10
_NO_MEMORY = "out of memory"  # in torch's and in TensorRT's words


@contextmanager
def gpu_errors() -> Iterator[None]:
    """Raise a RunnerError for what torch, CUDA or the bindings raise.

    Raises:
        RunnerError: anything but an error of modelc was raised.
    """
    try:
        yield
    except ModelcError:
        raise
    except Exception as error:
        raise RunnerError(
            f"TensorRT: {type(error).__name__}: {first_line(error)}",
            hint=_hint_for(text_of(error)),
            code=_code_of(text_of(error)),
        ) from error


def _code_of(reason: str) -> ErrorCode:
    is_memory = _NO_MEMORY in reason.lower()
    return ErrorCode.OUT_OF_MEMORY if is_memory else ErrorCode.RUNTIME_FAILED


def _hint_for(reason: str) -> Hint | str:
    """Return what helps against a failure of the GPU."""
    if _NO_MEMORY not in reason.lower():
        return LOGGED
    return Hint(
        "free memory of the GPU (nvidia-smi lists what uses it), or give smaller sizes with ",
        Option("input"),
    )


class EngineRunner(RunnerBase):
    """An engine with one execution context; each run uses the first profile that fits."""

    def __init__(
        self, trt: ModuleType, loaded: LoadedEngine, signature: Signature, device: torch.device
    ) -> None:
        self._trt = trt
        self._loaded: LoadedEngine | None = loaded
        self._eager_dtypes = loaded.eager_dtypes
        self._device = device
        engine = loaded.engine
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        inputs = [n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT]
        known = [spec.name for spec in signature.inputs if spec.name in inputs]
        self.inputs = (*known, *(name for name in inputs if name not in known))
        self._outputs = tuple(name for name in names if name not in inputs)
        self._profiles: tuple[Profile, ...] = tuple(
            tuple(_shape_range(engine, name, index) for name in self.inputs)
            for index in range(engine.num_optimization_profiles)
        )
        self._context: tensorrt.IExecutionContext | None = self._new_context(engine)

    def _new_context(self, engine: tensorrt.ICudaEngine) -> tensorrt.IExecutionContext:
        context: tensorrt.IExecutionContext | None = engine.create_execution_context()
        if context is None:
            raise self._api_error("create_execution_context")
        return context

    def _api_error(self, call: str, value: str = "", reason: str = "") -> RunnerError:
        reason = reason or (self._loaded.log.reason if self._loaded else "the engine is closed")
        return RunnerError(
            f"TensorRT: {call}({value}) failed: {reason}",
            hint=_hint_for(reason),
            code=_code_of(reason),
        )

    def run(self, feed: Feed) -> Outputs:
        """Run one feed on its own stream and wait for it; outputs are copies."""
        if self._context is None or self._loaded is None:
            raise RuntimeError("the engine is closed")
        with gpu_errors():
            return self._run(self._context, self._loaded.engine, feed)

    def _run(
        self, context: tensorrt.IExecutionContext, engine: tensorrt.ICudaEngine, feed: Feed
    ) -> Outputs:
        import torch

        given = order_inputs(feed, self.inputs)
        stream, within = _cuda_stream(self._device)
        handle = stream.cuda_stream if stream is not None else 0
        with within:
            self._select_profile(context, handle, feed)
            tensors = [torch.tensor(array) for array in given]
            moved = [
                self._bind_input(context, engine, n, t)
                for n, t in zip(self.inputs, tensors, strict=True)
            ]
            unknown = context.infer_shapes()
            if unknown:
                reason = f"it requires {', '.join(unknown)}"
                raise self._api_error("infer_shapes", reason=reason)
            outputs = [self._bind_output(context, engine, name) for name in self._outputs]
            if not context.execute_async_v3(handle):
                # TensorRT swallows the exception of an allocator
                reason = next((f"{one.name}: {one.error}" for one in outputs if one.error), "")
                raise self._api_error("execute_async_v3", reason=reason)
            if stream is not None:
                stream.synchronize()
            results = {one.name: to_array(self._as_eager(one)) for one in outputs}
        del tensors, moved  # the run read their memory
        return results

    def _as_eager(self, output: OutputMemory) -> torch.Tensor:
        """Return an output in the dtype of eager's."""
        import torch

        dtype = self._eager_dtypes.get(output.name)
        return output.tensor() if dtype is None else output.tensor().to(getattr(torch, dtype))

    def _select_profile(self, context: tensorrt.IExecutionContext, handle: int, feed: Feed) -> None:
        shapes = {name: tuple(feed[name].shape) for name in self.inputs}
        sized = {one.name for profile in self._profiles for one in profile if one.values}
        values = {name: tuple(map(int, feed[name].flat)) for name in self.inputs if name in sized}
        index = select_profile(self._profiles, shapes, values)
        if index is None:
            fed = ", ".join(f"{name} {values.get(name, shape)}" for name, shape in shapes.items())
            ranges = [
                f"{one.name} {{{one.values[0]}..{one.values[2]}}}"
                for profile in self._profiles
                for one in profile
                if one.values
            ]
            known = "; ".join([*map(profile_text, self._profiles), *ranges])
            raise RunnerError(
                f"TensorRT: no optimization profile holds {fed}",
                hint=f"the engine's are {known}",
                code=ErrorCode.INPUT_REJECTED,
            )
        if context.active_optimization_profile != index and not (
            context.set_optimization_profile_async(index, handle)
        ):
            raise self._api_error("set_optimization_profile_async", str(index))

    def _bind_input(
        self,
        context: tensorrt.IExecutionContext,
        engine: tensorrt.ICudaEngine,
        name: str,
        tensor: torch.Tensor,
    ) -> torch.Tensor:
        """Set the input's shape and address; the caller keeps the tensor alive during the run."""
        import torch

        code = engine.get_tensor_dtype(name).name
        wanted = TRT_DTYPES.get(code, code.lower())
        found = str(tensor.dtype).removeprefix("torch.")
        if (found, wanted) == ("float64", "float32") or self._eager_dtypes.get(name) == found:
            tensor, found = tensor.to(getattr(torch, wanted)), wanted
        if found != wanted:
            raise RunnerError(
                f"TensorRT: input {name!r} is {found}, the engine takes {wanted}",
                hint=f"feed it as {wanted}",
                code=ErrorCode.INPUT_REJECTED,
            )
        here = engine.get_tensor_location(name) == self._trt.TensorLocation.HOST
        moved = addressable(tensor if here else tensor.to(self._device))
        if not context.set_input_shape(name, tuple(tensor.shape)):
            raise self._api_error("set_input_shape", f"{name}, {tuple(tensor.shape)}")
        if not context.set_tensor_address(name, moved.data_ptr()):
            raise self._api_error("set_tensor_address", name)
        return moved

    def _bind_output(
        self, context: tensorrt.IExecutionContext, engine: tensorrt.ICudaEngine, name: str
    ) -> OutputMemory:
        """Set the memory of an output, or its allocator if its shape depends on data."""
        import torch

        code = engine.get_tensor_dtype(name).name
        dtype: torch.dtype | None = getattr(torch, TRT_DTYPES.get(code, ""), None)
        if dtype is None:
            raise RunnerError(
                f"TensorRT: output {name!r} is {code}, which torch does not have",
                hint="cast it in the model",
                code=ErrorCode.UNSUPPORTED,
            )
        here = engine.get_tensor_location(name) == self._trt.TensorLocation.HOST
        device = torch.device("cpu") if here else self._device
        shape = tuple(context.get_tensor_shape(name))
        memory = make_output_memory(self._trt, name, dtype, device)
        if min(shape, default=0) < 0:
            if not context.set_output_allocator(name, memory.allocator):
                raise self._api_error("set_output_allocator", name)
        elif not context.set_tensor_address(name, memory.allocate(shape)):
            raise self._api_error("set_tensor_address", name)
        return memory

    def layer_times(self, feed: Feed, runs: int = _PROFILED_RUNS) -> Mapping[str, float]:
        """Return milliseconds by layer name: the mean of `runs` runs after a warm-up run."""
        if self._loaded is None:
            raise RuntimeError("the engine is closed")
        engine = self._loaded.engine
        with gpu_errors():
            times = make_layer_profiler(self._trt)
            context = self._new_context(engine)  # a profiler stays in its context
            self._run(context, engine, feed)
            context.profiler = times
            for _ in range(runs):
                self._run(context, engine, feed)
        return {name: total / runs for name, total in times.totals.items()}

    def close(self) -> None:
        """Free the context before the engine, and the engine before the runtime."""
        self._context = None
        self._loaded = None


def _cuda_stream(
    device: torch.device,
) -> tuple[torch.cuda.Stream | None, AbstractContextManager[object]]:
    import torch

    if device.type != "cuda":
        return None, nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own
    return stream, torch.cuda.stream(stream)


def _shape_range(engine: tensorrt.ICudaEngine, name: str, index: int) -> ShapeRange:
    low, opt, high = engine.get_tensor_profile_shape(name, index)
    values: tuple[int, int, int] | None = None
    if engine.is_shape_inference_io(name):  # by position: the bindings exchange the two names
        least, best, most = engine.get_tensor_profile_values(index, name)
        values = min(least), min(best), max(most)  # modelc's own are the same in each element
    return ShapeRange(name=name, low=tuple(low), opt=tuple(opt), high=tuple(high), values=values)


class LoadedEngine(NamedTuple):
    """An engine, with the objects that must outlive it."""

    engine: tensorrt.ICudaEngine
    runtime: tensorrt.Runtime
    log: ErrorLog
    eager_dtypes: Mapping[str, str] = MappingProxyType({})


def load_engine(trt: ModuleType, path: Path, options: EngineOptions, log: ErrorLog) -> LoadedEngine:
    """Deserialize an engine file.

    Raises:
        RunnerError: TensorRT cannot load it, or the weights of a stripped engine are missing.
    """
    try:
        load_plugin_libraries(trt, options.plugins, log)
    except ConversionError as error:
        raise RunnerError(error.message, hint=error.hint) from error
    runtime: tensorrt.Runtime = trt.Runtime(log)
    runtime.engine_host_code_allowed = options.trust_engine
    engine: tensorrt.ICudaEngine | None = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise RunnerError(
            f"TensorRT cannot load {path.name}: {log.reason}",
            hint="an engine runs only on the GPU type and TensorRT that it was built with: see "
            f"{engine_sidecar_path(path).name}",
            code=ErrorCode.RUNTIME_FAILED,
        )
    sidecar = read_sidecar(path) if engine_sidecar_path(path).is_file() else None
    if sidecar is not None and sidecar.stripped:
        _refit_weights(trt, engine, _weights_path(path, sidecar, options), log)
    if engine.streamable_weights_size > 0:  # without streaming, weights stay on the device
        engine.weight_streaming_budget_v2 = engine.get_weight_streaming_automatic_budget()
    dtypes = {} if sidecar is None else sidecar.eager_dtypes
    return LoadedEngine(engine=engine, runtime=runtime, log=log, eager_dtypes=dtypes)


def _weights_path(path: Path, sidecar: EngineSidecar, options: EngineOptions) -> Path:
    """Return the ONNX that the engine was built from: the named file, else the one beside it."""
    onnx = Path(options.weights) if options.weights else path.with_name(sidecar.onnx.name)
    files = ((onnx, sidecar.onnx), *((onnx.parent / one.name, one) for one in sidecar.external))
    for file, record in files:
        if not file.is_file():
            raise RunnerError(
                f"{path.name} is stripped of its weights, and {file}, which has them, is missing",
                hint=f"put {record.name} beside it",
                code=ErrorCode.NOT_FOUND,
            )
        if sha256_of(file) != record.sha256:
            raise RunnerError(
                f"{path.name} is stripped of its weights, and was not built from {file.name}",
                hint="build the engine again",
                code=ErrorCode.FILE_CHANGED,
            )
    return onnx


def _refit_weights(
    trt: ModuleType, engine: tensorrt.ICudaEngine, onnx: Path, log: ErrorLog
) -> None:
    refitter: tensorrt.Refitter = trt.Refitter(engine, log)
    parser: tensorrt.OnnxParserRefitter = trt.OnnxParserRefitter(refitter, log)
    if not parser.refit_from_file(str(onnx)) or not refitter.refit_cuda_engine():
        raise RunnerError(
            f"TensorRT cannot refit the engine with the weights of {onnx.name}: {log.reason}",
            hint="build the engine again",
            code=ErrorCode.RUNTIME_FAILED,
        )
