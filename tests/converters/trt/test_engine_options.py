"""Options of an engine, parsed from text: units, choices, invalid values."""

from __future__ import annotations

import pytest

from modelc.converters.trt.engine_options import (
    OPTION_NAMES,
    BuilderChoice,
    EngineOptions,
    HardwareLevel,
    parse_options,
)
from modelc.core.errors import ErrorCode, UsageError

from ...reasons import has_code


def test_without_settings_the_options_are_the_defaults() -> None:
    assert parse_options({}) == EngineOptions()
    assert EngineOptions().tf32  # TensorRT's own default


def test_every_key_is_read() -> None:
    options = parse_options(
        {
            "workspace": "4G",
            "optimization_level": "5",
            "profiles": "x=1x3:2x3:4x3; x=8x3:8x3:8x3",
            "timing_cache": "off",
            "version_compatible": "true",
            "hardware_compatible": "ampere-plus",
            "refittable": "true",
            "strip_weights": "true",
            "weight_streaming": "true",
            "tf32": "false",
            "plugins": "/a.so;/b.so",
            "trust_engine": "true",
            "builder": "trtexec",
            "compute_capabilities": "8.9;7.5",
            "weights": "/model.onnx",
            "min_block_size": "3",
            "torch_ops": "aten.sin,aten.cos",
        }
    )
    plain = EngineOptions()
    assert not [key for key in OPTION_NAMES if getattr(options, key) == getattr(plain, key)]
    assert options.workspace == 4 << 30
    assert (options.plugins, len(options.profiles)) == (("/a.so", "/b.so"), 2)
    assert options.hardware_compatible is HardwareLevel.AMPERE_PLUS
    assert options.builder is BuilderChoice.TRTEXEC
    assert options.compute_capabilities == ("7.5", "8.9")


@pytest.mark.parametrize(
    ("text", "size"), [("512M", 512 << 20), ("1.5g", 3 << 29), ("4096", 4096), ("1T", 1 << 40)]
)
def test_a_size_may_have_a_unit(text: str, size: int) -> None:
    assert parse_options({"workspace": text}).workspace == size


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("workspace", "4 lots"),
        ("workspace", "0"),
        ("workspace", "-1G"),
        ("workspace", "infG"),
        ("workspace", "nan"),
        ("workspace", "4Q"),
        ("workspace", "0.5"),
        ("workspace", "99999999T"),
        ("workspace", "9" * 400),
        ("optimization_level", "6"),
        ("optimization_level", "high"),
        ("tf32", "maybe"),
        ("hardware_compatible", "turing"),
        ("builder", "make"),
    ],
)
def test_an_invalid_value_is_an_error(key: str, text: str) -> None:
    option = key.replace("_", "-")
    invalid = has_code(ErrorCode.INVALID_VALUE, option=option, naming=repr(text))
    with pytest.raises(UsageError, check=invalid):
        parse_options({key: text})


def test_an_unknown_option_is_an_error_with_the_nearest_name() -> None:
    unknown = has_code(ErrorCode.UNKNOWN_NAME, naming="'workspaces'")
    with pytest.raises(UsageError, check=unknown) as caught:
        parse_options({"workspaces": "4G"})
    assert "'workspace'" in caught.value.hint


def test_a_version_compatible_engine_needs_trust() -> None:
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.CONSENT_REQUIRED, option="trust-engine")
    ) as caught:
        parse_options({"version_compatible": "true"})
    assert "--trust-engine" in caught.value.hint
