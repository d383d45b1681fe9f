"""The command line for NVIDIA's trtexec, the builder where the Python package is not installed.

Only flags that 10.13 and 11.x both take; strong typing is asked for on 10 and always so on 11.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...core.errors import MissingError
from .options import EngineOptions, HardwareLevel
from .profiles import Profile, Shape
from .records import BuildRequest

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
