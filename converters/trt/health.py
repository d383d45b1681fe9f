"""What stands between this host and a TensorRT engine: driver, devices, package, program.

Floors from TensorRT's prerequisites: Turing or newer; driver r580 for CUDA 13 packages, r535 for
CUDA 12 wheels: https://docs.nvidia.com/deeplearning/tensorrt/11.4.0/installing-tensorrt/prerequisites.html
"""

from __future__ import annotations

from collections.abc import Iterable

from ...core.diagnosis import Check, State
from ..asking import LibraryReport
from . import package
from .driver import CudaDevice, CudaDriver

TURING = (7, 5)  # compute capability
_GIB = 2**30
# CUDA major -> the first cuDriverGetVersion of the driver branch that its packages need, and that.
_BRANCHES = {13: (13000, "r580"), 12: (12020, "r535")}


def check_driver(driver: CudaDriver, majors: Iterable[int]) -> tuple[Check, ...]:
    """The driver, against what the installed packages need, and every GPU.

    Args:
        driver: what it says of itself.
        majors: the CUDA majors that TensorRT and torch were installed for.
    """
    if driver.version is None:
        told = driver.reason or "none"
        mend = package.DRIVER_FIX
        return (Check(name="CUDA driver", state=State.MISSING, told=told, mend=mend),)
    return (_check_driver_version(driver, max(majors, default=0)), *_check_devices(driver))


def _check_driver_version(driver: CudaDriver, major: int) -> Check:
    floor, branch = _BRANCHES.get(major, (0, ""))
    told = f"runs CUDA up to {driver.cuda}"
    if driver.version is not None and driver.version < floor:
        return Check(
            name="CUDA driver",
            state=State.BROKEN,
            told=f"{told}; what is installed is for CUDA {major} and needs {branch} or newer",
            mend=f"install NVIDIA driver {branch} or newer, or the CUDA 12 packages",
        )
    newest = max(_BRANCHES)
    if not major and driver.version is not None and driver.version < _BRANCHES[newest][0]:
        told += f"; TensorRT 11 for CUDA {newest} needs {_BRANCHES[newest][1]}, take tensorrt-cu12"
    return Check(name="CUDA driver", state=State.OK, told=told)


def _check_devices(driver: CudaDriver) -> tuple[Check, ...]:
    if not driver.devices:
        return (
            Check(name="GPU", state=State.MISSING, told=driver.reason, mend=package.DRIVER_FIX),
        )
    return tuple(_check_device(device) for device in driver.devices)


def _check_device(device: CudaDevice) -> Check:
    told = f"{device}, {device.memory / _GIB:.0f} GiB"
    if device.capability >= TURING:
        return Check(name=f"GPU {device.index}", state=State.OK, told=told)
    return Check(
        name=f"GPU {device.index}",
        state=State.WARN,
        told=f"{told}: older than Turing (7.5), the first that TensorRT supports",
        mend="build on a newer GPU, or use ONNX Runtime's CUDA provider",
    )


def check_tensorrt(
    installed: package.TensorrtInstallation, answer: LibraryReport | None
) -> tuple[Check, ...]:
    """TensorRT's package, imported in another process, and trtexec.

    Args:
        installed: what there is.
        answer: what the package said when it was imported; None where it is not installed.
    """
    return (_check_package(installed, answer), _check_trtexec(installed))


def _check_package(installed: package.TensorrtInstallation, answer: LibraryReport | None) -> Check:
    if not installed.importable or answer is None:
        return Check(
            name="tensorrt",
            state=State.MISSING,
            told="the Python package is not installed",
            mend=package.INSTALL_FIX,
        )
    said = next(iter(answer.said), None)
    if said is None or not said.works:
        reason = said.told if said is not None else answer.failure
        return Check(
            name="tensorrt",
            state=State.BROKEN,
            told=f"it is installed and cannot be imported: {reason}",
            mend=f"pip install --force-reinstall {package.INSTALL_FIX.removeprefix('pip install ')}",
        )
    if installed.too_old:
        return Check(
            name="tensorrt",
            state=State.WARN,
            told=f"{said.told} is older than 10.13, the first that modelc works with",
            mend=package.INSTALL_FIX,
        )
    return Check(name="tensorrt", state=State.OK, told=said.told)


def _check_trtexec(installed: package.TensorrtInstallation) -> Check:
    if installed.program is None:
        return Check(
            name=package.TRTEXEC,
            state=State.MISSING,
            told="not on the PATH; it is only needed where the Python package is not",
        )
    return Check(name=package.TRTEXEC, state=State.OK, told=installed.program)
