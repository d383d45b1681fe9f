"""Queries of the CUDA driver, on a fake of its library."""

from __future__ import annotations

from typing import Any

import pytest

from modelc.converters.trt.trt_installation import DRIVER_LIBRARY, CudaDevice, query_driver

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
NAMES = {NO_DEVICE: b"CUDA_ERROR_NO_DEVICE"}
ATTRIBUTES = {75: 9, 76: 0}  # compute capability of cuda.h


class FakeCuda:
    """The driver of a host with some H100; each call returns a CUresult."""

    def __init__(self, devices: int = 1, init: int = 0) -> None:
        self.devices, self.init = devices, init

    def cuInit(self, _: int) -> int:  # noqa: N802 - the driver's own names
        return self.init

    def cuDriverGetVersion(self, out: Any) -> int:  # noqa: N802
        out._obj.value = 13010
        return 0

    def cuDeviceGetCount(self, out: Any) -> int:  # noqa: N802
        out._obj.value = self.devices
        return 0

    def cuDeviceGet(self, out: Any, index: int) -> int:  # noqa: N802
        out._obj.value = index + 40  # a handle is no index
        return 0

    def cuDeviceGetName(self, out: Any, size: int, handle: int) -> int:  # noqa: N802
        out.value = f"NVIDIA H100 #{handle}".encode()[: size - 1]
        return 0

    def cuDeviceGetAttribute(self, out: Any, attribute: int, _: int) -> int:  # noqa: N802
        out._obj.value = ATTRIBUTES[attribute]
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, _: int) -> int:  # noqa: N802
        out._obj.value = 85 << 30  # more than an int holds
        return 0

    def cuGetErrorName(self, code: int, out: Any) -> int:  # noqa: N802
        if code not in NAMES:
            return 1
        out._obj.value = NAMES[code]
        return 0


def absent(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


def test_each_device_has_a_name_capability_and_memory() -> None:
    driver = query_driver(lambda _: FakeCuda(devices=2))
    assert driver.devices == (
        CudaDevice(index=0, name="NVIDIA H100 #40", capability=(9, 0), memory=85 << 30),
        CudaDevice(index=1, name="NVIDIA H100 #41", capability=(9, 0), memory=85 << 30),
    )
    assert (driver.version, driver.cuda, driver.reason) == (13010, "13.1", "")


class OldCuda(FakeCuda):
    """A driver before cuDeviceTotalMem_v2."""

    @property
    def cuDeviceTotalMem_v2(self) -> Any:  # noqa: N802
        raise AttributeError("undefined symbol")


@pytest.mark.parametrize(
    ("load", "version", "values"),
    [
        (absent, None, [DRIVER_LIBRARY]),
        (lambda _: FakeCuda(init=NO_DEVICE), None, ["cuInit", "CUDA_ERROR_NO_DEVICE"]),
        (lambda _: FakeCuda(init=999), None, ["cuInit", "999"]),
        (lambda _: FakeCuda(devices=0), 13010, ["device"]),
        (lambda _: OldCuda(), 13010, ["cuDeviceTotalMem_v2"]),
    ],
    ids=["no driver", "named error", "unnamed error", "no device", "old driver"],
)
def test_a_host_without_devices_has_a_reason(
    load: Any, version: int | None, values: list[str]
) -> None:
    driver = query_driver(load)
    assert (driver.version, driver.devices) == (version, ())
    assert [value for value in values if value not in driver.reason] == []


def test_the_real_library_is_queried_without_raising() -> None:
    driver = query_driver()
    assert bool(driver.devices) is not bool(driver.reason)
