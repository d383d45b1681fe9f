"""The cache of environments: each has one runtime, and is checked before it is used."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import sys
import sysconfig
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.children.processes import Deadline, ProcessSpec, run_process
from ..core.errors import ErrorCode, MissingError, UsageError, unknown_name_error
from ..core.events import Finished, Noted, Started, Tell, ignore_events
from ..core.external_runtime import Versions
from .package_installer import install_packages, make_environment, python_of
from .runtime_requirement import RuntimeRequirement

ENVIRONMENTS_FOLDER = "runtimes"
CHILD_SCRIPT = Path(__file__).with_name("environment_child.py")
_STAMP = "environment.json"
_LAYOUT = 1  # raised when environments are made in another way
_LOCK_SECONDS = 1900.0  # another process may install
_ASK_SECONDS = 180.0  # to import a runtime from a cold disk
_RELEASE = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True, kw_only=True)
class RuntimeEnvironment:
    """An environment on disk: what it was made for, and the versions that were installed.

    `installed` are all distributions in it, by name. `python` is the full version of Python.
    """

    folder: Path
    requirement: str
    python: str
    installed: Versions = field(default_factory=dict)

    @property
    def interpreter(self) -> Path:
        """Its Python."""
        return python_of(self.folder)


@dataclass(frozen=True, kw_only=True)
class ListedEnvironment:
    """An environment in the cache: its runtime's version, its size in bytes, when it was made."""

    name: str
    requirement: str
    version: str
    python: str
    size: int
    made: float


def provide_environment(
    requirement: RuntimeRequirement, cache: Path, on_event: Tell = ignore_events
) -> RuntimeEnvironment:
    """Return the environment of a requirement; it is made unless the cache has it.

    A cached one is used only if what is installed in it is what was recorded when it was made.

    Args:
        requirement: the runtime.
        cache: the folder of the cache.
        on_event: receives progress events.

    Raises:
        MissingError: it cannot be made; nothing is left of it.
    """
    from filelock import FileLock, Timeout

    place = cache / ENVIRONMENTS_FOLDER
    place.mkdir(parents=True, exist_ok=True)
    folder = place / _name_of(requirement)
    try:
        with FileLock(f"{folder}.lock", timeout=_LOCK_SECONDS):
            found = _read_environment(folder, requirement)
            reason = "" if found is None else _describe_mismatch(found, requirement)
            if found is not None and not reason:
                return found
            if reason:
                text = f"the cached environment of {requirement} is made again: {reason}"
                on_event(Noted(text=text, warning=True))
            return _make_environment(requirement, folder, on_event)
    except Timeout as error:
        raise MissingError(
            f"another process has been making {folder.name} for too long",
            hint=f"end it, or remove {folder}.lock",
            option="in",
        ) from error


def find_environment(requirement: RuntimeRequirement, cache: Path) -> RuntimeEnvironment:
    """Return the environment that `provide_environment` made or checked before.

    Raises:
        MissingError: it was removed since.
    """
    folder = cache / ENVIRONMENTS_FOLDER / _name_of(requirement)
    found = _read_environment(folder, requirement)
    if found is None:
        raise _unusable_error(requirement, "it was removed")
    return found


def _name_of(requirement: RuntimeRequirement) -> str:
    """Return the name of its folder: another Python or platform has another one."""
    python = requirement.python or platform.python_version()
    parts = (
        str(_LAYOUT), *requirement.packages(), python, sys.implementation.name,
        sysconfig.get_platform(),
    )  # fmt: skip
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return f"{requirement.package}-{digest}"


def _make_environment(
    requirement: RuntimeRequirement, folder: Path, on_event: Tell
) -> RuntimeEnvironment:
    """Make it aside, ask it what it has, and give it its name; that may be done on one disk."""
    draft = folder.with_name(f"{folder.name}.draft")
    title, began, passed = f"install {requirement}", time.monotonic(), False
    on_event(Started(step=title))
    try:
        for leftover in (draft, folder):
            shutil.rmtree(leftover, ignore_errors=True)
        make_environment(draft, requirement.python)
        install_packages(draft, requirement)
        versions = ask_versions(python_of(draft), requirement)
        made = RuntimeEnvironment(
            folder=folder,
            requirement=str(requirement),
            python=versions.python,
            installed=versions.installed,
        )
        stamp = {
            "requirement": made.requirement, "python": made.python, "installed": made.installed,
        }  # fmt: skip
        (draft / _STAMP).write_text(json.dumps(stamp, indent=1), encoding="utf-8")
        draft.rename(folder)  # an interpreter finds its environment by its own place
        passed = True
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        seconds = round(time.monotonic() - began, 3)
        on_event(Finished(step=title, passed=passed, seconds=seconds))
    version = made.installed.get(requirement.package, "?")
    if not requirement.specifier.endswith(version):
        on_event(Noted(text=f"{requirement} is {requirement.package} {version} here"))
    return made


def _read_environment(folder: Path, requirement: RuntimeRequirement) -> RuntimeEnvironment | None:
    """Return what is recorded of an environment; None if there is none that is whole."""
    try:
        stamp = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
        installed = {str(key): str(value) for key, value in stamp["installed"].items()}
        found = RuntimeEnvironment(
            folder=folder,
            requirement=str(stamp["requirement"]),
            python=str(stamp["python"]),
            installed=installed,
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return found if found.requirement == str(requirement) else None


def _describe_mismatch(found: RuntimeEnvironment, requirement: RuntimeRequirement) -> str:
    """Return why a cached environment is not what it is recorded as; empty if it is."""
    try:
        now = ask_versions(found.interpreter, requirement)
    except MissingError as error:
        return error.message
    for name in sorted({*now.installed, *found.installed}):
        has, had = now.installed.get(name, "none"), found.installed.get(name, "none")
        if has != had:
            return f"it has {name} {has}, and {had} was installed"
    if now.python != found.python:
        return f"it runs Python {now.python}, and was made with {found.python}"
    return ""


@dataclass(frozen=True, kw_only=True)
class EnvironmentAnswer:
    """What an environment says of itself: its Python, distributions, and the imported version."""

    python: str
    installed: Versions
    module: str


def ask_versions(interpreter: Path, requirement: RuntimeRequirement) -> EnvironmentAnswer:
    """Import the runtime in an environment, and return what is installed there.

    Raises:
        MissingError: it cannot be imported, or its release is not the required one: neither that
            of its distribution nor that of the module, whose files may be another's.
    """
    from packaging.version import Version

    lines: list[bytes] = []

    def keep(line: bytes) -> bool:
        lines.append(line)
        return True

    program = ProcessSpec(
        command=(str(interpreter), "-I", str(CHILD_SCRIPT), str(interpreter.parent)),
        request=json.dumps({"versions": requirement.definition.module}).encode() + b"\n",
        ends_input=True,
        leads_session=True,
    )
    try:
        end = run_process(program, keep, watch=Deadline(_ASK_SECONDS))
        answer: dict[str, Any] = json.loads(lines[0]) if lines else {"error": end.name}
        if "error" in answer:
            raise _unusable_error(requirement, str(answer["error"]))
        found = EnvironmentAnswer(
            python=str(answer["versions"]["python"]),
            installed={str(k): str(v) for k, v in answer["versions"]["installed"].items()},
            module=str(answer["versions"]["module"]),
        )
    except OSError as error:
        raise _unusable_error(requirement, error.strerror or str(error)) from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise _unusable_error(requirement, "its answer cannot be read") from error
    release = found.installed.get(requirement.package, "")
    if not requirement.accepts(release):
        raise _unusable_error(requirement, f"it has {requirement.package} {release or 'none'}")
    imported = _RELEASE.match(found.module)
    if imported and Version(imported[0]) != Version(Version(release).base_version):
        raise _unusable_error(requirement, f"it imports {requirement.package} {imported[0]}")
    return found


def _unusable_error(requirement: RuntimeRequirement, what: str) -> MissingError:
    return MissingError(
        f"the environment of {requirement} cannot be used: {what}",
        hint="remove it: modelc cache runtimes --remove; it is made again when it is needed",
        option="in",
    )


def list_environments(cache: Path) -> tuple[ListedEnvironment, ...]:
    """Return the environments in a cache, the newest first."""
    found = []
    for stamp in (cache / ENVIRONMENTS_FOLDER).glob(f"*/{_STAMP}"):
        try:
            record = json.loads(stamp.read_text(encoding="utf-8"))
            package = str(record["requirement"]).partition("=")[0].rstrip("~")
            listed = ListedEnvironment(
                name=stamp.parent.name,
                requirement=str(record["requirement"]),
                version=str(record["installed"].get(package, "?")),
                python=str(record["python"]),
                size=sum(_sizes(stamp.parent)),
                made=stamp.stat().st_mtime,
            )
        except (OSError, ValueError, KeyError, AttributeError):
            continue  # it is made again when it is needed
        found.append(listed)
    return tuple(sorted(found, key=lambda one: -one.made))


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path.stat().st_size


def select_environments(
    rows: Sequence[ListedEnvironment], names: Sequence[str]
) -> tuple[ListedEnvironment, ...]:
    """Return the environments of these runtimes; all of them without names.

    Raises:
        UsageError: no environment is of a runtime with this name.
    """
    known = sorted({one.requirement for one in rows})
    for name in names:
        if name not in known and known:
            raise unknown_name_error("environment", name, known)
        if name not in known:
            raise UsageError(
                f"no environment of {name!r}: the cache has none",
                hint="modelc validate OUT --in RUNTIME==VERSION makes them",
                code=ErrorCode.UNKNOWN_NAME,
            )
    return tuple(one for one in rows if not names or one.requirement in names)


def remove_environments(cache: Path, names: Collection[str] | None = None) -> int:
    """Remove all environments, half-made ones too, or the named; return the bytes freed.

    Those that another process makes or checks now are kept.
    """
    from filelock import FileLock, Timeout

    freed = 0
    for folder in sorted((cache / ENVIRONMENTS_FOLDER).glob("*")):
        if not folder.is_dir() or (names is not None and folder.name not in names):
            continue
        lock = folder.with_name(f"{folder.name.removesuffix('.draft')}.lock")
        try:
            with FileLock(str(lock), timeout=0):
                freed += sum(_sizes(folder))
                shutil.rmtree(folder, ignore_errors=True)
        except Timeout:
            continue
    return freed
