"""Check whether the libraries that convert and run models work on this host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from ..core.installation import Check, CheckState
from .installed_packages import InstalledPackages, read_packages
from .library_probe import PACKAGES, LibraryReport, probe_libraries
from .trt import trt_installation
from .trt.lean_runtime import (
    LEAN_DISTRIBUTIONS,
    is_lean_runtime_installed,
    lean_install_command,
)
from .trt.trt_installation import (
    CudaDriver,
    TensorrtInstallation,
    TrtLibrary,
    find_tensorrt,
    query_driver,
)

ProbeLibraries: TypeAlias = Callable[[Iterable[str]], Mapping[str, LibraryReport]]
_TORCH_BOUND = ("torchvision", "torchaudio")  # each release is compiled for one torch
_REPORTED = ("torch", "onnx", "openvino", "nncf", "nvidia-modelopt", "pillow", "numpy")


@dataclass(frozen=True, kw_only=True)
class LibraryHost:
    """The installed distributions, the driver and TensorRT, and how to probe libraries.

    `lean` is whether the lean runtime of version-compatible engines is there.
    """

    packages: InstalledPackages
    driver: CudaDriver
    tensorrt: TensorrtInstallation
    rtx: TensorrtInstallation = field(
        default_factory=lambda: TensorrtInstallation(library=TrtLibrary.RTX)
    )
    ask: ProbeLibraries = probe_libraries
    lean: bool = False


def inspect_host() -> LibraryHost:
    """Inspect this host without importing a library."""
    return LibraryHost(
        packages=read_packages(),
        driver=query_driver(),
        tensorrt=find_tensorrt(),
        rtx=find_tensorrt(TrtLibrary.RTX),
        lean=is_lean_runtime_installed(),
    )


def check_libraries(host: LibraryHost) -> tuple[Check, ...]:
    """Check the driver and GPUs, then each library, which is probed in a child process."""
    engines = (host.tensorrt, host.rtx)
    trt = [str(one.library) for one in engines if one.importable]
    beside = [name for name in PACKAGES if name in host.packages.versions]
    answers = host.ask(["onnxruntime", "openvino", *trt, *beside])
    return (
        *_check_driver(host.driver, _cuda_majors(host.packages)),
        *(_check_package(one, answers.get(str(one.library))) for one in engines),
        *_check_lean_runtime(host),
        _check_trtexec(host.tensorrt),
        *_check_providers(answers.get("onnxruntime", LibraryReport()), host),
        _check_openvino(answers.get("openvino", LibraryReport()), host.packages),
        *(_check_version(name, host.packages) for name in _REPORTED),
        *_check_imports(beside, answers, host.packages),
    )


def _check_imports(
    names: Sequence[str], answers: Mapping[str, LibraryReport], packages: InstalledPackages
) -> Iterator[Check]:
    """Check whether packages built on torch can be imported: one for another torch often cannot.

    timm and transformers import torchvision and torchaudio: a broken one of these is fixed first.
    """
    cause = ""
    for name in names:
        answer = answers.get(name, LibraryReport())
        version = packages.versions[name]
        if answer.said and answer.said[0].works:
            yield Check(name=name, state=CheckState.OK, detail=version)
            continue
        reason = answer.said[0].detail if answer.said else answer.failure or "no reason"
        detail = f"{name} {version} is installed and cannot be imported: {reason}"
        fix = f"pip uninstall -y {name} && pip install {name}"
        if name in _TORCH_BOUND:
            torch = packages.versions.get("torch", "").partition("+")[0]
            fix += f" torch=={torch}" if torch else ""
            cause = cause or fix
        else:
            fix = cause or fix
        yield Check(name=name, state=CheckState.BROKEN, detail=detail, fix=fix)


def _cuda_majors(packages: InstalledPackages) -> list[int]:
    """Return the CUDA majors that torch and TensorRT were installed for."""
    found = [packages.cuda.get("torch", "").partition(".")[0]]
    found += [
        name.partition("-cu")[2][:2] for name in packages.versions if name.startswith("tensorrt-cu")
    ]
    return [int(major) for major in found if major.isdecimal()]


def _check_providers(answer: LibraryReport, host: LibraryHost) -> tuple[Check, ...]:
    """Check which execution providers load; without a GPU, one that needs it is only missing."""
    names = ("onnxruntime-gpu", "onnxruntime")
    if not answer.said:
        return (_probe_failure("ONNX Runtime", answer.failure, host.packages, names),)
    loaded = [said.name for said in answer.said if said.works]
    found = [
        Check(
            name="ONNX Runtime",
            state=CheckState.OK if loaded else CheckState.BROKEN,
            detail=f"loads {', '.join(loaded) or 'no provider'}",
            fix="" if loaded else _reinstall_command(host.packages, names),
        )
    ]
    for said in answer.said:
        if not said.works:
            state = CheckState.WARN if host.driver.devices else CheckState.MISSING
            found.append(Check(name=said.name, state=state, detail=said.detail))
    if answer.failure:  # the next provider ended the probe
        found.append(Check(name="ONNX Runtime", state=CheckState.BROKEN, detail=answer.failure))
    return tuple(found)


def _check_openvino(answer: LibraryReport, packages: InstalledPackages) -> Check:
    if not answer.said:
        return _probe_failure("OpenVINO", answer.failure, packages, ("openvino",))
    devices = ", ".join(f"{said.name} ({said.detail})" for said in answer.said)
    if answer.failure:
        detail = f"devices: {devices}; then {answer.failure}"
        return Check(name="OpenVINO", state=CheckState.BROKEN, detail=detail)
    return Check(name="OpenVINO", state=CheckState.OK, detail=f"devices: {devices}")


def _probe_failure(
    name: str, reason: str, packages: InstalledPackages, names: Sequence[str]
) -> Check:
    """Report a library whose probe returned nothing: it is not installed, or broken."""
    here = next((one for one in names if one in packages.versions), None)
    if here is None:
        return replace(_check_version(names[-1], packages), name=name)
    detail = f"{here} {packages.versions[here]} is installed and its probe failed: "
    fix = _reinstall_command(packages, names)
    return Check(
        name=name, state=CheckState.BROKEN, detail=detail + (reason or "no reason"), fix=fix
    )


def _reinstall_command(packages: InstalledPackages, names: Sequence[str]) -> str:
    """Return the command that reinstalls the first installed package in its version."""
    found = [f"{name}=={packages.versions[name]}" for name in names if name in packages.versions]
    return f"pip install --force-reinstall --no-deps {(found or names[-1:])[0]}"


def _check_version(name: str, packages: InstalledPackages) -> Check:
    """Report the version of a package that modelc uses."""
    if name in packages.versions:
        return Check(name=name, state=CheckState.OK, detail=packages.versions[name])
    return Check(
        name=name, state=CheckState.MISSING, detail="not installed", fix=f"pip install {name}"
    )


_TURING = (7, 5)  # compute capability
_GIB = 2**30
# CUDA major -> the first cuDriverGetVersion of the driver branch that its packages need, and that.
_BRANCHES = {13: (13000, "r580"), 12: (12020, "r535")}


def _check_driver(driver: CudaDriver, majors: Iterable[int]) -> tuple[Check, ...]:
    """Check the driver against what is installed for these CUDA majors, and every GPU."""
    check = partial(Check, name="CUDA driver")
    if driver.version is None:
        detail, fix = driver.reason or "none", trt_installation.DRIVER_FIX
        return (check(state=CheckState.MISSING, detail=detail, fix=fix),)
    major, newest = max(majors, default=0), max(_BRANCHES)
    floor, branch = _BRANCHES.get(major, (0, ""))
    detail = f"runs CUDA up to {driver.cuda}"
    if driver.version < floor:
        detail += f"; what is installed is for CUDA {major} and needs {branch} or newer"
        fix = f"install NVIDIA driver {branch} or newer, or the CUDA 12 packages"
        return (check(state=CheckState.BROKEN, detail=detail, fix=fix), *_check_devices(driver))
    floor, branch = _BRANCHES[newest]
    if not major and driver.version < floor:
        detail += f"; TensorRT 11 for CUDA {newest} needs {branch}; install tensorrt-cu12"
    return (check(state=CheckState.OK, detail=detail), *_check_devices(driver))


def _check_devices(driver: CudaDriver) -> Iterator[Check]:
    if not driver.devices:
        fix = trt_installation.DRIVER_FIX
        yield Check(name="GPU", state=CheckState.MISSING, detail=driver.reason, fix=fix)
    for device in driver.devices:
        check = partial(Check, name=f"GPU {device.index}")
        detail = f"{device}, {device.memory / _GIB:.0f} GiB"
        if device.capability >= _TURING:
            yield check(state=CheckState.OK, detail=detail)
        else:
            detail += ": older than Turing (7.5), the first that TensorRT supports"
            fix = "build on a newer GPU, or use ONNX Runtime's CUDA provider"
            yield check(state=CheckState.WARN, detail=detail, fix=fix)


def _check_package(installed: TensorrtInstallation, answer: LibraryReport | None) -> Check:
    library = installed.library
    check, fix = partial(Check, name=str(library)), library.install
    if not installed.importable or answer is None:
        detail = "the Python package is not installed"
        return check(state=CheckState.MISSING, detail=detail, fix=fix)
    said = next(iter(answer.said), None)
    if said is None or not said.works:
        reason = said.detail if said is not None else answer.failure
        detail = f"it is installed and cannot be imported: {reason}"
        fix = fix.replace("install", "install --force-reinstall", 1)
        return check(state=CheckState.BROKEN, detail=detail, fix=fix)
    if installed.too_old:
        minimum = ".".join(map(str, library.minimum))
        detail = f"{said.detail} is older than {minimum}, the first that modelc works with"
        return check(state=CheckState.WARN, detail=detail, fix=fix)
    return check(state=CheckState.OK, detail=said.detail)


def _check_lean_runtime(host: LibraryHost) -> Iterator[Check]:
    """Check whether version-compatible engines can be built, where TensorRT is installed."""
    if not host.tensorrt.importable:
        return
    check = partial(Check, name="lean runtime")
    version, known = host.tensorrt.package, host.packages.versions
    lean = next((known[name] for name in LEAN_DISTRIBUTIONS if name in known), "")
    fix = lean_install_command(version, known)
    if lean and version and lean != version:
        detail = f"{lean} is not of TensorRT {version}, which --version-compatible requires"
        yield check(state=CheckState.WARN, detail=detail, fix=fix)
    elif lean or host.lean:
        yield check(state=CheckState.OK, detail=lean or "a library of the system")
    else:
        detail = "not installed; only --version-compatible requires it"
        yield check(state=CheckState.MISSING, detail=detail, fix=fix)


def _check_trtexec(installed: TensorrtInstallation) -> Check:
    if installed.program is None:
        return Check(
            name=trt_installation.TRTEXEC,
            state=CheckState.MISSING,
            detail="not on the PATH; it is only required without the Python package",
        )
    return Check(name=trt_installation.TRTEXEC, state=CheckState.OK, detail=installed.program)
