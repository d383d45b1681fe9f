"""Build an engine in a child process: TensorRT's Python package or trtexec."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ...core.children.child_call import PYTHON, ChildCall, ParentConnection, run_in_child
from ...core.children.messages import Returned, StoppedByError, rebuild_error
from ...core.children.processes import (
    OutputLog,
    ProcessEnd,
    ProcessSpec,
    capture_output,
    run_process,
)
from ...core.contract import Advance
from ...core.errors import LOGGED, ConversionError, ErrorCode, MissingError, ModelcError
from ...core.events import Advanced
from .engine_build import build_in_child, plugin_path
from .engine_inspection import InspectFunction, inspect_in_child
from .engine_layers import parse_layers
from .engine_options import EngineOptions, HardwareLevel, ShapeRange
from .engine_profiles import range_error
from .engine_records import BuildRequest, BuildResult
from .trt_installation import (
    MIN_TENSORRT,
    CudaDriver,
    TensorrtInstallation,
    TrtLibrary,
    find_tensorrt,
    query_driver,
)

_CANCEL_TIMEOUT = 30.0  # seconds that the running step of a cancelled build may take
_LAYERS_FILE = "layers.json"
_SHOWN = 5  # last lines of the log that a message shows
BuildFunction: TypeAlias = Callable[[BuildRequest, ParentConnection], BuildResult]


@dataclass(frozen=True, kw_only=True)
class BuildHost:
    """What a build uses of its machine; `build` and `inspect` are called in child processes."""

    driver: Callable[[], CudaDriver] = query_driver
    installed: Callable[[TrtLibrary], TensorrtInstallation] = find_tensorrt
    build: BuildFunction = build_in_child
    inspect: InspectFunction = inspect_in_child


def build_with_python(
    request: BuildRequest,
    advance: Advance,
    *,
    build: BuildFunction = build_in_child,
    grace: float = _CANCEL_TIMEOUT,
    python: tuple[str, ...] = PYTHON,
) -> BuildResult:
    """Build in a Python process that imports the library; this one never does.

    `grace` is how many seconds a cancelled build may take to stop.

    Raises:
        ConversionError: the build failed, crashed or was cancelled.
        MissingError: the library or the device is missing.
    """

    def on_message(message: object) -> None:
        if isinstance(message, Advanced):
            advance(message.done, message.total)

    call = ChildCall(
        function=build, argument=request, messages=(BuildResult,), grace=grace, python=python
    )
    log = OutputLog(echo=True)
    try:
        end = run_in_child(call, on_message, log=log)
    except OSError as error:
        raise _start_error(python[0], error) from error
    match end:
        case Returned(value=BuildResult() as built):
            return built
        case StoppedByError():
            raise _build_error(end, log)
        case ProcessEnd():
            raise _crash_error(f"the builder of {request.library}", end)
    raise ConversionError("the build of the engine was cancelled", hint="run the command again")


def _build_error(stopped: StoppedByError, log: OutputLog) -> Exception:
    error = rebuild_error(stopped)
    if isinstance(error, ModelcError):
        return error
    log.add(stopped.trace.encode())
    return ConversionError(stopped.message, hint=LOGGED, code=ErrorCode.RUNTIME_FAILED)


def build_with_trtexec(
    program: str,
    request: BuildRequest,
    folder: Path,
    *,
    version: tuple[int, int, int],
) -> BuildResult:
    """Build with trtexec, which reports no progress.

    Raises:
        ConversionError: the build failed or crashed.
    """
    exported = folder / _LAYERS_FILE
    command = trtexec_command(program, version[0], request, exported)
    log = OutputLog(echo=True)

    def write_to_log(line: bytes) -> bool:
        log.add(line + b"\n")
        return False

    try:
        end = run_process(ProcessSpec(command=tuple(command)), write_to_log, log=log)
    except OSError as error:
        raise _start_error(program, error) from error
    engine = Path(request.engine)
    if not engine.is_file() or engine.stat().st_size == 0:
        raise _crash_error("trtexec", end)
    # It writes the engine first, and may fail as it describes the layers.
    notes = () if end.code == 0 else (f"trtexec ended with {end.name} after it wrote the engine",)
    text = exported.read_text("utf-8") if exported.is_file() else ""
    exported.unlink(missing_ok=True)
    found, _ = parse_layers(text)
    return BuildResult(
        tensorrt=".".join(map(str, version)),
        layers=text,
        inputs=found.inputs,
        outputs=found.outputs,
        notes=notes,
    )


def _start_error(program: str, error: OSError) -> MissingError:
    return MissingError(
        f"{program} cannot be started: {error}",
        hint="see modelc doctor",
        code=ErrorCode.NOT_INSTALLED,
    )


def _crash_error(who: str, end: ProcessEnd) -> ConversionError:
    how = f"crashed with {end.signal_name}" if end.code < 0 else f"ended with {end.code}"
    fatal = (at for at, line in enumerate(end.tail) if line.startswith("Fatal Python error"))
    lines = end.tail[: next(fatal, None)][-_SHOWN:]  # TensorRT's own, not Python's traceback
    printed = f"; its last lines: {' | '.join(lines)}" if lines else " and printed nothing"
    return ConversionError(f"{who} {how}{printed}", hint=LOGGED, code=ErrorCode.RUNTIME_FAILED)


_BANNER = re.compile(r"\[TensorRT v(\d+)\]")
_HARDWARE = {
    HardwareLevel.AMPERE_PLUS: "ampere+",
    HardwareLevel.SAME_COMPUTE_CAPABILITY: "sameComputeCapability",
}
_HELP_TIMEOUT = 60.0  # seconds


def trtexec_version(program: str) -> tuple[int, int, int]:
    """TensorRT's version as trtexec prints it above its help: `v101600` is 10.16.0.

    Raises:
        MissingError: it does not say, or is older than 10.13.
    """
    try:
        end, printed = capture_output((program, "--help"), seconds=_HELP_TIMEOUT)
    except OSError as error:
        raise _unusable(f"{program} cannot be started: {error}") from error
    if end.overrun is not None:
        raise _unusable(f"{program} --help failed: {end.overrun.text}")
    banner = _BANNER.search(printed)
    if banner is None:
        raise _unusable(f"{program} --help does not print its TensorRT version")
    number = int(banner.group(1))
    version = (number // 10000, number // 100 % 100, number % 100)
    if version[:2] < MIN_TENSORRT:
        found = ".".join(map(str, version))
        raise _unusable(f"{program} is of TensorRT {found}; 10.13 or later is required")
    return version


def _unusable(problem: str) -> MissingError:
    return MissingError(problem, hint=TrtLibrary.TENSORRT.install, code=ErrorCode.NOT_INSTALLED)


def trtexec_command(program: str, major: int, request: BuildRequest, layers: Path) -> list[str]:
    """The whole command line: build, write the engine and its layers, run nothing.

    `layers` is the file for the layers.
    """
    return [
        program,
        f"--onnx={request.onnx}",
        f"--saveEngine={request.engine}",
        "--skipInference",
        "--profilingVerbosity=detailed",
        f"--exportLayerInfo={layers}",
        *(["--stronglyTyped"] if major < 11 else []),  # noqa: PLR2004 - always so since 11
        *_limit_flags(request),
        *_option_flags(request.options),
        *_profile_flags(request),
    ]


def _limit_flags(request: BuildRequest) -> Iterator[str]:
    options = request.options
    yield f"--builderOptimizationLevel={options.optimization_level}"
    if options.workspace is not None:
        yield f"--memPoolSize=workspace:{options.workspace}B"
    if request.timing_cache:
        yield f"--timingCacheFile={request.timing_cache}"
    for library in options.plugins:
        yield f"--staticPlugins={plugin_path(library)}"


def _option_flags(options: EngineOptions) -> Iterator[str]:
    named = {
        "--refit": options.refittable,
        "--stripWeights": options.strip_weights,
        "--versionCompatible": options.version_compatible,
        "--allowWeightStreaming": options.weight_streaming,
        "--noTF32": not options.tf32,
    }
    yield from (flag for flag, wanted in named.items() if wanted)
    if options.hardware_compatible in _HARDWARE:
        yield f"--hardwareCompatibilityLevel={_HARDWARE[options.hardware_compatible]}"


def _profile_flags(request: BuildRequest) -> Iterator[str]:
    """Shapes, where any input varies; each profile behind its number where there are several.

    Raises:
        ConversionError: the range of an input that sets a size is not stated.
    """
    profiles, sizes = request.profiles, request.size_inputs
    if not sizes and all(one.low == one.high for profile in profiles for one in profile):
        return
    for index, profile in enumerate(profiles):
        if len(profiles) > 1:
            yield f"--profile={index}"
        for flag, which in (("min", 0), ("opt", 1), ("max", 2)):
            yield f"--{flag}Shapes=" + ",".join(
                f"{one.name}:{_range_part(one, which, values=one.name in sizes)}" for one in profile
            )


def _range_part(one: ShapeRange, which: int, *, values: bool) -> str:
    """Return one of the three shapes of an input, or of its `values`, as trtexec takes it."""
    if not values:
        return "x".join(map(str, one.shapes[which])) or "scalar"
    if one.values is None:
        raise range_error(one.name, "int64", one.low)
    return "x".join([str(one.values[which])] * math.prod(one.low))
