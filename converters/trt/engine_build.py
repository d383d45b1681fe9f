"""Build an engine with TensorRT's Python package, in the child process that imports it."""

from __future__ import annotations

import ctypes
import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...core.atomic_write import draft_file
from ...core.children.child_call import ParentConnection
from ...core.contract import Advance, TensorInfo, no_progress
from ...core.errors import LOGGED, ConversionError, ErrorCode, Hint, Option
from ...core.events import Advanced
from ..onnx_origins import UNKNOWN_ORIGIN, read_origins
from . import timing_cache
from .engine_options import EngineOptions, HardwareLevel
from .engine_records import BuildRequest, BuildResult
from .shape_inputs import add_profiles
from .trt_callbacks import ErrorLog, make_error_log, make_progress_monitor
from .trt_installation import TrtLibrary, load_tensorrt

if TYPE_CHECKING:
    import tensorrt

_LAYERS = '"Layers"'  # the field of the inspector's JSON that is asked for


class CancelledBuildError(Exception):
    """The build was cancelled."""


@dataclass(frozen=True, kw_only=True)
class BuildWatch:
    """The progress callback and the cancellation of a build."""

    advance: Advance = no_progress
    stopped: Callable[[], bool] = lambda: False


def load_builder(library: TrtLibrary) -> ModuleType:
    """Import the library to build with it; no engine is loaded."""
    return load_tensorrt(library, builds_only=True)


def build_in_child(
    request: BuildRequest,
    parent: ParentConnection,
    load: Callable[[TrtLibrary], ModuleType] = load_builder,
) -> BuildResult:
    """Build the engine of the request.

    The builder is asked to stop by a flag that it polls: no signal may raise within its callbacks.

    Raises:
        ModelcError: the build failed.
        KeyboardInterrupt: the parent cancelled it.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    stopping = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    parent.on_stop(stopping.set)

    def advance(done: int, total: int) -> None:
        parent.send(Advanced(step="build", done=done, total=total))

    watch = BuildWatch(advance=advance, stopped=stopping.is_set)
    try:
        return build_engine(load(request.library), request, watch)
    except CancelledBuildError as error:
        raise KeyboardInterrupt from error


def build_engine(trt: ModuleType, request: BuildRequest, watch: BuildWatch) -> BuildResult:
    """Parse, configure, build, write the engine, read its layers.

    Raises:
        ConversionError: TensorRT rejected the model or failed to build it.
        CancelledBuildError: `watch` cancelled it.
    """
    log = make_error_log(trt)
    load_plugin_libraries(trt, request.options.plugins, log)
    builder: tensorrt.Builder = trt.Builder(log)
    network, parser = parse_network(trt, builder, Path(request.onnx), log)
    inputs = tuple(_tensor_info(network.get_input(i)) for i in range(network.num_inputs))
    outputs = tuple(_tensor_info(network.get_output(i)) for i in range(network.num_outputs))
    config = make_config(trt, builder, network, request)
    config.progress_monitor = make_progress_monitor(trt, watch.advance, watch.stopped)
    cache = Path(request.timing_cache) if request.timing_cache else None
    notes = timing_cache.load_timing_cache(config, cache) if cache else ()
    blob: tensorrt.IHostMemory | None = builder.build_serialized_network(network, config)
    if cache:  # after a cancelled build too: it speeds up the next one
        notes = (*notes, *timing_cache.save_timing_cache(config, cache))
    if blob is None:
        raise _build_error(watch, log)
    # TensorRT-RTX compiles the kernels when an engine is loaded: there is nothing to inspect before
    known = request.library is TrtLibrary.TENSORRT
    layers = _inspect_layers(trt, blob, request, log) if known else ""
    with draft_file(Path(request.engine)) as draft, draft.open("wb") as stream:
        stream.write(blob)
    del parser  # the network's weights are in its memory: it must outlive the build
    return BuildResult(
        tensorrt=str(trt.__version__), layers=layers, inputs=inputs, outputs=outputs, notes=notes
    )


def _build_error(watch: BuildWatch, log: ErrorLog) -> Exception:
    if watch.stopped():
        return CancelledBuildError("the build was stopped")
    return ConversionError(
        f"TensorRT cannot build the engine: {log.reason}",
        hint=LOGGED,
        code=ErrorCode.RUNTIME_FAILED,
    )


def load_plugin_libraries(
    trt: ModuleType,
    libraries: tuple[str, ...],
    log: ErrorLog,
    load: Callable[[str], object] = ctypes.CDLL,
) -> None:
    """Load the named libraries and no others: loading one runs its code.

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
                option="plugins",
                code=ErrorCode.NOT_FOUND,
            ) from error
    if libraries and not trt.init_libnvinfer_plugins(log, ""):
        raise ConversionError(
            f"TensorRT cannot register its plugins: {log.reason}",
            hint=LOGGED,
            code=ErrorCode.RUNTIME_FAILED,
        )


def _inspect_layers(
    trt: ModuleType, blob: tensorrt.IHostMemory, request: BuildRequest, log: ErrorLog
) -> str:
    """Return the layers as JSON, at the opt sizes: without shapes there are no types."""
    runtime: tensorrt.Runtime = trt.Runtime(log)
    runtime.engine_host_code_allowed = request.options.trust_engine
    engine: tensorrt.ICudaEngine | None = runtime.deserialize_cuda_engine(blob)
    if engine is None:
        raise ConversionError(
            f"TensorRT cannot load the engine that it built: {log.reason}",
            hint=LOGGED,
            code=ErrorCode.RUNTIME_FAILED,
        )
    inspector: tensorrt.EngineInspector = engine.create_engine_inspector()
    plain = str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    if request.options.strip_weights:  # a context needs the weights
        return plain
    context: tensorrt.IExecutionContext | None = engine.create_execution_context()
    known = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
    ranges = [one for one in request.profiles[0] if one.name in known]
    if context is None or not all(context.set_input_shape(r.name, r.opt) for r in ranges):
        return plain
    inspector.execution_context = context
    full = str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    return full if _LAYERS in full else plain


def make_config(
    trt: ModuleType,
    builder: tensorrt.Builder,
    network: tensorrt.INetworkDefinition,
    request: BuildRequest,
) -> tensorrt.IBuilderConfig:
    """Make the builder config.

    Raises:
        ConversionError: TensorRT rejected a profile.
    """
    options = request.options
    config: tensorrt.IBuilderConfig = builder.create_builder_config()
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
    config.builder_optimization_level = options.optimization_level
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # else the inspector has no types
    if options.hardware_compatible is not HardwareLevel.NONE:  # TensorRT-RTX warns of any
        config.hardware_compatibility_level = _hardware_level(trt, options.hardware_compatible)
    if options.compute_capabilities:
        _set_capabilities(trt, config, options.compute_capabilities)
    _set_flags(trt, config, options)
    add_profiles(builder, network, config, request.profiles, request.values)
    return config


def _hardware_level(trt: ModuleType, level: HardwareLevel) -> tensorrt.HardwareCompatibilityLevel:
    match level:
        case HardwareLevel.NONE:
            return trt.HardwareCompatibilityLevel.NONE
        case HardwareLevel.AMPERE_PLUS:
            return trt.HardwareCompatibilityLevel.AMPERE_PLUS
        case HardwareLevel.SAME_COMPUTE_CAPABILITY:
            return trt.HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY


def _set_capabilities(rtx: ModuleType, config: Any, capabilities: tuple[str, ...]) -> None:
    """Set the compute capabilities of the GPUs that an engine of TensorRT-RTX runs on.

    Only its builder config has them.
    """
    config.num_compute_capabilities = len(capabilities)
    for index, one in enumerate(capabilities):
        member = getattr(rtx.ComputeCapability, f"SM{one.replace('.', '')}", None)
        if member is None or not config.set_compute_capability(member, index):
            raise ConversionError(
                f"TensorRT-RTX {rtx.__version__} does not build for compute capability {one}",
                hint=Hint("leave it out of ", Option("compute-capabilities")),
                option="compute-capabilities",
                code=ErrorCode.UNSUPPORTED,
            )


def _set_flags(trt: ModuleType, config: tensorrt.IBuilderConfig, options: EngineOptions) -> None:
    if options.refittable:
        config.set_flag(trt.BuilderFlag.REFIT)
    if options.strip_weights:
        config.set_flag(trt.BuilderFlag.STRIP_PLAN)
    if options.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    if options.weight_streaming:
        config.set_flag(trt.BuilderFlag.WEIGHT_STREAMING)
    if options.tf32:
        config.set_flag(trt.BuilderFlag.TF32)
    else:
        config.clear_flag(trt.BuilderFlag.TF32)


_MAX_ERRORS = 5  # errors in a message; all are in the log
TRT_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "BOOL": "bool",
}  # trt.DataType -> the name in torch and numpy


def parse_network(
    trt: ModuleType, builder: tensorrt.Builder, path: Path, log: ErrorLog
) -> tuple[tensorrt.INetworkDefinition, tensorrt.OnnxParser]:
    """Parse an ONNX file; its types set the engine's precision, on TensorRT 10 and 11.

    Returns:
        the network, and the parser, which owns the memory of its weights and must stay alive.

    Raises:
        ConversionError: the parser rejected it; the message names node, operator and module.
    """
    # TensorRT 10 needs the flag; 11 is always strongly typed and ignores it.
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    parser: tensorrt.OnnxParser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(path)):
        raise _parser_error(parser, path, log)
    _let_attention_decompose(trt, network)
    return network, parser


def _let_attention_decompose(trt: ModuleType, network: tensorrt.INetworkDefinition) -> None:
    """Let attention without a kernel of its own be computed in parts; else the build fails.

    TensorRT has such kernels for FP16 and BF16 alone, and still uses them where they fit.
    """
    attention = getattr(trt.LayerType, "ATTENTION_INPUT", None)  # 10.13 has none
    for index in range(network.num_layers if attention is not None else 0):
        layer: tensorrt.IAttentionInputLayer = network.get_layer(index)
        if layer.type == attention:
            layer.__class__ = trt.IAttentionInputLayer  # TensorRT returns its base class
            layer.attention.decomposable = True


def _parser_error(parser: tensorrt.OnnxParser, path: Path, log: ErrorLog) -> ConversionError:
    origins = read_origins(path)
    lines: list[str] = []
    for index in range(parser.num_errors):
        error: tensorrt.ParserError = parser.get_error(index)
        name, operator = error.node_name(), error.node_operator()
        origin = origins.get(name, UNKNOWN_ORIGIN)
        node = " ".join(part for part in (operator, name) if part) or "the model"
        where = f"{origin.module} ({node})" if origin.module else node
        source = f" at {origin.source}" if origin.source else ""
        lines.append(f"{where}{source}: {error.desc()} [{error.code().name}]")
    for line in lines:
        log.errors.append(line)
    shown = "; ".join(lines[:_MAX_ERRORS]) or log.reason
    more = f" (and {len(lines) - _MAX_ERRORS} more)" if len(lines) > _MAX_ERRORS else ""
    return ConversionError(
        f"TensorRT's ONNX parser cannot parse {path.name}: {shown}{more}",
        hint=Hint(
            "change the module that is named, or name a library with the operator by ",
            Option("plugins"),
        ),
        option="plugins",
        code=ErrorCode.RUNTIME_FAILED,
    )


def _tensor_info(tensor: tensorrt.ITensor) -> TensorInfo:
    """Return a tensor as the network declares it; a dynamic dim is `?`."""
    code = tensor.dtype.name
    dims = tuple("?" if size < 0 else str(size) for size in tensor.shape)
    return TensorInfo(name=tensor.name, dtype=TRT_DTYPES.get(code, code.lower()), dims=dims)
