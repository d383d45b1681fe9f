from __future__ import annotations

import pytest

from modelc.converters.onnx_compatibility import combine_runtimes, parse_runtime
from modelc.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "opset", "ir"),
    [
        ("onnxruntime==1.14", 18, 8),
        ("onnxruntime==1.17.3", 20, 9),
        ("onnxruntime==1.20", 21, 10),
        ("onnxruntime==1.24.4", 25, 13),
        ("tensorrt==10.6", 22, 10),
        ("tensorrt==10.9.0.34", 22, 10),  # at least what 10.6 has
        ("tensorrt==10.15", 24, 12),
        ("tensorrt==10", 22, 10),  # the least of 10.x that is documented
        ("tensorrt==11", 24, 12),
        ("tensorrt==11.5", 25, 13),
    ],
)
def test_a_release_loads_what_its_makers_say(text: str, opset: int, ir: int) -> None:
    limits = parse_runtime(text).limits
    assert (limits.opset, limits.ir) == (opset, ir)


def test_several_runtimes_allow_the_least_of_each() -> None:
    allowed = combine_runtimes(["onnxruntime==1.17", "tensorrt==10.6"])
    assert allowed is not None
    limits = allowed.limits
    assert (limits.opset, limits.ir, limits.ml, limits.contrib) == (20, 9, 0, False)
    assert str(allowed) == (
        "onnxruntime 1.17 (opset <= 20, IR <= 9), tensorrt 10.6 (opset <= 22, IR <= 10)"
    )


def test_nothing_named_allows_everything() -> None:
    assert combine_runtimes([]) is None


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("onxruntime", "unknown runtime in --for: 'onxruntime'", "did you mean 'onnxruntime'?"),
        ("onxruntime==1.20", "unknown runtime", "did you mean 'onnxruntime'?"),
        ("", "unknown runtime", "choose from: onnxruntime, tensorrt"),
        ("onnxruntime", "is not RUNTIME==VERSION", "--for onnxruntime==1.24"),
        ("onnxruntime>=1.20", "is not RUNTIME==VERSION", "--for onnxruntime==1.24"),
        ("onnxruntime==", "is not RUNTIME==VERSION", "--for onnxruntime==1.24"),
        ("onnxruntime==1.20rc1", "is not RUNTIME==VERSION", "--for onnxruntime==1.24"),
        ("onnxruntime==1.99", "onnxruntime 1.99", "1.14, 1.15"),
        ("onnxruntime==1.13", "onnxruntime 1.13", "1.14, 1.15"),
        ("onnxruntime==2", "onnxruntime 2", "1.14, 1.15"),
        ("tensorrt==10.3", "tensorrt 10.3", "10.6, 10.15, 11.0"),
        ("tensorrt==12", "tensorrt 12", "10.6, 10.15, 11.0"),
        ("tensorrt==11.9", "tensorrt 11.9", "10.6, 10.15, 11.0"),
        ("openvino==2024.1", "modelc cannot target openvino", "--to openvino"),
    ],
)
def test_an_unknown_runtime_names_the_known(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_runtime(text)
    assert message in caught.value.message
    assert hint in caught.value.hint
