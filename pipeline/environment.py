"""Python, platform and packages: what a manifest records and a cache key depends on."""

from __future__ import annotations

import platform

from ..converters.installed_packages import package_versions

_RECORDED_PACKAGES = (
    "torch", "onnx", "onnxscript", "onnxruntime-gpu", "onnxruntime", "openvino", "nncf",
    "nvidia-modelopt", "tensorrt", "numpy",
)  # fmt: skip
NOT_PACKAGES = ("python", "platform")


def packages() -> dict[str, str]:
    """The versions of what converts, quantizes and runs, as far as it is installed."""
    return package_versions(*_RECORDED_PACKAGES)


def describe_environment() -> dict[str, str]:
    """Python, platform and the versions of what took part."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **packages(),
    }
