"""Loads an engine: plugins that were named, host code only where it was allowed, weights."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from ...core.digest import sha256_of
from ...core.errors import ConversionError, RunnerError
from .build import load_plugin_libraries
from .messages import ErrorLog
from .options import EngineOptions
from .sidecar import EngineSidecar, engine_sidecar_path, read_sidecar

if TYPE_CHECKING:
    import tensorrt


class LoadedEngine(NamedTuple):
    """An engine, with what must outlive it."""

    engine: tensorrt.ICudaEngine
    runtime: tensorrt.Runtime
    log: ErrorLog


def load_engine(trt: ModuleType, path: Path, options: EngineOptions, log: ErrorLog) -> LoadedEngine:
    """Deserialize an engine file.

    Raises:
        RunnerError: TensorRT would not load it, or a stripped engine did not get its weights.
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
            f"TensorRT would not load {path.name}: {log.reason}",
            hint="an engine runs only on the GPU type and TensorRT that it was built with: see "
            f"{engine_sidecar_path(path).name}",
        )
    sidecar = read_sidecar(path) if engine_sidecar_path(path).is_file() else None
    if sidecar is not None and sidecar.stripped:
        _refit_weights(trt, engine, _weights_path(path, sidecar, options), log)
    if engine.streamable_weights_size > 0:  # else the weights stay on the device all the same
        engine.weight_streaming_budget_v2 = engine.get_weight_streaming_automatic_budget()
    return LoadedEngine(engine=engine, runtime=runtime, log=log)


def _weights_path(path: Path, sidecar: EngineSidecar, options: EngineOptions) -> Path:
    """The ONNX that the engine was built from: as it was named, else beside the engine."""
    onnx = Path(options.weights) if options.weights else path.with_name(sidecar.onnx.name)
    if not onnx.is_file():
        raise RunnerError(
            f"{path.name} holds no weights, and {onnx} is not there to take them from",
            hint=f"put {sidecar.onnx.name} beside it",
        )
    if sha256_of(onnx) != sidecar.onnx.sha256:
        raise RunnerError(
            f"{path.name} holds no weights, and {onnx.name} is not what it was built from",
            hint="build the engine again",
        )
    return onnx


def _refit_weights(
    trt: ModuleType, engine: tensorrt.ICudaEngine, onnx: Path, log: ErrorLog
) -> None:
    refitter: tensorrt.Refitter = trt.Refitter(engine, log)
    parser: tensorrt.OnnxParserRefitter = trt.OnnxParserRefitter(refitter, log)
    if not parser.refit_from_file(str(onnx)) or not refitter.refit_cuda_engine():
        raise RunnerError(
            f"TensorRT could not put the weights of {onnx.name} into the engine: {log.reason}",
            hint="build the engine again",
        )
