"""What `--in` accepts: one release of a known runtime, and nothing that an installer would obey."""

from __future__ import annotations

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.runtimes.runtime_requirement import RuntimeRequirement, parse_requirement


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("onnxruntime==1.20.1", ("onnxruntime", "==1.20.1", "")),
        ("onnxruntime == 1.20.*", ("onnxruntime", "==1.20.*", "")),
        ("OpenVINO~=2025.3.0", ("openvino", "~=2025.3.0", "")),
        ("onnxruntime_gpu==1.20.1", ("onnxruntime-gpu", "==1.20.1", "")),
        ("torch==2.11.0+cpu,python=3.12", ("torch", "==2.11.0+cpu", "3.12")),
        ("onnxruntime==1.16.3, python==3.9", ("onnxruntime", "==1.16.3", "3.9")),
    ],
)
def test_a_release_of_a_known_runtime_is_read(text: str, expected: tuple[str, str, str]) -> None:
    found = parse_requirement(text)
    assert (found.package, found.specifier, found.python) == expected


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("onnxruntime", ErrorCode.INVALID_VALUE),
        ("onnxruntime>=1.20", ErrorCode.INVALID_VALUE),
        ("onnxruntime==1.20,<2", ErrorCode.INVALID_VALUE),
        ("onnxruntime===1.20", ErrorCode.INVALID_VALUE),
        ("onnxruntime[x]==1.20", ErrorCode.INVALID_VALUE),
        ("onnxruntime==1.20; python_version > '3'", ErrorCode.INVALID_VALUE),
        ("onnxruntime @ https://example.org/x.whl", ErrorCode.INVALID_VALUE),
        ("https://example.org/onnxruntime.whl", ErrorCode.INVALID_VALUE),
        ("./onnxruntime-1.20.1.whl", ErrorCode.INVALID_VALUE),
        ("-r requirements.txt", ErrorCode.INVALID_VALUE),
        ("--index-url=https://example.org", ErrorCode.INVALID_VALUE),
        ("onnxruntime==1.20 --pre", ErrorCode.INVALID_VALUE),
        ("onnxruntime==1.20,python=../bin", ErrorCode.INVALID_VALUE),
        ("", ErrorCode.INVALID_VALUE),
        ("a" * 5000, ErrorCode.INVALID_VALUE),
        ("onnxruntim==1.20", ErrorCode.UNKNOWN_NAME),
        ("requests==2.0", ErrorCode.UNKNOWN_NAME),
        ("tensorrt==10.13", ErrorCode.UNSUPPORTED),
    ],
)
def test_anything_else_is_refused(text: str, code: ErrorCode) -> None:
    with pytest.raises(UsageError) as caught:
        parse_requirement(text)
    assert caught.value.code is code
    assert len(caught.value.message) < 400


def test_an_old_release_gets_an_old_numpy() -> None:
    assert parse_requirement("onnxruntime==1.17.3").packages() == ("onnxruntime==1.17.3", "numpy<2")
    assert parse_requirement("onnxruntime==1.20.*").packages() == ("onnxruntime==1.20.*", "numpy")


@pytest.mark.parametrize(
    ("specifier", "version", "accepted"),
    [
        ("==1.20", "1.20.0", True),
        ("==1.20", "1.20.1", False),
        ("==1.20.*", "1.20.1", True),
        ("~=1.20.0", "1.20.3", True),
        ("~=1.20.0", "1.21.0", False),
        ("==1.20", "no version", False),
    ],
)
def test_releases_are_accepted_as_an_installer_does(
    specifier: str, version: str, accepted: bool
) -> None:
    requirement = RuntimeRequirement(package="onnxruntime", specifier=specifier)
    assert requirement.accepts(version) is accepted
