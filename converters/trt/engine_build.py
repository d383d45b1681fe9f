"""Build an engine with TensorRT's Python package, in the child process that imports it."""

from __future__ import annotations

import ctypes
import logging
import math
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
from .engine_options import EngineOptions, HardwareLevel, Profile, ShapeRange, profile_text
from .engine_profiles import range_error
from .engine_records import BuildRequest, BuildResult
from .lean_runtime import load_lean_runtime
from .trt_callbacks import ErrorLog, make_error_log, make_progress_monitor
from .trt_installation import TrtLibrary, load_tensorrt

if TYPE_CHECKING:
    import tensorrt


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


def build_engine(
    trt: ModuleType,
    request: BuildRequest,
    watch: BuildWatch,
    load_lean: Callable[[str], None] = load_lean_runtime,
) -> BuildResult:
    """Parse, configure, build, write the engine.

    Raises:
        MissingError: the lean runtime of a version-compatible engine is not installed.
        ConversionError: TensorRT rejected the model or failed to build it.
        CancelledBuildError: `watch` cancelled it.
    """
    log = make_error_log(trt)
    options = request.options
    load_plugin_libraries(trt, options.plugins, log)
    if options.version_compatible and request.library is TrtLibrary.TENSORRT:
        load_lean(str(trt.__version__))
    builder: tensorrt.Builder = trt.Builder(log)
    network, parser = parse_network(trt, builder, Path(request.onnx), log)
    inputs = tuple(_tensor_info(network.get_input(i)) for i in range(network.num_inputs))
    outputs = tuple(_tensor_info(network.get_output(i)) for i in range(network.num_outputs))
    config = make_config(trt, builder, network, options, request.profiles)
    config.progress_monitor = make_progress_monitor(trt, watch.advance, watch.stopped)
    cache = Path(request.timing_cache) if request.timing_cache else None
    notes = timing_cache.load_timing_cache(config, cache) if cache else ()
    log.errors = []  # a timing cache that does not fit is a note
    blob: tensorrt.IHostMemory | None = builder.build_serialized_network(network, config)
    reason = log.reason
    if cache:  # after a cancelled build too: it speeds up the next one
        notes = (*notes, *timing_cache.save_timing_cache(config, cache))
    if blob is None:
        raise _build_error(watch, reason)
    with draft_file(Path(request.engine)) as draft, draft.open("wb") as stream:
        stream.write(blob)
    del parser  # the network's weights are in its memory: it must outlive the build
    return BuildResult(
        tensorrt=str(trt.__version__),
        # TensorRT's are asked of its inspector, which also knows the kernels
        layers=log.layers if request.library is TrtLibrary.RTX else "",
        inputs=inputs,
        outputs=outputs,
        notes=notes,
    )


def _build_error(watch: BuildWatch, reason: str) -> Exception:
    if watch.stopped():
        return CancelledBuildError("the build was stopped")
    return ConversionError(
        f"TensorRT cannot build the engine: {reason}",
        hint=LOGGED,
        code=ErrorCode.RUNTIME_FAILED,
    )


def plugin_path(library: str) -> str:
    """Return the whole path of a file; the loader looks for a plain name in its folders only."""
    path = Path(library)
    return str(path.absolute()) if path.is_file() else library


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
            load(plugin_path(library))
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


def make_config(
    trt: ModuleType,
    builder: tensorrt.Builder,
    network: tensorrt.INetworkDefinition,
    options: EngineOptions,
    profiles: tuple[Profile, ...],
) -> tensorrt.IBuilderConfig:
    """Make the builder config.

    Raises:
        ConversionError: TensorRT rejected a profile.
    """
    config: tensorrt.IBuilderConfig = builder.create_builder_config()
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
    config.builder_optimization_level = options.optimization_level
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # else the inspector has no types
    if options.hardware_compatible is not HardwareLevel.NONE:  # TensorRT-RTX warns of any
        level = _hardware_level(trt, options.hardware_compatible)
        config.hardware_compatibility_level = level
    if options.compute_capabilities:
        _set_capabilities(trt, config, options.compute_capabilities)
    _set_flags(trt, config, options)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    if any(tensor.is_shape_tensor or min(tensor.shape, default=0) < 0 for tensor in inputs):
        for profile in profiles:
            _add_profile(builder, network, config, profile)
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


def _add_profile(
    builder: tensorrt.Builder,
    network: tensorrt.INetworkDefinition,
    config: tensorrt.IBuilderConfig,
    profile: Profile,
) -> None:
    added: tensorrt.IOptimizationProfile = builder.create_optimization_profile()
    ranges = {one.name: one for one in profile}
    rejected = ConversionError(
        f"TensorRT does not accept the profile {profile_text(profile)}",
        hint=Hint("see ", Option("profile"), " and ", Option("input")),
        option="profile",
        code=ErrorCode.RUNTIME_FAILED,
    )
    for index in range(network.num_inputs):
        tensor: tensorrt.ITensor = network.get_input(index)
        one = ranges.get(tensor.name)
        if one is None:
            raise ConversionError(
                f"the ONNX has an input {tensor.name!r} that is not in the signature",
                hint=f"the profile is {profile_text(profile)}",
                code=ErrorCode.UNKNOWN_INPUT,
            )
        try:
            if tensor.is_shape_tensor:
                low, opt, high = _size_values(tensor, one)
                added.set_shape_input(tensor.name, min=low, opt=opt, max=high)
            else:
                added.set_shape(tensor.name, min=one.low, opt=one.opt, max=one.high)
        except RuntimeError as error:
            raise rejected from error
    if not added or config.add_optimization_profile(added) < 0:
        raise rejected


def _size_values(tensor: tensorrt.ITensor, one: ShapeRange) -> tuple[list[int], ...]:
    """Return the least, a middle and the greatest values of an input that sets a size.

    Raises:
        ConversionError: its range is not stated, or it is no integer.
    """
    dtype = _tensor_info(tensor).dtype
    if dtype not in ("int32", "int64"):
        raise ConversionError(
            f"input {tensor.name!r} sets a size in {dtype}, and TensorRT takes int32 or int64",
            hint=f"compute the size from an int64 input in the model, in place of {tensor.name}",
            option="input",
            code=ErrorCode.UNSUPPORTED,
        )
    if one.values is None:
        raise range_error(tensor.name, dtype, tensor.shape)
    count = math.prod(tensor.shape)
    return tuple([value] * count for value in one.values)


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
    _allow_decomposition(trt, network)
    return network, parser


def _allow_decomposition(trt: ModuleType, network: tensorrt.INetworkDefinition) -> None:
    """Let the builder compute an attention in parts.

    Else the build fails where no kernel computes the whole, as in FP32. TensorRT 10.13 may not
    have such layers.
    """
    if not hasattr(trt.LayerType, "ATTENTION_INPUT"):
        return
    for index in range(network.num_layers):
        layer: Any = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer  # the bindings return the base class
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
