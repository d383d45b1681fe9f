"""`modelc doctor`: what this environment can build, what is missing and what is broken."""

from __future__ import annotations

import platform
import re
import shutil
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from .. import __version__
from ..converters.installed_packages import check_requirements, find_clashes
from ..converters.library_checks import LibraryHost, check_libraries, inspect_host
from ..converters.quantizers.quantizer_registry import QUANTIZERS
from ..converters.registry import TARGETS
from ..core.contract import Quantizer, Readiness, Target
from ..core.installation import (
    DISTRIBUTION,
    Buildable,
    Check,
    CheckState,
    Diagnosis,
    readiness_text,
)
from ..core.records import size_text
from ..runtimes.outside_programs import check_programs

_CPUINFO = Path("/proc/cpuinfo")
_PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"  # where modelc runs from its checkout
_MIN_FREE_SPACE = 5 * 10**9  # bytes; a BERT-sized model in all formats takes about two
# CPU flags with what they are called; any of them multiplies 8-bit integers.
_INT8_FLAGS = {
    "amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx_vnni": "AVX VNNI",
    "asimddp": "dot product", "i8mm": "I8MM",
}  # fmt: skip
_BF16_FLAGS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512", "bf16": "BF16"}


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Everything that the doctor checks. `folders` are where files are written, by name.

    `cpu` is the text of Linux's /proc/cpuinfo, empty elsewhere; `own` are modelc's requirements.
    """

    host: LibraryHost
    cpu: str
    own: tuple[str, ...]
    folders: Mapping[str, Path] = field(default_factory=dict)


def collect_surroundings(folders: Mapping[str, Path]) -> Surroundings:
    """This host, this Python."""
    return Surroundings(
        host=inspect_host(),
        cpu=_CPUINFO.read_text("utf-8", "replace") if _CPUINFO.is_file() else "",
        own=own_requirements(),
        folders=folders,
    )


def own_requirements(name: str = DISTRIBUTION, source: Path = _PYPROJECT) -> tuple[str, ...]:
    """Modelc's requirements, from its metadata or, in a checkout, from its pyproject.toml."""
    try:
        return tuple(metadata.requires(name) or ())
    except metadata.PackageNotFoundError:
        if not source.is_file():
            return ()
        project = tomllib.loads(source.read_text("utf-8")).get("project", {})
        return tuple(project.get("dependencies", ()))


def examine(
    found: Surroundings,
    targets: Sequence[Target] = TARGETS,
    quantizers: Sequence[Quantizer] = QUANTIZERS,
) -> Diagnosis:
    """Check everything; libraries are imported in child processes, as they may crash."""
    system = " ".join(filter(None, (platform.system(), platform.release(), platform.machine())))
    versions = f"modelc {__version__}, Python {platform.python_version()}, {system}"
    return Diagnosis(
        checks=(
            Check(name="modelc", state=CheckState.OK, detail=versions),
            _check_cpu(found.cpu),
            *(_check_free_space(name, folder) for name, folder in found.folders.items()),
            *check_libraries(found.host),
            check_programs(),
            *check_requirements(found.host.packages, found.own),
            *find_clashes(found.host.packages),
        ),
        targets=tuple(_check_target(t.NAME, t.MADE_FROM, t.readiness()) for t in targets),
        quantizers=tuple(_check_target(q.NAME, _consumers(q), q.readiness()) for q in quantizers),
    )


def _consumers(quantizer: Quantizer) -> dict[str, None]:
    return dict.fromkeys(consumer for consumer, _ in quantizer.METHODS)


def _check_target(name: str, makes: Iterable[object], readiness: Readiness) -> Buildable:
    return Buildable(
        name=name,
        makes=" ".join(map(str, makes)),
        ready=readiness.ready,
        detail=readiness_text(readiness),
        fix=readiness.mend,
        builds=readiness.builds,
    )


def _check_cpu(text: str) -> Check:
    """Check for INT8 instructions; without them, INT8 is seldom faster than FP32."""
    flags = set((cpuinfo_value(text, "flags") or cpuinfo_value(text, "Features")).split())
    name = cpuinfo_value(text, "model name") or platform.machine()
    if not flags:
        return Check(name="CPU", state=CheckState.OK, detail=f"{name}; its features are unknown")
    int8 = [feature for flag, feature in _INT8_FLAGS.items() if flag in flags]
    bf16 = [feature for flag, feature in _BF16_FLAGS.items() if flag in flags]
    return Check(
        name="CPU",
        state=CheckState.OK if int8 else CheckState.WARN,
        detail=f"{name}; INT8 by {', '.join(int8) or 'none'}; BF16 by {', '.join(bf16) or 'none'}",
        fix="" if int8 else "measure INT8 where it will run, on a CPU with VNNI or AMX",
    )


def cpuinfo_value(text: str, key: str) -> str:
    """The first value of a key of /proc/cpuinfo; empty where there is none."""
    match = re.search(rf"^{key}\s*:\s*(.*)$", text, flags=re.MULTILINE)
    return match.group(1).strip() if match else ""


def _check_free_space(name: str, folder: Path) -> Check:
    """Check the free space where files are written, in the nearest folder that exists."""
    place = next((one for one in (folder, *folder.parents) if one.is_dir()), Path.cwd())
    free = shutil.disk_usage(place).free
    scarce = free < _MIN_FREE_SPACE
    return Check(
        name=f"{name} space",
        state=CheckState.WARN if scarce else CheckState.OK,
        detail=f"{size_text(free)} free in {folder}",
        fix="free space, or work in another folder" if scarce else "",
    )
