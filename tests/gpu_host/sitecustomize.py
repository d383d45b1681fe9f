"""A host with one GPU, for a Python process that has this folder on its PYTHONPATH.

The CUDA driver is one of Python, and the package `tensorrt` beside this file is the strict double
with engines that ONNX Runtime computes on the CPU. GPU_HOST_DRIVER is the driver's version: 13010.
"""

import ctypes
import os
from typing import Any

_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_ATTRIBUTES = {75: 8, 76: 9}  # compute capability 8.9
_open = ctypes.CDLL


class Driver:
    """The calls of the CUDA driver that modelc makes; each returns CUDA_SUCCESS."""

    def cuInit(self, _flags: int) -> int:  # noqa: N802 - the driver's names
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        return _write(version, int(os.environ.get("GPU_HOST_DRIVER", "13010")))

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        return _write(count, 1)

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        return _write(device, index)

    def cuDeviceGetName(self, name: Any, _size: int, _device: int) -> int:  # noqa: N802
        name.value = b"Double RTX 4090"
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, _: int) -> int:  # noqa: N802
        return _write(value, _ATTRIBUTES[attribute])

    def cuDeviceTotalMem_v2(self, size: object, _device: int) -> int:  # noqa: N802
        return _write(size, 24 << 30)


def _write(pointer: Any, value: int) -> int:
    pointer._obj.value = value  # what ctypes.byref points to
    return 0


def open_library(name: str | None, *args: Any, **named: Any) -> object:
    """Open a library, or the driver of Python."""
    return Driver() if name in _LIBRARIES else _open(name, *args, **named)


ctypes.CDLL = open_library  # type: ignore[assignment,misc]
