"""Options of an engine and its optimization profiles, parsed from text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TypeAlias, TypeVar

from ...core.errors import ErrorCode, Hint, Option, UsageError, unknown_name_error
from ...core.segments import DEFAULT_MIN_BLOCK
from .trt_installation import TrtLibrary

LEVELS = range(6)  # IBuilderConfig.builder_optimization_level
DEFAULT_LEVEL = 3  # TensorRT's own
# Of trt.ComputeCapability, as users write them; TensorRT-RTX takes 8.0 and later if none is named.
COMPUTE_CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")
SEPARATOR = ";"  # between the values of an option that may be given several times
_SIZE = re.compile(r"(\d*\.?\d+)([BKMGT]?)", re.IGNORECASE)
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TRUTHS = {"true": True, "false": False}


class HardwareLevel(StrEnum):
    """Other GPUs that an engine must run on."""

    NONE = "none"
    AMPERE_PLUS = "ampere-plus"
    SAME_COMPUTE_CAPABILITY = "same-compute-capability"


class BuilderChoice(StrEnum):
    """The builder: the Python package, the trtexec program, or whichever is installed."""

    AUTO = "auto"
    PYTHON = "python"
    TRTEXEC = "trtexec"


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options to build and to open an engine.

    `workspace` is in bytes; None leaves TensorRT's limit, all of the device's memory. `profiles`
    follow the signature's own profile. `compute_capabilities` are those of the GPUs that an engine
    of TensorRT-RTX runs on; none are all from 8.0 on. `timing_cache` is a file, `off`, or empty
    for a file in the job's cache. `weights` is the ONNX with the weights of a stripped engine.
    `min_block_size` is the fewest operators of an engine that is a part of a model, and
    `torch_ops` are operators that stay in torch.
    """

    workspace: int | None = None
    optimization_level: int = DEFAULT_LEVEL
    profiles: tuple[Profile, ...] = ()
    timing_cache: str = ""
    version_compatible: bool = False
    hardware_compatible: HardwareLevel = HardwareLevel.NONE
    refittable: bool = False
    strip_weights: bool = False
    weight_streaming: bool = False
    tf32: bool = True
    plugins: tuple[str, ...] = ()
    trust_engine: bool = False
    builder: BuilderChoice = BuilderChoice.AUTO
    compute_capabilities: tuple[str, ...] = ()
    weights: str = ""
    min_block_size: int = DEFAULT_MIN_BLOCK
    torch_ops: tuple[str, ...] = ()


OPTION_NAMES = tuple(one.name for one in fields(EngineOptions))


def parse_options(settings: Mapping[str, str]) -> EngineOptions:
    """Parse the text options of a job.

    Raises:
        UsageError: an unknown option or an invalid value.
    """
    for key in settings:
        if key not in OPTION_NAMES:
            raise unknown_name_error("TensorRT option", key, OPTION_NAMES)
    options = EngineOptions(
        workspace=_read_size(settings, "workspace"),
        optimization_level=_read_level(settings),
        profiles=read_profiles(_read_list(settings, "profiles")),
        timing_cache=settings.get("timing_cache", ""),
        version_compatible=_read_bool(settings, "version_compatible", False),
        hardware_compatible=_read_choice(settings, "hardware_compatible", HardwareLevel),
        refittable=_read_bool(settings, "refittable", False),
        strip_weights=_read_bool(settings, "strip_weights", False),
        weight_streaming=_read_bool(settings, "weight_streaming", False),
        tf32=_read_bool(settings, "tf32", True),
        plugins=_read_list(settings, "plugins"),
        trust_engine=_read_bool(settings, "trust_engine", False),
        builder=_read_choice(settings, "builder", BuilderChoice),
        compute_capabilities=_read_capabilities(settings),
        weights=settings.get("weights", ""),
        min_block_size=_read_block_size(settings),
        torch_ops=_read_names(settings, "torch_ops"),
    )
    if options.version_compatible and not options.trust_engine:
        raise UsageError(
            "a version-compatible engine contains its own runtime: loading it runs that code",
            hint=Hint("to load and validate the engine here, add ", Option("trust-engine")),
            option="trust-engine",
            code=ErrorCode.CONSENT_REQUIRED,
        )
    return options


def _read_size(settings: Mapping[str, str], key: str) -> int | None:
    """Parse a size such as `4G` or `1.5G` to bytes; without a unit it is in bytes."""
    text = settings.get(key, "")
    if not text:
        return None
    found = _SIZE.fullmatch(text)
    size = float(found[1]) * _UNITS[found[2].upper()] if found else 0
    if not 1 <= size < 1 << 63:
        raise _option_error(key, text, "a size such as 512M or 4G")
    return int(size)


def _read_level(settings: Mapping[str, str]) -> int:
    text = settings.get("optimization_level", str(DEFAULT_LEVEL))
    if not text.isdecimal() or int(text) not in LEVELS:
        raise _option_error(
            "optimization_level", text, f"a whole number from 0 to {LEVELS.stop - 1}"
        )
    return int(text)


def _read_block_size(settings: Mapping[str, str]) -> int:
    text = settings.get("min_block_size", str(DEFAULT_MIN_BLOCK))
    if not text.isdecimal() or int(text) < 1:
        raise _option_error("min_block_size", text, "a whole number from 1")
    return int(text)


def _read_bool(settings: Mapping[str, str], key: str, default: bool) -> bool:
    text = settings.get(key, str(default)).lower()
    if text not in _TRUTHS:
        raise _option_error(key, settings[key], "true or false")
    return _TRUTHS[text]


Choice = TypeVar("Choice", bound=StrEnum)


def _read_choice(settings: Mapping[str, str], key: str, kind: type[Choice]) -> Choice:
    """Return a member of `kind`; the first is the default."""
    members = list(kind)
    text = settings.get(key, members[0])
    if text not in members:
        raise _option_error(key, text, f"one of {', '.join(members)}")
    return kind(text)


def _read_list(settings: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in settings.get(key, "").split(SEPARATOR) if part.strip())


def _read_names(settings: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Return the names, which may also be separated by commas."""
    parts = [part.strip() for text in _read_list(settings, key) for part in text.split(",")]
    return tuple(part for part in parts if part)


def _read_capabilities(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the capabilities in ascending order, each once.

    Raises:
        UsageError: an unknown one.
    """
    names = {*_read_names(settings, "compute_capabilities")}
    for name in sorted(names - {*COMPUTE_CAPABILITIES}):
        known = f"some of {', '.join(COMPUTE_CAPABILITIES)}"
        raise _option_error("compute_capabilities", name, known)
    return tuple(one for one in COMPUTE_CAPABILITIES if one in names)


# Options that one library lacks, with the reason. With REFIT or STRIP_PLAN, the builder of
# TensorRT-RTX 1.7.1 gives nothing where there is no driver (measured). Its timing cache has no
# effect and makes it ask for a GPU, by NVIDIA's documentation.
_WHOLE = dict.fromkeys(("min_block_size", "torch_ops"), "it takes a model whole")
_OWN_GPU = "it builds for the GPU of the host"
_LACKING: Mapping[TrtLibrary, Mapping[str, str]] = {
    TrtLibrary.TENSORRT: {"compute_capabilities": _OWN_GPU, **_WHOLE},
    TrtLibrary.TORCH: {
        "compute_capabilities": _OWN_GPU,
        "profiles": "its engines have one profile, that of the inputs",
        "strip_weights": "modelc does not fill the weights of its engines in again",
        "weight_streaming": "modelc does not set the budget of its engines",
        "plugins": "its converters name the plugins that they use",
        "builder": "it is built by its Python package",
        "timing_cache": "it keeps the timings of a build to itself",
    },
    TrtLibrary.ORT: {
        "compute_capabilities": _OWN_GPU,
        "torch_ops": "they are operators of torch",
        "profiles": "its engines have one profile, that of the inputs",
        "version_compatible": "ONNX Runtime does not have it",
        "refittable": "ONNX Runtime does not have it",
        "strip_weights": "modelc does not fill the weights of its engines in again",
        "weight_streaming": "ONNX Runtime does not have it",
        "tf32": "ONNX Runtime does not have it",
        "plugins": "modelc does not load plugins into ONNX Runtime",
        "builder": "it is built by ONNX Runtime",
        "timing_cache": "ONNX Runtime names the file itself",
    },
    TrtLibrary.RTX: {
        "hardware_compatible": "its engines run on all GPUs of --compute-capabilities",
        "version_compatible": "its engines load only in the version that built them",
        "refittable": "it needs a GPU to build such an engine",
        "strip_weights": "it needs a GPU to build such an engine",
        "plugins": "it has no plugins",
        "timing_cache": "it times no kernels",
        "builder": "it is built by its Python package",
        **_WHOLE,
    },
}


_FLAGS = {"profiles": "profile"}  # settings whose option has another name


def check_libraries(settings: Mapping[str, str], libraries: Collection[TrtLibrary]) -> None:
    """Check that one of the libraries has each option that is given.

    Raises:
        UsageError: none of them has it.
    """
    libraries = tuple(libraries)
    for key in settings:
        reasons = [_LACKING[library].get(key, "") for library in libraries]
        if reasons and all(reasons):
            name = _FLAGS.get(key, key.replace("_", "-"))
            raise UsageError(
                f"{libraries[0]} does not have --{name}: {reasons[0]}",
                hint="leave it out",
                option=name,
                code=ErrorCode.UNSUPPORTED,
            )


def options_for(options: EngineOptions, library: TrtLibrary) -> EngineOptions:
    """Return the options with the defaults in place of those that the library lacks."""
    plain = EngineOptions()
    return replace(options, **{name: getattr(plain, name) for name in _LACKING[library]})


def _option_error(key: str, text: str, wanted: str) -> UsageError:
    name = key.replace("_", "-")
    return UsageError(
        f"--{name} cannot be {text!r}",
        hint=f"give {wanted}",
        option=name,
        code=ErrorCode.INVALID_VALUE,
    )


Shape: TypeAlias = tuple[int, ...]
_HINT, _PARTS = "write --profile x=1x3x224x224:4x3x224x224:8x3x224x224, inputs apart by commas", 3


@dataclass(frozen=True, kw_only=True)
class ShapeRange:
    """The least, best and greatest shape of one input; kernels are tuned for `opt`.

    `values` are the least, a middle and the greatest value of an integer input with a stated range:
    TensorRT requires them of an input that sets a size.
    """

    name: str
    low: Shape
    opt: Shape
    high: Shape
    values: tuple[int, int, int] | None = None

    def contains(self, shape: Sequence[int], values: Sequence[int] = ()) -> bool:
        """Return whether the shape is in the range, and the values where it has them."""
        low, _, high = self.values or (0, 0, 0)
        return (
            len(shape) == len(self.low)
            and all(a <= size <= b for a, size, b in zip(self.low, shape, self.high, strict=True))
            and (self.values is None or all(low <= value <= high for value in values))
        )

    def __str__(self) -> str:
        return f"{self.name}={':'.join('x'.join(map(str, s)) for s in self.shapes)}"

    @property
    def shapes(self) -> tuple[Shape, Shape, Shape]:
        """The three shapes: low, opt, high."""
        return self.low, self.opt, self.high


Profile: TypeAlias = tuple[ShapeRange, ...]


def profile_text(profile: Profile) -> str:
    """Format a profile as `--profile` takes it."""
    return ",".join(map(str, profile))


def read_profiles(texts: Iterable[str]) -> tuple[Profile, ...]:
    """Parse profiles such as `x=1x8:4x8:8x8,mask=1x8:4x8:8x8`.

    Raises:
        UsageError: a text has another form, or its shapes are not min <= opt <= max.
    """
    return tuple(_parse_profile(text) for text in texts)


def _parse_profile(text: str) -> Profile:
    ranges = tuple(_parse_range(part.strip(), text) for part in text.split(","))
    names = [one.name for one in ranges]
    if len(set(names)) != len(names):
        raise UsageError(f"--profile {text!r} names an input twice", hint=_HINT, option="profile")
    return ranges


def _parse_range(part: str, text: str) -> ShapeRange:
    name, equals, shapes = part.rpartition("=")
    found = [_parse_shape(shape) for shape in shapes.split(":")]
    if not (name and equals) or len(found) != _PARTS or None in found:
        raise UsageError(f"--profile {text!r}: cannot read {part!r}", hint=_HINT, option="profile")
    low, opt, high = (shape or () for shape in found)
    if not len(low) == len(opt) == len(high) or any(
        not 0 <= a <= b <= c for a, b, c in zip(low, opt, high, strict=True)
    ):
        raise UsageError(
            f"--profile {text!r}: the shapes of {name!r} are not min <= opt <= max",
            hint=_HINT,
            option="profile",
        )
    return ShapeRange(name=name, low=low, opt=opt, high=high)


def _parse_shape(text: str) -> Shape | None:
    """Parse `1x3x8` to sizes, and an empty text to a scalar's shape; None for anything else."""
    parts = text.split("x") if text else []
    fits = all(part.isdecimal() and float(part) < 1 << 31 for part in parts)
    return tuple(map(int, parts)) if fits else None
