"""`modelc doctor`: what this environment can build, what it lacks, what in it is broken."""

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
from ..core.installation import DISTRIBUTION, Buildable, Check, CheckState, Diagnosis

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
    """Everything that the doctor looks at. `folders` are where files are written, by name.

    `cpu` is the text of Linux's /proc/cpuinfo, empty elsewhere; `own` is what modelc requires.
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
    """What modelc requires, as its metadata says; from a checkout, as its pyproject.toml does."""
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
    """Look at everything; libraries are asked in processes of their own, so none can crash us."""
    return Diagnosis(
        checks=(
            _check_python(),
            _check_cpu(found.cpu),
            *(_check_free_space(name, folder) for name, folder in found.folders.items()),
            *check_libraries(found.host),
            *check_requirements(found.host.packages, found.own),
            *find_clashes(found.host.packages),
        ),
        targets=tuple(_check_target(t.NAME, t.MADE_FROM, t.readiness()) for t in targets),
        quantizers=tuple(_check_target(q.NAME, q.METHODS, q.readiness()) for q in quantizers),
    )


def _check_target(name: str, makes: Iterable[object], readiness: Readiness) -> Buildable:
    return Buildable(
        name=name,
        makes=" ".join(map(str, makes)),
        ready=readiness.ready,
        told=readiness.version or readiness.reason,
        mend=readiness.mend,
    )


def _check_python() -> Check:
    system = " ".join(filter(None, (platform.system(), platform.release(), platform.machine())))
    told = f"modelc {__version__}, Python {platform.python_version()}, {system}"
    return Check(name="modelc", state=CheckState.OK, told=told)


def _check_cpu(text: str) -> Check:
    """Whether INT8 has instructions of its own here; without, it is seldom faster than FP32."""
    flags = set((_cpuinfo_value(text, "flags") or _cpuinfo_value(text, "Features")).split())
    name = _cpuinfo_value(text, "model name") or platform.machine()
    if not flags:
        return Check(name="CPU", state=CheckState.OK, told=f"{name}; its features are not told")
    int8 = [told for flag, told in _INT8_FLAGS.items() if flag in flags]
    bf16 = [told for flag, told in _BF16_FLAGS.items() if flag in flags]
    told = f"{name}; INT8 by {', '.join(int8) or 'none'}; BF16 by {', '.join(bf16) or 'none'}"
    if int8:
        return Check(name="CPU", state=CheckState.OK, told=told)
    mend = "measure INT8 where it is to run; a CPU with VNNI or AMX shows its gain"
    return Check(name="CPU", state=CheckState.WARN, told=told, mend=mend)


def _cpuinfo_value(text: str, key: str) -> str:
    """The first value of a key of /proc/cpuinfo; empty where there is none."""
    match = re.search(rf"^{key}\s*:\s*(.*)$", text, flags=re.MULTILINE)
    return match.group(1).strip() if match else ""


def _check_free_space(name: str, folder: Path) -> Check:
    """Free space where files are written; of the nearest folder that there is."""
    place = next((one for one in (folder, *folder.parents) if one.is_dir()), Path.cwd())
    free = shutil.disk_usage(place).free
    told = f"{free / 10**9:.1f} GB free in {folder}"
    if free >= _MIN_FREE_SPACE:
        return Check(name=f"{name} space", state=CheckState.OK, told=told)
    mend = "make room, or work in another folder"
    return Check(name=f"{name} space", state=CheckState.WARN, told=told, mend=mend)
