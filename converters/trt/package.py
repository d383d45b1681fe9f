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
from .driver import Driver, probe

FLOOR = (10, 13)  # strongly typed networks and the names that are used are the same from here on
PACKAGES = (
    "tensorrt",
    "tensorrt-cu13",
    "tensorrt-cu12",
    "tensorrt-cu13-libs",
    "tensorrt-cu12-libs",
)
PROGRAM = "trtexec"
MEND = "pip install 'tensorrt>=10.13'"
DRIVER_MEND = "run this on a host with an NVIDIA GPU and its driver"
Which: TypeAlias = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class Installed:
    """What of TensorRT is here. `package` is the Python package's version, `program` a path.

    The version is empty for a package that was installed without its metadata.
    """

    importable: bool = False
    package: str = ""
    program: str | None = None

    @property
    def too_old(self) -> bool:
        """Whether the package's version is known and below the floor."""
        return bool(self.package) and _numbers(self.package) < FLOOR


def find(which: Which = shutil.which) -> Installed:
    """Look, without importing anything."""
    known = package_versions(*PACKAGES)
    importable = util.find_spec("tensorrt") is not None
    package = next((known[name] for name in PACKAGES if name in known), "") if importable else ""
    return Installed(importable=importable, package=package, program=which(PROGRAM))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def readiness_of(driver: Driver, installed: Installed) -> Readiness:
    """Whether engines can be built here: a device first, then something that builds."""
    if not driver.devices:
        return Readiness(ready=False, reason=driver.reason, mend=DRIVER_MEND)
    if installed.too_old:
        return Readiness(
            ready=False,
            reason=f"tensorrt {installed.package} is older than 10.13",
            mend=MEND,
        )
    if not installed.importable and installed.program is None:
        return Readiness(
            ready=False,
            reason="neither the tensorrt package nor the trtexec program is installed",
            mend=MEND,
        )
    version = installed.package if installed.importable else PROGRAM
    return Readiness(ready=True, version=version)


def load_tensorrt(asked: Callable[[], Driver] = probe) -> ModuleType:
    """Import the package, once the driver has said that there is a device.

    Raises:
        MissingError: no device, no package, a shared library that it needs is missing, or it is
            too old.
    """
    driver = asked()
    if not driver.devices:
        raise MissingError(f"TensorRT needs a GPU: {driver.reason}", hint=DRIVER_MEND)
    try:
        trt = importlib.import_module("tensorrt")
    except ImportError as error:
        raise MissingError(f"tensorrt cannot be imported: {error}", hint=MEND) from error
    version = str(trt.__version__)
    if _numbers(version) < FLOOR:
        raise MissingError(f"tensorrt {version} is older than 10.13", hint=MEND)
    return trt
