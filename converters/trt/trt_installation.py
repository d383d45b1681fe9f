"""Find the TensorRT installation: driver, devices, Python package and trtexec."""

from __future__ import annotations

import ctypes
import importlib
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from ...core.contract import Readiness
from ...core.errors import ErrorCode, Hint, MissingError, Option
from ..installed_packages import package_versions

DRIVER_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
# CUdevice_attribute of cuda.h.
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76
_NAME_BYTES = 256


LoadLibrary: TypeAlias = Callable[[str], Any]  # the driver's library, as ctypes opens it


@dataclass(frozen=True, kw_only=True)
class CudaDevice:
    """One GPU. `memory` is its total in bytes, `capability` its (major, minor)."""

    index: int
    name: str
    capability: tuple[int, int]
    memory: int

    @property
    def capability_text(self) -> str:
        """The compute capability, as `8.9`."""
        return ".".join(map(str, self.capability))

    def __str__(self) -> str:
        return f"{self.name} (compute capability {self.capability_text})"


@dataclass(frozen=True, kw_only=True)
class CudaDriver:
    """The driver and its devices. `version` is cuDriverGetVersion's: 13010 for CUDA 13.1.

    `reason` says why there are no devices; it is empty where there are some.
    """

    version: int | None
    devices: tuple[CudaDevice, ...]
    reason: str = ""

    @property
    def cuda(self) -> str:
        """The newest CUDA that the driver supports, as `13.1`; empty without a driver."""
        if self.version is None:
            return ""
        return f"{self.version // 1000}.{self.version % 1000 // 10}"


class _DriverCallError(Exception):
    """A driver call that did not return CUDA_SUCCESS."""


def query_driver(load: LoadLibrary = ctypes.CDLL) -> CudaDriver:
    """Ask the driver for its version and its devices; a missing driver is an answer, not an error.

    Args:
        load: opens the driver's library by name; raises OSError where there is none.
    """
    try:
        library = load(DRIVER_LIBRARY)
    except OSError:
        return CudaDriver(
            version=None, devices=(), reason=f"no CUDA driver: {DRIVER_LIBRARY} not found"
        )
    version: int | None = None
    try:
        _call_driver(library, "cuInit", 0)
        version = _read_integer(library, "cuDriverGetVersion")
        count = _read_integer(library, "cuDeviceGetCount")
        devices = tuple(_read_device(library, index) for index in range(count))
    except _DriverCallError as error:
        return CudaDriver(version=version, devices=(), reason=str(error))
    reason = "" if devices else "the CUDA driver finds no device"
    return CudaDriver(version=version, devices=devices, reason=reason)


def _read_device(library: Any, index: int) -> CudaDevice:
    handle = _read_integer(library, "cuDeviceGet", index)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _call_driver(library, "cuDeviceGetName", name, _NAME_BYTES, handle)
    major = _read_integer(library, "cuDeviceGetAttribute", _CAPABILITY_MAJOR, handle)
    minor = _read_integer(library, "cuDeviceGetAttribute", _CAPABILITY_MINOR, handle)
    memory = ctypes.c_size_t()
    _call_driver(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), handle)
    return CudaDevice(
        index=index,
        name=name.value.decode("utf-8", "replace"),
        capability=(major, minor),
        memory=memory.value,
    )


def _read_integer(library: Any, function: str, *arguments: int) -> int:
    """Return the int that a call writes to its first parameter."""
    value = ctypes.c_int()
    _call_driver(library, function, ctypes.byref(value), *arguments)
    return value.value


def _call_driver(library: Any, function: str, *arguments: object) -> None:
    try:
        result = getattr(library, function)(*arguments)
    except AttributeError as error:
        raise _DriverCallError(f"the CUDA driver is too old: it has no {function}") from error
    if result != 0:
        raise _DriverCallError(
            f"CUDA driver call {function} failed: {_error_name(library, result)}"
        )


def _error_name(library: Any, code: int) -> str:
    """Return the name of a CUresult: `CUDA_ERROR_NO_DEVICE` for 100."""
    text = ctypes.c_char_p()
    known = library.cuGetErrorName(code, ctypes.byref(text)) == 0 and text.value is not None
    return (text.value or b"").decode() if known else f"error {code}"


MIN_TENSORRT = (10, 13)
DRIVER_FIX = "run this on a host with an NVIDIA GPU and its driver"
TRTEXEC = "trtexec"
Which: TypeAlias = Callable[[str], str | None]


class TrtLibrary(StrEnum):
    """The libraries of NVIDIA that build and run engines, by the target that they make."""

    TENSORRT = "tensorrt"
    TORCH = "torch-tensorrt"  # builds engines of the parts of a program, which torch runs
    RTX = "tensorrt-rtx"  # builds without a GPU, for RTX GPUs; compiles kernels when it is loaded
    ORT = "onnx-tensorrt"  # ONNX Runtime, whose provider builds engines of the parts of a model

    @property
    def module(self) -> str:
        """The Python package to import."""
        return "onnxruntime" if self is TrtLibrary.ORT else self.value.replace("-", "_")

    @property
    def distributions(self) -> tuple[str, ...]:
        """The names under which pip may have installed it, with the libraries alone at the end."""
        return _DISTRIBUTIONS[self]

    @property
    def minimum(self) -> tuple[int, int]:
        """The first version with the names that modelc uses, and strongly typed networks."""
        return _MINIMUM[self]

    @property
    def install(self) -> str:
        """The command that installs it."""
        return _INSTALL[self]


_DISTRIBUTIONS = {
    TrtLibrary.TENSORRT: (
        "tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu13-libs", "tensorrt-cu12-libs",
    ),
    TrtLibrary.TORCH: ("torch-tensorrt",),
    TrtLibrary.RTX: ("tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx-cu13-bindings"),
    TrtLibrary.ORT: ("onnxruntime-gpu",),
}  # fmt: skip
_MINIMUM = {
    TrtLibrary.TENSORRT: MIN_TENSORRT, TrtLibrary.TORCH: (2, 13), TrtLibrary.RTX: (1, 4),
    TrtLibrary.ORT: (1, 24),
}  # fmt: skip
_INSTALL = {
    TrtLibrary.TENSORRT: "pip install 'tensorrt>=10.13'",
    TrtLibrary.TORCH: "pip install torch-tensorrt",
    TrtLibrary.RTX: "pip install tensorrt-rtx-cu13",
    TrtLibrary.ORT: "pip install onnxruntime-gpu 'tensorrt-cu12<11'",
}


@dataclass(frozen=True, kw_only=True)
class TensorrtInstallation:
    """The installed parts of a library. `package` is the Python package's version.

    `program` is the path of trtexec, which only TensorRT has. The version is empty for a package
    that was installed without its metadata.
    """

    importable: bool = False
    package: str = ""
    program: str | None = None
    library: TrtLibrary = TrtLibrary.TENSORRT

    @property
    def too_old(self) -> bool:
        """Whether the package's version is known and below the minimum."""
        return bool(self.package) and _version_numbers(self.package) < self.library.minimum


def find_tensorrt(
    library: TrtLibrary = TrtLibrary.TENSORRT, which: Which = shutil.which
) -> TensorrtInstallation:
    """Find the package and the program without importing anything."""
    known = package_versions(*library.distributions)
    importable = util.find_spec(library.module) is not None
    return TensorrtInstallation(
        importable=importable,
        package=next(iter(known.values()), "") if importable else "",
        program=which(TRTEXEC) if library is TrtLibrary.TENSORRT else None,
        library=library,
    )


_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_DRIVER_VERSION = re.compile(r"Kernel Module\D*(?P<version>[0-9][0-9.]*)")


def read_host_versions(library: TrtLibrary, driver: CudaDriver | None = None) -> dict[str, str]:
    """Return the versions of a library and the driver on this host, and its first GPU."""
    driver = query_driver() if driver is None else driver
    module = sys.modules.get(library.module)  # loaded once an engine ran
    version = find_tensorrt(library).package or str(getattr(module, "__version__", ""))
    try:
        kernel = _DRIVER_VERSION.search(_DRIVER_FILE.read_text("utf-8", "replace"))
    except OSError:
        kernel = None
    found = {
        str(library): version,
        "gpu": str(driver.devices[0]) if driver.devices else "",
        "driver": kernel["version"] if kernel else "",
        "cuda driver": driver.cuda,
    }
    return {name: text for name, text in found.items() if text}


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def builder_readiness(installed: TensorrtInstallation) -> Readiness:
    """Return whether a builder is installed that is new enough."""
    library = installed.library
    if installed.too_old:
        minimum = ".".join(map(str, library.minimum))
        return Readiness(
            ready=False,
            reason=f"{library} {installed.package} is older than {minimum}",
            mend=library.install,
        )
    if not installed.importable and installed.program is None:
        program = " nor the trtexec program" if library is TrtLibrary.TENSORRT else ""
        return Readiness(
            ready=False,
            reason=f"{'neither ' if program else ''}the {library} package{program} is "
            f"{'' if program else 'not '}installed",
            mend=library.install,
        )
    return Readiness(ready=True, version=installed.package if installed.importable else TRTEXEC)


def tensorrt_readiness(driver: CudaDriver, installed: TensorrtInstallation) -> Readiness:
    """Return whether engines can be built and run here: with a device and a builder."""
    if not driver.devices:
        return Readiness(ready=False, reason=driver.reason, mend=DRIVER_FIX)
    return builder_readiness(installed)


def refuse_other_device(name: str, device: str) -> None:
    """Raise a MissingError for a device that the target of this name does not run on."""
    if device != "cuda":
        raise MissingError(
            f"{name} runs on cuda, not on {device}",
            hint=Hint("use ", Option("device", "cuda")),
            option="device",
            code=ErrorCode.UNSUPPORTED,
        )


def load_tensorrt(
    library: TrtLibrary = TrtLibrary.TENSORRT,
    asked: Callable[[], CudaDriver] = query_driver,
    *,
    builds_only: bool = False,
) -> ModuleType:
    """Import the package if the driver reports a device.

    `builds_only` promises that no engine is loaded: the builder of TensorRT-RTX needs no device.

    Raises:
        MissingError: no device, no package, a shared library that it needs is missing, or it is
            too old.
    """
    needs_device = library is not TrtLibrary.RTX or not builds_only
    if needs_device and not (driver := asked()).devices:
        raise MissingError(
            f"{library} needs a GPU: {driver.reason}", hint=DRIVER_FIX, code=ErrorCode.NO_DEVICE
        )
    try:
        trt = importlib.import_module(library.module)
    except ImportError as error:
        raise MissingError(
            f"{library} cannot be imported: {error}",
            hint=library.install,
            code=ErrorCode.NOT_INSTALLED,
        ) from error
    version = str(trt.__version__)
    if _version_numbers(version) < library.minimum:
        raise MissingError(
            f"{library} {version} is older than {'.'.join(map(str, library.minimum))}",
            hint=library.install,
            code=ErrorCode.NOT_INSTALLED,
        )
    return trt
