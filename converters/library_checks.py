"""Check whether the libraries that convert and run models work on this host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..core.installation import Check, CheckState
from .installed_packages import InstalledPackages, read_packages
from .library_probe import LibraryReport, probe_libraries
from .trt import trt_installation
from .trt.trt_installation import CudaDevice, CudaDriver, query_driver

ProbeLibraries: TypeAlias = Callable[[Iterable[str]], Mapping[str, LibraryReport]]
_COMPANIONS = (
    "torchvision",
    "torchaudio",
    "timm",
    "transformers",
)  # as `library_probe.py` knows them
_TORCH_BOUND = ("torchvision", "torchaudio")  # each release is compiled for one torch
_REPORTED = ("torch", "onnx", "openvino", "nncf", "nvidia-modelopt", "pillow", "numpy")


@dataclass(frozen=True, kw_only=True)
class LibraryHost:
    """The distributions, the driver and TensorRT that are here, and how to ask a library."""

    packages: InstalledPackages
    driver: CudaDriver
    tensorrt: trt_installation.TensorrtInstallation
    ask: ProbeLibraries = probe_libraries


def inspect_host() -> LibraryHost:
    """Look, without importing anything."""
    return LibraryHost(
        packages=read_packages(), driver=query_driver(), tensorrt=trt_installation.find_tensorrt()
    )


def check_libraries(host: LibraryHost) -> tuple[Check, ...]:
    """Driver and GPUs first, then each library, which is asked in a process of its own."""
    trt = ["tensorrt"] if host.tensorrt.importable else []
    beside = [name for name in _COMPANIONS if name in host.packages.versions]
    answers = host.ask(["onnxruntime", "openvino", *trt, *beside])
    return (
        *check_driver(host.driver, _cuda_majors(host.packages)),
        *check_tensorrt(host.tensorrt, answers.get("tensorrt")),
        *_check_providers(answers.get("onnxruntime", LibraryReport()), host),
        _check_openvino(answers.get("openvino", LibraryReport()), host.packages),
        *(_check_version(name, host.packages) for name in _REPORTED),
        *_check_imports(beside, answers, host.packages),
    )


def _check_imports(
    names: Sequence[str], answers: Mapping[str, LibraryReport], packages: InstalledPackages
) -> Iterator[Check]:
    """Whether the packages beside torch can be imported: one for another torch often cannot.

    Of several that cannot, the first is mended first: transformers imports the others.
    """
    first = ""
    for name in names:
        answer = answers.get(name, LibraryReport())
        version = packages.versions[name]
        if answer.said and answer.said[0].works:
            yield Check(name=name, state=CheckState.OK, told=version)
            continue
        reason = answer.said[0].told if answer.said else answer.failure or "no reason"
        first = first or _import_fix(name, packages)
        told = f"{name} {version} is installed and cannot be imported: {reason}"
        yield Check(name=name, state=CheckState.BROKEN, told=told, mend=first)


def _import_fix(name: str, packages: InstalledPackages) -> str:
    """The command that replaces a package by the one that fits the torch that is here."""
    torch = packages.versions.get("torch", "").partition("+")[0]
    held = f" torch=={torch}" if name in _TORCH_BOUND and torch else ""
    return f"pip uninstall -y {name} && pip install {name}{held}"


def _cuda_majors(packages: InstalledPackages) -> list[int]:
    """The CUDA majors that torch and TensorRT were installed for."""
    found = [packages.cuda.get("torch", "").partition(".")[0]]
    found += [
        name.partition("-cu")[2][:2] for name in packages.versions if name.startswith("tensorrt-cu")
    ]
    return [int(major) for major in found if major.isdecimal()]


def _check_providers(answer: LibraryReport, host: LibraryHost) -> tuple[Check, ...]:
    """Which execution providers load; one that needs a GPU is only amiss where there is one."""
    if not answer.said:
        packages = ("onnxruntime-gpu", "onnxruntime")
        return (_probe_failure("ONNX Runtime", answer.failure, host.packages, packages),)
    loaded = [said.name for said in answer.said if said.works]
    found = [
        Check(
            name="ONNX Runtime",
            state=CheckState.OK if loaded else CheckState.BROKEN,
            told=f"loads {', '.join(loaded) or 'no provider at all'}",
            mend="" if loaded else "pip install --force-reinstall onnxruntime",
        )
    ]
    for said in answer.said:
        if not said.works:
            state = CheckState.WARN if host.driver.devices else CheckState.MISSING
            found.append(Check(name=said.name, state=state, told=said.told))
    if answer.failure:  # after it had said something: the provider that was next ended it
        found.append(Check(name="ONNX Runtime", state=CheckState.BROKEN, told=answer.failure))
    return tuple(found)


def _check_openvino(answer: LibraryReport, packages: InstalledPackages) -> Check:
    if not answer.said:
        return _probe_failure("OpenVINO", answer.failure, packages, ("openvino",))
    devices = ", ".join(f"{said.name} ({said.told})" for said in answer.said)
    if answer.failure:
        told = f"devices: {devices}; then {answer.failure}"
        return Check(name="OpenVINO", state=CheckState.BROKEN, told=told)
    return Check(name="OpenVINO", state=CheckState.OK, told=f"devices: {devices}")


def _probe_failure(
    name: str, reason: str, packages: InstalledPackages, names: Sequence[str]
) -> Check:
    """A library that said nothing: it is not installed, or it is broken."""
    here = next((one for one in names if one in packages.versions), None)
    if here is None:
        mend = f"pip install {names[-1]}"
        return Check(name=name, state=CheckState.MISSING, told="not installed", mend=mend)
    told = f"{here} {packages.versions[here]} is installed and does not answer: "
    mend = f"pip install --force-reinstall {here}"
    return Check(name=name, state=CheckState.BROKEN, told=told + (reason or "no reason"), mend=mend)


def _check_version(name: str, packages: InstalledPackages) -> Check:
    """What is installed of what modelc works with."""
    if name in packages.versions:
        return Check(name=name, state=CheckState.OK, told=packages.versions[name])
    return Check(
        name=name, state=CheckState.MISSING, told="not installed", mend=f"pip install {name}"
    )


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
        mend = trt_installation.DRIVER_FIX
        return (Check(name="CUDA driver", state=CheckState.MISSING, told=told, mend=mend),)
    return (_check_driver_version(driver, max(majors, default=0)), *_check_devices(driver))


def _check_driver_version(driver: CudaDriver, major: int) -> Check:
    floor, branch = _BRANCHES.get(major, (0, ""))
    told = f"runs CUDA up to {driver.cuda}"
    if driver.version is not None and driver.version < floor:
        return Check(
            name="CUDA driver",
            state=CheckState.BROKEN,
            told=f"{told}; what is installed is for CUDA {major} and needs {branch} or newer",
            mend=f"install NVIDIA driver {branch} or newer, or the CUDA 12 packages",
        )
    newest = max(_BRANCHES)
    if not major and driver.version is not None and driver.version < _BRANCHES[newest][0]:
        told += f"; TensorRT 11 for CUDA {newest} needs {_BRANCHES[newest][1]}, take tensorrt-cu12"
    return Check(name="CUDA driver", state=CheckState.OK, told=told)


def _check_devices(driver: CudaDriver) -> tuple[Check, ...]:
    if not driver.devices:
        return (
            Check(
                name="GPU",
                state=CheckState.MISSING,
                told=driver.reason,
                mend=trt_installation.DRIVER_FIX,
            ),
        )
    return tuple(_check_device(device) for device in driver.devices)


def _check_device(device: CudaDevice) -> Check:
    told = f"{device}, {device.memory / _GIB:.0f} GiB"
    if device.capability >= TURING:
        return Check(name=f"GPU {device.index}", state=CheckState.OK, told=told)
    return Check(
        name=f"GPU {device.index}",
        state=CheckState.WARN,
        told=f"{told}: older than Turing (7.5), the first that TensorRT supports",
        mend="build on a newer GPU, or use ONNX Runtime's CUDA provider",
    )


def check_tensorrt(
    installed: trt_installation.TensorrtInstallation, answer: LibraryReport | None
) -> tuple[Check, ...]:
    """TensorRT's package, imported in another process, and trtexec.

    Args:
        installed: what there is.
        answer: what the package said when it was imported; None where it is not installed.
    """
    return (_check_package(installed, answer), _check_trtexec(installed))


def _check_package(
    installed: trt_installation.TensorrtInstallation, answer: LibraryReport | None
) -> Check:
    if not installed.importable or answer is None:
        return Check(
            name="tensorrt",
            state=CheckState.MISSING,
            told="the Python package is not installed",
            mend=trt_installation.INSTALL_FIX,
        )
    said = next(iter(answer.said), None)
    if said is None or not said.works:
        reason = said.told if said is not None else answer.failure
        return Check(
            name="tensorrt",
            state=CheckState.BROKEN,
            told=f"it is installed and cannot be imported: {reason}",
            mend="pip install --force-reinstall "
            + trt_installation.INSTALL_FIX.removeprefix("pip install "),
        )
    if installed.too_old:
        return Check(
            name="tensorrt",
            state=CheckState.WARN,
            told=f"{said.told} is older than 10.13, the first that modelc works with",
            mend=trt_installation.INSTALL_FIX,
        )
    return Check(name="tensorrt", state=CheckState.OK, told=said.told)


def _check_trtexec(installed: trt_installation.TensorrtInstallation) -> Check:
    if installed.program is None:
        return Check(
            name=trt_installation.TRTEXEC,
            state=CheckState.MISSING,
            told="not on the PATH; it is only needed where the Python package is not",
        )
    return Check(name=trt_installation.TRTEXEC, state=CheckState.OK, told=installed.program)
