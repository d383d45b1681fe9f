"""Builds one engine with TensorRT's Python package; runs in a process of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ...core.contract import Advance, unheard
from ...core.errors import ConversionError
from . import timing_cache
from .configuring import make_config
from .messages import ErrorLog, make_error_log
from .network import network_tensors, parse_network
from .progress import make_progress_monitor
from .records import BuildRequest, BuildResult

if TYPE_CHECKING:
    import tensorrt

_LAYERS = '"Layers"'  # the field of the inspector's JSON that is asked for


class CancelledBuildError(Exception):
    """The build was told to stop, and did."""


@dataclass(frozen=True, kw_only=True)
class BuildWatch:
    """Who is told how far a build is, and who may stop it."""

    advance: Advance = unheard
    stopped: Callable[[], bool] = lambda: False


def build_engine(trt: ModuleType, request: BuildRequest, watch: BuildWatch) -> BuildResult:
    """Parse, configure, build, write the engine, read its layers.

    Args:
        trt: the tensorrt package, 10.13 or later.
        request: what to build.
        watch: progress and cancellation.

    Raises:
        ConversionError: TensorRT refused the model or did not build it.
        CancelledBuildError: `watch` stopped it.
    """
    log = make_error_log(trt)
    options = request.options
    load_plugin_libraries(trt, options.plugins, log)
    builder: tensorrt.Builder = trt.Builder(log)
    network, parser = parse_network(trt, builder, Path(request.onnx), log)
    inputs, outputs = network_tensors(network)
    config = make_config(trt, builder, network, options, request.profiles)
    config.progress_monitor = make_progress_monitor(trt, watch.advance, watch.stopped)
    cache = Path(request.timing_cache) if request.timing_cache else None
    notes = timing_cache.load_timing_cache(config, cache) if cache else ()
    blob: tensorrt.IHostMemory | None = builder.build_serialized_network(network, config)
    if cache:  # of a build that was stopped as well: the next one is so much quicker
        notes = (*notes, *timing_cache.save_timing_cache(config, cache))
    if blob is None:
        raise _build_error(watch, log)
    layers = _inspect_layers(trt, blob, request, log)
    _write_engine(blob, Path(request.engine))
    del parser  # the network's weights are in its memory: it must outlive the build
    return BuildResult(
        tensorrt=str(trt.__version__), layers=layers, inputs=inputs, outputs=outputs, notes=notes
    )


def _build_error(watch: BuildWatch, log: ErrorLog) -> Exception:
    if watch.stopped():
        return CancelledBuildError("the build was stopped")
    return ConversionError(
        f"TensorRT built no engine: {log.reason}", hint="the whole text is in the log"
    )


def load_plugin_libraries(
    trt: ModuleType,
    libraries: tuple[str, ...],
    log: ErrorLog,
    load: Callable[[str], object] = ctypes.CDLL,
) -> None:
    """Load the libraries that were named, and no other: loading one runs its code.

    Args:
        trt: the tensorrt package.
        libraries: paths; they register their plugins as they are loaded.
        log: where TensorRT's own plugins say what they have to say.
        load: opens a library; raises OSError where it cannot.

    Raises:
        ConversionError: a library cannot be loaded.
    """
    for library in libraries:
        try:
            load(library)
        except OSError as error:
            raise ConversionError(
                f"the plugin library {library} cannot be loaded: {error}",
                hint="give the path of a shared library that was built for this TensorRT",
            ) from error
    if libraries and not trt.init_libnvinfer_plugins(log, ""):
        raise ConversionError(
            f"TensorRT could not register its plugins: {log.reason}",
            hint="the whole text is in the log",
        )


def _inspect_layers(
    trt: ModuleType, blob: tensorrt.IHostMemory, request: BuildRequest, log: ErrorLog
) -> str:
    """The layers of the engine as JSON, at the opt sizes: without shapes it knows no types."""
    runtime: tensorrt.Runtime = trt.Runtime(log)
    runtime.engine_host_code_allowed = request.options.trust_engine
    engine: tensorrt.ICudaEngine | None = runtime.deserialize_cuda_engine(blob)
    if engine is None:
        raise ConversionError(
            f"TensorRT cannot load the engine that it built: {log.reason}",
            hint="the whole text is in the log",
        )
    inspector: tensorrt.EngineInspector = engine.create_engine_inspector()
    plain = str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    if request.options.strip_weights:  # without weights there is nothing to make a context with
        return plain
    context: tensorrt.IExecutionContext | None = engine.create_execution_context()
    if context is None or not _set_opt_shapes(engine, context, request):
        return plain
    inspector.execution_context = context
    full = str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    return full if _LAYERS in full else plain


def _set_opt_shapes(
    engine: tensorrt.ICudaEngine, context: tensorrt.IExecutionContext, request: BuildRequest
) -> bool:
    """Give the context the opt shapes of the first profile; whether it took them."""
    known = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
    ranges = request.profiles[0] if request.profiles else ()
    return all(context.set_input_shape(one.name, one.opt) for one in ranges if one.name in known)


def _write_engine(blob: tensorrt.IHostMemory, path: Path) -> None:
    """The engine's bytes, under its name only once they are all there."""
    draft = path.with_name(f".{path.name}.partial")
    with draft.open("wb") as stream:
        stream.write(blob)
    draft.replace(path)
