"""Where TensorRT is: the Python package, the trtexec program, their versions."""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import util
from types import ModuleType
from typing import TypeAlias

from ...core.contract import Readiness
from ...core.errors import MissingError
from ..installed import package_versions
from .driver import CudaDriver, query_driver

MIN_TENSORRT = (
    10,
    13,
)  # strongly typed networks and the names that are used are the same from here on
DISTRIBUTIONS = (
    "tensorrt",
    "tensorrt-cu13",
    "tensorrt-cu12",
    "tensorrt-cu13-libs",
    "tensorrt-cu12-libs",
)
TRTEXEC = "trtexec"
INSTALL_FIX = "pip install 'tensorrt>=10.13'"
DRIVER_FIX = "run this on a host with an NVIDIA GPU and its driver"
Which: TypeAlias = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class TensorrtInstallation:
    """What of TensorRT is here. `package` is the Python package's version, `program` a path.

    The version is empty for a package that was installed without its metadata.
    """

    importable: bool = False
    package: str = ""
    program: str | None = None

    @property
    def too_old(self) -> bool:
        """Whether the package's version is known and below the floor."""
        return bool(self.package) and _version_numbers(self.package) < MIN_TENSORRT


def find_tensorrt(which: Which = shutil.which) -> TensorrtInstallation:
    """Look, without importing anything."""
    known = package_versions(*DISTRIBUTIONS)
    importable = util.find_spec("tensorrt") is not None
    package = (
        next((known[name] for name in DISTRIBUTIONS if name in known), "") if importable else ""
    )
    return TensorrtInstallation(importable=importable, package=package, program=which(TRTEXEC))


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def tensorrt_readiness(driver: CudaDriver, installed: TensorrtInstallation) -> Readiness:
    """Whether engines can be built here: a device first, then something that builds."""
    if not driver.devices:
        return Readiness(ready=False, reason=driver.reason, mend=DRIVER_FIX)
    if installed.too_old:
        return Readiness(
            ready=False,
            reason=f"tensorrt {installed.package} is older than 10.13",
            mend=INSTALL_FIX,
        )
    if not installed.importable and installed.program is None:
        return Readiness(
            ready=False,
            reason="neither the tensorrt package nor the trtexec program is installed",
            mend=INSTALL_FIX,
        )
    version = installed.package if installed.importable else TRTEXEC
    return Readiness(ready=True, version=version)


def load_tensorrt(asked: Callable[[], CudaDriver] = query_driver) -> ModuleType:
    """Import the package, once the driver has said that there is a device.

    Raises:
        MissingError: no device, no package, a shared library that it needs is missing, or it is
            too old.
    """
    driver = asked()
    if not driver.devices:
        raise MissingError(f"TensorRT needs a GPU: {driver.reason}", hint=DRIVER_FIX)
    try:
        trt = importlib.import_module("tensorrt")
    except ImportError as error:
        raise MissingError(f"tensorrt cannot be imported: {error}", hint=INSTALL_FIX) from error
    version = str(trt.__version__)
    if _version_numbers(version) < MIN_TENSORRT:
        raise MissingError(f"tensorrt {version} is older than 10.13", hint=INSTALL_FIX)
    return trt
