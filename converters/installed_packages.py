"""Versions of installed packages, and the conflicts and unmet requirements among them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from pathlib import Path

from ..core.installation import DISTRIBUTION, Check, CheckState

# each of them writes the folder `onnxruntime`
_RUNTIMES = (
    "onnxruntime", "onnxruntime-directml", "onnxruntime-gpu", "onnxruntime-openvino",
    "onnxruntime-qnn", "onnxruntime-training",
)  # fmt: skip
_MAJOR = re.compile(r"^(?P<library>.+)-cu(?P<major>1\d)(?P<part>-.+)?$")
# Prefixes of packages whose requirements are checked. The NVIDIA packages that they pin are
# libraries that they were compiled against.
_RELEVANT = (
    DISTRIBUTION, "nncf", "nvidia-modelopt", "onnx", "openvino", "tensorrt", "torch",
)  # fmt: skip
_PINNED = ("nvidia-", "tensorrt")
_CUDA = re.compile(r"^cuda(?:_version)?\b[^=]*=\s*['\"]([\d.]+)['\"]", flags=re.MULTILINE)
_BUILT = {"torch": "version.py", "onnxruntime": "capi/build_and_package_info.py"}


@dataclass(frozen=True, kw_only=True)
class InstalledPackages:
    """The distributions of this Python: versions by name, and their requirements.

    `cuda` is the CUDA version of each library's build, without CPU builds. Names are normalised:
    lower case with dashes.
    """

    versions: Mapping[str, str]
    needs: Mapping[str, Sequence[str]]
    cuda: Mapping[str, str]


def read_packages() -> InstalledPackages:
    """Read the metadata of all distributions without importing them."""
    found: dict[str, metadata.Distribution] = {}
    for one in metadata.distributions():
        found.setdefault(_normal_name(one.metadata["Name"]), one)  # the first one is imported
    return InstalledPackages(
        versions={name: one.version for name, one in found.items()},
        needs={
            name: tuple(one.requires or ())
            for name, one in found.items()
            if name.startswith(_RELEVANT)
        },
        cuda={name: cuda for name, file in _BUILT.items() if (cuda := _cuda_build(name, file))},
    )


def _normal_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _cuda_build(package: str, file: str) -> str:
    """Return the CUDA version in a package's version file; empty for a CPU build."""
    spec = util.find_spec(package)
    path = Path(spec.origin).parent / file if spec is not None and spec.origin else None
    if path is None or not path.is_file():
        return ""
    match = _CUDA.search(path.read_text("utf-8"))
    return match.group(1) if match else ""


def find_clashes(found: InstalledPackages) -> tuple[Check, ...]:
    """Return every clash, or one check without findings."""
    checks = [
        check
        for find in (_namesake_clash, _runtime_clashes, _cuda_clashes, _cuda_mixtures)
        for check in find(found)
    ]
    return tuple(checks) or (Check(name="clashes", state=CheckState.OK, detail="none"),)


def _namesake_clash(found: InstalledPackages) -> Iterator[Check]:
    """Report an unrelated project named `modelc`, which installs the same command."""
    if {"modelc", DISTRIBUTION} <= set(found.versions):
        yield Check(
            name="modelc",
            state=CheckState.BROKEN,
            detail=f"modelc {found.versions['modelc']} is not {DISTRIBUTION} (another project has "
            "that name on the package index, or it is an install from before the renaming), and "
            "both write the command modelc",
            fix="pip uninstall -y modelc, then install modelc from its repository again",
        )


def _runtime_clashes(found: InstalledPackages) -> Iterator[Check]:
    present = [name for name in _RUNTIMES if name in found.versions]
    if len(present) > 1:
        yield Check(
            name="onnxruntime",
            state=CheckState.BROKEN,
            detail=f"{' and '.join(present)} are both installed and overwrite one another's files",
            fix=f"pip uninstall -y {' '.join(present)} && pip install {present[-1]}",
        )


def _cuda_clashes(found: InstalledPackages) -> Iterator[Check]:
    """Report libraries for two CUDA majors: `nvidia-cudnn-cu12` and `-cu13` share files."""
    libraries: dict[str, dict[str, str]] = {}
    for name in found.versions:
        match = _MAJOR.match(name)
        if match and name.startswith(_PINNED):
            library = match["library"] + (match["part"] or "")
            libraries.setdefault(library, {})[match["major"]] = name
    for library, majors in libraries.items():
        if len(majors) > 1:
            names = [majors[major] for major in sorted(majors)]
            yield Check(
                name=library,
                state=CheckState.BROKEN,
                detail=f"{' and '.join(names)} are installed and overwrite one another's files",
                fix=f"pip uninstall -y {' '.join(names)}, then install torch's",
            )


def _cuda_mixtures(found: InstalledPackages) -> Iterator[Check]:
    """Report libraries for two CUDA majors that must work in one process."""
    torch, runtime = (
        found.cuda.get(name, "").partition(".")[0] for name in ("torch", "onnxruntime")
    )
    if not torch:
        return
    majors = {
        m["major"]
        for name in found.versions
        if name.startswith("tensorrt") and (m := _MAJOR.match(name))
    }
    if majors and torch not in majors:
        yield Check(
            name="tensorrt and torch",
            state=CheckState.BROKEN,
            detail=f"TensorRT is for CUDA {' and '.join(sorted(majors))}, torch for CUDA {torch}; "
            "a process can load only one",
            fix=f"pip install tensorrt-cu{torch}, and uninstall the other",
        )
    if runtime and runtime != torch:
        yield Check(
            name="onnxruntime and torch",
            state=CheckState.WARN,
            detail=f"onnxruntime-gpu is built for CUDA {runtime}, torch for CUDA {torch}: its CUDA "
            "provider does not find its libraries among torch's",
            fix=f"pip install nvidia-cudnn-cu{runtime} in an environment of its own, or run it on "
            "the CPU",
        )


def check_requirements(found: InstalledPackages, own: Sequence[str]) -> tuple[Check, ...]:
    """Report versions that break a requirement of a package that modelc uses.

    Args:
        found: the installed packages.
        own: modelc's own requirements.
    """
    checks: list[Check] = []
    for name, needs in {**found.needs, DISTRIBUTION: own}.items():
        broken = [
            text
            for need in needs
            if (text := _requirement_fault(need, found, optional=name != DISTRIBUTION))
        ]
        if broken:
            grave = name == DISTRIBUTION or any(text.startswith(_PINNED) for text in broken)
            names = [text.partition(" ")[0] for text in broken] if name == DISTRIBUTION else [name]
            checks.append(
                Check(
                    name=f"requirements of {'modelc' if name == DISTRIBUTION else name}",
                    state=CheckState.BROKEN if grave else CheckState.WARN,
                    detail="; ".join(broken),
                    fix=f"pip install --upgrade {' '.join(names)}",
                )
            )
    others = len(found.needs.keys() - {DISTRIBUTION})
    detail = f"met: {len(own)} of modelc's own, and those of {others} packages that it works with"
    return tuple(checks) or (Check(name="requirements", state=CheckState.OK, detail=detail),)


def _requirement_fault(need: str, found: InstalledPackages, *, optional: bool) -> str:
    """Return `torch 2.9 is installed, >=2.11 is required`; empty if the requirement is met.

    A requirement whose marker is false, or of an extra whose package is absent, counts as met; a
    package missing from another one's requirements is not modelc's concern.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(need)
    except InvalidRequirement:
        return ""
    version = found.versions.get(_normal_name(requirement.name))
    marker = requirement.marker
    extra = marker is not None and "extra" in str(marker)
    if marker is not None and not extra and not marker.evaluate():
        return ""
    if (version is None and (optional or extra)) or (extra and optional):
        return ""
    required = f"{requirement.specifier or 'any version'} is required"
    if version is None:
        return f"{requirement.name} is not installed, {required}"
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"{requirement.name} {version} is installed, {required}"


def package_versions(*packages: str) -> dict[str, str]:
    """Return installed versions by distribution name, without absent ones."""
    return {name: version for name in packages if (version := _package_version(name)) is not None}


@cache
def _package_version(package: str) -> str | None:
    """Read a version once per process: parsing metadata is slow, and every step asks."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
