"""Versions of Python, platform, processor and packages.

Manifests record them, and cache keys depend on them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from ...converters.installed_packages import package_versions
from ...converters.trt.trt_installation import query_driver
from ...core.records import sha256_of

_TOOL_PREFIXES = ("__editable__", "_virtualenv")  # files that installers put beside packages


def list_loaded_packages() -> dict[str, str]:
    """Return `describe_installed` for each loaded distribution that is not part of the key."""
    keyed = set(describe_environment())
    tops = {name.partition(".")[0] for name in list(sys.modules)}
    owners = _distributions_by_module()
    own = set(owners.get("modelc", ()))
    names = {dist for top in tops for dist in owners.get(top, ())} - keyed - own
    names |= {top for top in tops if top not in owners and _is_stray_module(top)}
    return {name: _version_when_loaded(name) for name in sorted(names)}


@functools.cache
def _version_when_loaded(name: str) -> str:
    """Return the description from first use, as this process keeps what it loaded."""
    return describe_installed(name)


@functools.cache
def _distributions_by_module() -> Mapping[str, Sequence[str]]:
    """Map top-level modules to distributions; slow, as it reads the metadata of all of them."""
    return metadata.packages_distributions()


def describe_installed(name: str) -> str:
    """Return the version and a digest of the file list, which may change within one version.

    A stray module in the packages folder, which belongs to no distribution, has no version. Empty
    if the name is not installed.
    """
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return _digest_stray_module(name)
    listed = found.read_text("RECORD") or ""
    return f"{found.version} {hashlib.sha256(listed.encode()).hexdigest()[:16]}"


def _is_stray_module(top: str) -> bool:
    """Whether a loaded module lies in the packages folder but belongs to no distribution.

    Only direct children count: a package put deeper ones on the path.
    """
    module = sys.modules.get(top)
    if module is None or top.startswith(_TOOL_PREFIXES):
        return False
    file = getattr(module, "__file__", None)
    places = [file] if isinstance(file, str) else list(getattr(module, "__path__", ()))
    found = (place.parent if place.stem == "__init__" else place for place in map(Path, places))
    return any(is_packages_folder(place.parent) for place in found)


def _digest_stray_module(top: str) -> str:
    """Return a digest of all files of a stray module; empty if there is none."""
    folders = [one for one in sys.path if is_packages_folder(Path(one))]
    found = PathFinder.find_spec(top, folders) if top.isidentifier() else None
    if found is None:
        return ""
    digest = hashlib.sha256()
    roots = [Path(one) for one in found.submodule_search_locations or ()]
    for root in roots or [Path(found.origin or "")]:
        for file in [root] if root.is_file() else sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                name = file.relative_to(root.parent).as_posix()
                digest.update(f"{name}\0{sha256_of(file)}\n".encode())
    return f"unversioned {digest.hexdigest()[:16]}"


CPUINFO_FILE = Path("/proc/cpuinfo")
_VECTOR_FLAGS = re.compile(r"^(avx|amx|fma|f16c|sse4|neon|asimd|sve|sme|bf16|i8mm|fphp)")


def describe_machine(cpuinfo: Path = CPUINFO_FILE) -> str:
    """Describe Python, the system and the CPU features by which libraries select kernels.

    If the CPU features are unavailable, the name of the processor replaces them.
    """
    python = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
    return "\n".join((python, platform.system(), platform.machine(), _describe_processor(cpuinfo)))


def _describe_processor(cpuinfo: Path) -> str:
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    flags: set[str] = set()
    for line in re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.M):
        flags.update(line.split())
    return " ".join(sorted(filter(_VECTOR_FLAGS.match, flags))) or platform.processor()


def describe_gpus() -> str:
    """Describe the driver and the devices, for steps that run on a GPU."""
    driver = query_driver()
    return f"{driver.version} {', '.join(map(str, driver.devices))} {driver.reason}"


_SYSTEM_FOLDERS = ("/proc/", "/sys/", "/dev/")
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_STANDARD_FOLDERS = tuple(
    {
        place + os.sep
        for name in ("stdlib", "platstdlib", "scripts")
        for place in (sysconfig.get_path(name), os.path.realpath(sysconfig.get_path(name)))
    }
)
_ZIPPED_LIBRARY = f"{os.sep}python{sys.version_info.major}{sys.version_info.minor}.zip"


def is_packages_folder(folder: Path) -> bool:
    """Whether packages are installed directly in the folder."""
    return folder.name in _PACKAGE_FOLDERS


def is_installed_code(path: str) -> bool:
    """Whether the path belongs to Python, an installed package or the system, judged by name."""
    return (
        path.startswith((*_SYSTEM_FOLDERS, *_STANDARD_FOLDERS))
        or path.endswith(_ZIPPED_LIBRARY)
        or any(f"{os.sep}{name}{os.sep}" in path for name in _PACKAGE_FOLDERS)
    )


_RECORDED_PACKAGES = (
    "torch", "onnx", "onnxscript", "onnxruntime-gpu", "onnxruntime", "openvino", "nncf",
    "nvidia-modelopt", "tensorrt", "numpy",
)  # fmt: skip
NOT_PACKAGES = ("python", "platform")


def packages() -> dict[str, str]:
    """Return the installed versions of packages that convert, quantize and run models."""
    return package_versions(*_RECORDED_PACKAGES)


def describe_environment() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **packages(),
    }
