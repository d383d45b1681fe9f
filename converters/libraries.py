"""What the libraries that convert and run models can do on this host, or why they cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..core.diagnosis import Check, State
from .asking import LibraryReport
from .packages import InstalledPackages, read_packages
from .trt import package
from .trt.driver import CudaDriver, query_driver
from .trt.health import check_driver, check_tensorrt

ProbeLibraries: TypeAlias = Callable[[Iterable[str]], Mapping[str, LibraryReport]]
_COMPANIONS = ("torchvision", "torchaudio", "timm", "transformers")  # as `asked.py` knows them
_TORCH_BOUND = ("torchvision", "torchaudio")  # each release is compiled for one torch
_REPORTED = ("torch", "onnx", "openvino", "nncf", "nvidia-modelopt", "pillow", "numpy")


@dataclass(frozen=True, kw_only=True)
class LibraryHost:
    """The distributions, the driver and TensorRT that are here, and how to ask a library."""

    packages: InstalledPackages
    driver: CudaDriver
    tensorrt: package.TensorrtInstallation
    ask: ProbeLibraries = ask


def inspect_host() -> LibraryHost:
    """Look, without importing anything."""
    return LibraryHost(
        packages=read_packages(), driver=query_driver(), tensorrt=package.find_tensorrt()
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
            yield Check(name=name, state=State.OK, told=version)
            continue
        reason = answer.said[0].told if answer.said else answer.failure or "no reason"
        first = first or _import_fix(name, packages)
        told = f"{name} {version} is installed and cannot be imported: {reason}"
        yield Check(name=name, state=State.BROKEN, told=told, mend=first)


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
            state=State.OK if loaded else State.BROKEN,
            told=f"loads {', '.join(loaded) or 'no provider at all'}",
            mend="" if loaded else "pip install --force-reinstall onnxruntime",
        )
    ]
    for said in answer.said:
        if not said.works:
            state = State.WARN if host.driver.devices else State.MISSING
            found.append(Check(name=said.name, state=state, told=said.told))
    if answer.failure:  # after it had said something: the provider that was next ended it
        found.append(Check(name="ONNX Runtime", state=State.BROKEN, told=answer.failure))
    return tuple(found)


def _check_openvino(answer: LibraryReport, packages: InstalledPackages) -> Check:
    if not answer.said:
        return _probe_failure("OpenVINO", answer.failure, packages, ("openvino",))
    devices = ", ".join(f"{said.name} ({said.told})" for said in answer.said)
    if answer.failure:
        told = f"devices: {devices}; then {answer.failure}"
        return Check(name="OpenVINO", state=State.BROKEN, told=told)
    return Check(name="OpenVINO", state=State.OK, told=f"devices: {devices}")


def _probe_failure(
    name: str, reason: str, packages: InstalledPackages, names: Sequence[str]
) -> Check:
    """A library that said nothing: it is not installed, or it is broken."""
    here = next((one for one in names if one in packages.versions), None)
    if here is None:
        mend = f"pip install {names[-1]}"
        return Check(name=name, state=State.MISSING, told="not installed", mend=mend)
    told = f"{here} {packages.versions[here]} is installed and does not answer: "
    mend = f"pip install --force-reinstall {here}"
    return Check(name=name, state=State.BROKEN, told=told + (reason or "no reason"), mend=mend)


def _check_version(name: str, packages: InstalledPackages) -> Check:
    """What is installed of what modelc works with."""
    if name in packages.versions:
        return Check(name=name, state=State.OK, told=packages.versions[name])
    return Check(name=name, state=State.MISSING, told="not installed", mend=f"pip install {name}")
