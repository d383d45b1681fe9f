"""What a user may say about an engine: text options read once into one frozen record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ...core.errors import Hint, Option, UsageError
from ...core.names import unknown
from .profiles import Profile, read_profiles

LEVELS = range(6)  # IBuilderConfig.builder_optimization_level
DEFAULT_LEVEL = 3  # TensorRT's own
SEPARATOR = ";"  # between the values of an option that may be given several times
_UNITS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TRUTHS = {"true": True, "false": False}
KEYS = (
    "workspace",
    "optimization_level",
    "profiles",
    "timing_cache",
    "cache_folder",
    "version_compatible",
    "hardware_compatible",
    "refittable",
    "strip_weights",
    "weight_streaming",
    "tf32",
    "plugins",
    "trust_engine",
    "builder",
    "weights",
)


class HardwareLevel(StrEnum):
    """On which other GPUs an engine is to run as well."""

    NONE = "none"
    AMPERE_PLUS = "ampere-plus"
    SAME_COMPUTE_CAPABILITY = "same-compute-capability"


class BuilderChoice(StrEnum):
    """What builds: the Python package, the trtexec program, or whichever of them is here."""

    AUTO = "auto"
    PYTHON = "python"
    TRTEXEC = "trtexec"


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How an engine is built and opened.

    `workspace` is in bytes, None is TensorRT's own limit: all of the device's memory. `profiles`
    come after the one that the signature gives. `timing_cache` is a file, `off`, or empty for one
    that is named after GPU and version in `cache_folder`. `weights` is
    the ONNX that a stripped engine takes its weights from when it is opened.
    """

    workspace: int | None = None
    optimization_level: int = DEFAULT_LEVEL
    profiles: tuple[Profile, ...] = ()
    timing_cache: str = ""
    cache_folder: str = ""
    version_compatible: bool = False
    hardware_compatible: HardwareLevel = HardwareLevel.NONE
    refittable: bool = False
    strip_weights: bool = False
    weight_streaming: bool = False
    tf32: bool = True
    plugins: tuple[str, ...] = ()
    trust_engine: bool = False
    builder: BuilderChoice = BuilderChoice.AUTO
    weights: str = ""


def parse_options(settings: Mapping[str, str]) -> EngineOptions:
    """Read the text options of a job.

    Raises:
        UsageError: an option that there is not, or a value that it cannot have.
    """
    for key in settings:
        if key not in KEYS:
            raise unknown("TensorRT option", key, KEYS)
    options = EngineOptions(
        workspace=_read_size(settings, "workspace"),
        optimization_level=_read_level(settings),
        profiles=read_profiles(_read_list(settings, "profiles")),
        timing_cache=settings.get("timing_cache", ""),
        cache_folder=settings.get("cache_folder", ""),
        version_compatible=_read_bool(settings, "version_compatible", False),
        hardware_compatible=HardwareLevel(
            _read_choice(settings, "hardware_compatible", HardwareLevel)
        ),
        refittable=_read_bool(settings, "refittable", False),
        strip_weights=_read_bool(settings, "strip_weights", False),
        weight_streaming=_read_bool(settings, "weight_streaming", False),
        tf32=_read_bool(settings, "tf32", True),
        plugins=_read_list(settings, "plugins"),
        trust_engine=_read_bool(settings, "trust_engine", False),
        builder=BuilderChoice(_read_choice(settings, "builder", BuilderChoice)),
        weights=settings.get("weights", ""),
    )
    _check_options(options)
    return options


def _check_options(options: EngineOptions) -> None:
    """What cannot be wanted together."""
    if options.version_compatible and not options.trust_engine:
        raise UsageError(
            "a version-compatible engine carries its own runtime: loading it runs that code",
            hint=Hint(
                "add ",
                Option("trust-engine"),
                ", so that the engine may be loaded here and validated",
            ),
            option="trust-engine",
        )


def _read_size(settings: Mapping[str, str], key: str) -> int | None:
    """`4G` as bytes; a number without a unit is bytes."""
    text = settings.get(key, "")
    if not text:
        return None
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "B")
    size = _positive_number(number)
    if size is None or unit not in _UNITS:
        raise _option_error(key, text, "a size such as 512M or 4G")
    return int(size * _UNITS[unit])


def _read_level(settings: Mapping[str, str]) -> int:
    text = settings.get("optimization_level", str(DEFAULT_LEVEL))
    if not text.isdecimal() or int(text) not in LEVELS:
        raise _option_error(
            "optimization_level", text, f"a whole number from 0 to {LEVELS.stop - 1}"
        )
    return int(text)


def _read_bool(settings: Mapping[str, str], key: str, default: bool) -> bool:
    text = settings.get(key, str(default)).lower()
    if text not in _TRUTHS:
        raise _option_error(key, settings[key], "true or false")
    return _TRUTHS[text]


def _read_choice(settings: Mapping[str, str], key: str, kind: type[StrEnum]) -> str:
    """The text, which is a value of `kind`; the first of them where nothing was said."""
    values = [str(one) for one in kind]
    text = settings.get(key, values[0])
    if text not in values:
        raise _option_error(key, text, f"one of {', '.join(values)}")
    return text


def _positive_number(text: str) -> float | None:
    """The number, where the text is one that is finite and more than 0."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def _read_list(settings: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in settings.get(key, "").split(SEPARATOR) if part.strip())


def _option_error(key: str, text: str, wanted: str) -> UsageError:
    name = key.replace("_", "-")
    return UsageError(f"TensorRT: {name} cannot be {text!r}", hint=f"--{name} takes {wanted}")
