"""Build an engine in a child process: TensorRT's Python package or trtexec."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.contract import Advance
from ...core.errors import ConversionError, MissingError, ModelcError, UsageError
from .engine_options import EngineOptions, HardwareLevel, Profile, Shape
from .engine_records import (
    REQUEST_FILE,
    RESULT_FILE,
    BuildOutcome,
    BuildRequest,
    BuildResult,
    parse_layers,
    read_record,
    write_record,
)
from .supervised_process import LineHandler, ProcessEnd, ProcessTimeouts, run_supervised, write_log
from .trt_installation import CudaDriver, TensorrtInstallation, find_tensorrt, query_driver

_USUAL = ProcessTimeouts()
_AT_ONCE = ProcessTimeouts(stop=0.0)  # closing its input is nothing to trtexec
# The child's path is made the parent's before anything of modelc is imported: `-m` alone would
# not find what the parent found by a path of its own.
_CHILD_SCRIPT = (
    "import json, runpy, sys; folder = sys.argv[1]; "
    f"sys.path[:] = json.load(open(folder + '/{REQUEST_FILE}', encoding='utf-8'))['path']; "
    f"runpy.run_module('{__package__}.engine_build_child', run_name='__main__', alter_sys=True)"
)
_LAYERS_FILE = "layers.json"
_SHOWN = 5  # last lines of the log that a message shows


@dataclass(frozen=True, kw_only=True)
class BuildHost:
    """What a build asks of the machine that it is on."""

    driver: Callable[[], CudaDriver] = query_driver
    installed: Callable[[], TensorrtInstallation] = find_tensorrt
    child: tuple[str, ...] = (sys.executable, "-c", _CHILD_SCRIPT)  # the folder comes after it


_ERROR_TYPES: dict[int, type[ModelcError]] = {
    kind.exit_code: kind for kind in (UsageError, MissingError, ConversionError)
}


def build_with_python(
    request: BuildRequest,
    folder: Path,
    advance: Advance,
    *,
    patience: ProcessTimeouts = _USUAL,
    command: Sequence[str] = BuildHost.child,
) -> BuildResult:
    """Build in a Python process that imports tensorrt; this one never does.

    Args:
        request: what to build.
        folder: where the request and its outcome are written.
        advance: told how far the build is.
        patience: how long to wait for what when it is to stop.
        command: what to start; the folder is its last argument.

    Raises:
        ConversionError: the build failed or crashed.
        MissingError: tensorrt or the device is not here.
    """

    def handle_line(line: str) -> None:
        try:
            done, total = json.loads(line)
            advance(int(done), int(total))
        except (ValueError, TypeError):
            write_log(line)  # not ours: something got hold of the pipe

    result, asked = folder / RESULT_FILE, folder / REQUEST_FILE
    result.unlink(missing_ok=True)
    write_record(replace(request, path=tuple(sys.path)), asked)
    try:
        ended = _run_child([*command, str(folder)], handle_line, patience)
        outcome = _read_outcome(result, ended)
    finally:
        result.unlink(missing_ok=True)
        asked.unlink(missing_ok=True)
    if outcome.built is None:
        raise _outcome_error(outcome)
    return outcome.built


def _read_outcome(path: Path, ended: ProcessEnd) -> BuildOutcome:
    try:
        return read_record(path, BuildOutcome)
    except (OSError, ValueError):
        raise _crash_error("TensorRT's builder", ended) from None


def build_with_trtexec(
    program: str,
    request: BuildRequest,
    folder: Path,
    *,
    version: tuple[int, int, int],
    patience: ProcessTimeouts = _AT_ONCE,
) -> BuildResult:
    """Build with trtexec; it tells no progress.

    Raises:
        ConversionError: the build failed or crashed.
    """
    exported = folder / _LAYERS_FILE
    command = trtexec_command(program, version[0], request, exported)
    ended = _run_child(command, write_log, patience)
    if ended.code != 0 or not Path(request.engine).is_file():
        raise _crash_error("trtexec", ended)
    text = exported.read_text("utf-8") if exported.is_file() else ""
    exported.unlink(missing_ok=True)
    found, _ = parse_layers(text)
    return BuildResult(
        tensorrt=".".join(map(str, version)),
        layers=text,
        inputs=found.inputs,
        outputs=found.outputs,
    )


def _run_child(command: Sequence[str], heard: LineHandler, patience: ProcessTimeouts) -> ProcessEnd:
    try:
        return run_supervised(command, heard, patience)
    except OSError as error:
        raise MissingError(
            f"{command[0]} cannot be started: {error}", hint="see modelc doctor"
        ) from error


def _crash_error(who: str, ended: ProcessEnd) -> ConversionError:
    how = f"crashed with {ended.signal_name}" if ended.code < 0 else f"ended with {ended.code}"
    lines = [line for line in ended.tail if line.strip()][-_SHOWN:]
    said = f"; its last lines: {' | '.join(lines)}" if lines else " and said nothing"
    return ConversionError(f"{who} {how}{said}", hint="the whole text is in the log")


def _outcome_error(outcome: BuildOutcome) -> ModelcError:
    if outcome.cancelled:
        return ConversionError("the TensorRT build was stopped", hint="run it again to go on")
    kind = _ERROR_TYPES.get(outcome.exit_code, ConversionError)
    return kind(outcome.message, hint=outcome.hint)


_BANNER = re.compile(r"\[TensorRT v(\d+)\]")
_HARDWARE = {
    HardwareLevel.AMPERE_PLUS: "ampere+",
    HardwareLevel.SAME_COMPUTE_CAPABILITY: "sameComputeCapability",
}
_SECONDS = 60.0  # for a program that prints its help
_FLOOR = (10, 13)


def trtexec_version(program: str) -> tuple[int, int, int]:
    """TensorRT's version as trtexec prints it above its help: `v101600` is 10.16.0.

    Raises:
        MissingError: it does not say, or is older than 10.13.
    """
    try:
        ran = subprocess.run(
            [program, "--help"], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        banner = _BANNER.search(ran.stdout + ran.stderr)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{program} does not run: {error}", hint=_MEND) from error
    if banner is None:
        raise MissingError(f"{program} does not say which TensorRT it is of", hint=_MEND)
    number = int(banner.group(1))
    version = (number // 10000, number // 100 % 100, number % 100)
    if version[:2] < _FLOOR:
        told = ".".join(map(str, version))
        raise MissingError(f"{program} is of TensorRT {told}; 10.13 is needed", hint=_MEND)
    return version


_MEND = "install TensorRT 10.13 or later: pip install 'tensorrt>=10.13'"


def trtexec_command(program: str, major: int, request: BuildRequest, layers: Path) -> list[str]:
    """The whole command line: build, write the engine and its layers, run nothing.

    Args:
        program: trtexec's path.
        major: its TensorRT's major version.
        request: what to build.
        layers: where it is to write what the inspector says.
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
        *_profile_flags(request.profiles),
    ]


def _limit_flags(request: BuildRequest) -> Iterator[str]:
    options = request.options
    yield f"--builderOptimizationLevel={options.optimization_level}"
    if options.workspace is not None:
        yield f"--memPoolSize=workspace:{options.workspace}B"
    if request.timing_cache:
        yield f"--timingCacheFile={request.timing_cache}"
    for library in options.plugins:
        yield f"--staticPlugins={library}"


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


def _profile_flags(profiles: Sequence[Profile]) -> Iterator[str]:
    """Shapes, where any input varies; each profile behind its number where there are several."""
    if all(one.low == one.high for profile in profiles for one in profile):
        return
    for index, profile in enumerate(profiles):
        if len(profiles) > 1:
            yield f"--profile={index}"
        for flag, which in (("min", 0), ("opt", 1), ("max", 2)):
            yield f"--{flag}Shapes=" + ",".join(
                f"{one.name}:{_shape_text(one.shapes[which])}" for one in profile
            )


def _shape_text(shape: Shape) -> str:
    return "x".join(map(str, shape)) if shape else "scalar"
