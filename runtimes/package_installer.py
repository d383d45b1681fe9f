"""Make environments and install wheels in them with uv, or with venv and pip."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from ..core.children.child_call import PYTHON
from ..core.children.processes import Deadline, ProcessEnd, ProcessSpec, run_process
from ..core.errors import ErrorCode, Hint, MissingError, Option, join_some
from .runtime_requirement import RuntimeRequirement

_INSTALL_SECONDS = 1800.0
_QUERY_SECONDS = 120.0
_MAX_PRINTED = 1 << 20  # bytes of an installer's output that are kept
_MAX_VERSIONS = 12  # that a hint names
# Whatever the user's pip is configured to: it would write elsewhere, or refuse.
_INTO_ENVIRONMENT = ("--no-user", "--target=")
_INDEX_HINT = (
    "check the network, and the index: PIP_INDEX_URL and PIP_FIND_LINKS for pip, "
    "UV_DEFAULT_INDEX and UV_FIND_LINKS for uv"
)


@dataclass(frozen=True, kw_only=True)
class ProgramOutput:
    """How a program of the installer ended, and what it printed."""

    end: ProcessEnd
    lines: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Whether it ended well."""
        return self.end.code == 0

    @property
    def last_line(self) -> str:
        """Its last error, else the last line that it printed; how it ended if there is none."""
        if self.end.overrun is not None:
            return self.end.overrun.text
        errors = (line for line in reversed(self.lines) if line.lower().startswith("error"))
        return next(errors, self.lines[-1] if self.lines else self.end.name)


def python_of(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def find_uv() -> str | None:
    """Return the uv on the PATH, if any."""
    return shutil.which("uv")


def make_environment(folder: Path, python: str) -> None:
    """Make an empty environment in a new folder.

    Args:
        folder: its place, which does not exist.
        python: a version as `3.12`; empty for the Python of this process.

    Raises:
        MissingError: there is no such Python, or it cannot make one.
    """
    uv = find_uv()
    if uv is not None:
        wanted = python or PYTHON[0]
        command: tuple[str, ...] = (
            uv,
            "venv",
            "--no-project",
            "--quiet",
            "--python",
            wanted,
            str(folder),
        )
    else:  # a pip of its own takes seconds, and is needed for another Python only
        bare = ("--without-pip",) if not python and _has_own_pip() else ()
        command = (_find_python(python), "-I", "-m", "venv", *bare, str(folder))
    made = _run(command)
    if not made.is_good:
        raise MissingError(
            f"cannot make an environment of Python {python or _own_python()}: {made.last_line}",
            hint=_python_hint(python),
            option="in",
        )


def install_packages(folder: Path, requirement: RuntimeRequirement) -> None:
    """Install the wheels of a requirement; nothing is built, so that no stranger's code runs.

    Raises:
        MissingError: the index has no such release for this Python, or cannot be reached.
    """
    folder, uv = folder.absolute(), find_uv()  # uv works in another folder
    python = str(python_of(folder))
    wanted = ("--only-binary", ":all:", "--", *requirement.packages())
    if uv is not None:  # --directory: not the settings of the user's current folder
        first: tuple[str, ...] = (
            uv,
            "--directory",
            str(folder),
            "pip",
            "install",
            "--quiet",
            "--python",
            python,
        )
        done = _run((*first, *wanted))
    else:
        quiet = ("--no-input", "--quiet", "--progress-bar", "off", "--disable-pip-version-check")
        done = _run((*_pip_of(folder), "install", *quiet, *_INTO_ENVIRONMENT, *wanted))
    if not done.is_good:
        raise _install_error(requirement, done, list_releases(folder, requirement.package))


def list_releases(folder: Path, package: str) -> tuple[str, ...] | None:
    """Return the releases that can be installed in the environment, the newest first.

    None if the index could not be asked, or pip is missing.
    """
    if not _has_own_pip() and find_uv() is not None:
        return None  # uv puts no pip into an environment, and lists no releases
    options = ("--only-binary", ":all:", "--no-input", "--disable-pip-version-check")
    found = _run((*_pip_of(folder), "index", "versions", *options, package), _QUERY_SECONDS)
    if not found.is_good:
        return None
    title = "Available versions:"
    listed = next((line for line in found.lines if line.startswith(title)), title)
    return tuple(filter(None, map(str.strip, listed.removeprefix(title).split(","))))


def _has_own_pip() -> bool:
    """Return whether the Python of this process has pip, as one that uv made need not."""
    return PathFinder.find_spec("pip") is not None


def _pip_of(folder: Path) -> tuple[str, ...]:
    """Return the pip of an environment, or that of this process for the environment."""
    python = str(python_of(folder))
    if any(folder.glob("[Ll]ib*/**/site-packages/pip")):
        return (python, "-I", "-m", "pip")
    return (PYTHON[0], "-I", "-m", "pip", "--python", python)


def _install_error(
    requirement: RuntimeRequirement, done: ProgramOutput, releases: Sequence[str] | None
) -> MissingError:
    python = requirement.python or _own_python()
    if releases and not any(map(requirement.accepts, releases)):
        near = _nearest_releases(requirement, releases)
        return MissingError(
            f"there is no wheel of {requirement.requirement} for Python {python} on this machine",
            hint=Hint(
                f"releases for it: {join_some(near, _MAX_VERSIONS)}; for another Python, ",
                Option("in", f"'{requirement.requirement},python=3.X'"),
            ),
            option="in",
            code=ErrorCode.NOT_FOUND,
        )
    return MissingError(
        f"cannot install {requirement.requirement} for Python {python}: {done.last_line}",
        hint=_INDEX_HINT,
        option="in",
    )


def _nearest_releases(requirement: RuntimeRequirement, releases: Sequence[str]) -> list[str]:
    """Return the releases, those nearest to the required one first."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    wanted = Version(next(iter(SpecifierSet(requirement.specifier))).version.removesuffix(".*"))
    ordered = sorted(map(Version, releases))
    place = sum(one < wanted for one in ordered)
    first = max(0, min(place - _MAX_VERSIONS // 2, len(ordered) - _MAX_VERSIONS))
    return [str(one) for one in ordered[first : first + _MAX_VERSIONS]]


def _find_python(version: str) -> str:
    """Return the interpreter of a version on the PATH, or that of this process.

    Raises:
        MissingError: there is none.
    """
    if not version or version == _own_python():
        return PYTHON[0]
    found = shutil.which(f"python{version}")
    if found is None or _version_of(found) != version:
        raise MissingError(
            f"no Python {version} is on the PATH", hint=_python_hint(version), option="in"
        )
    return found


def _version_of(python: str) -> str:
    """Return the version of an interpreter as `3.12`; empty if it does not run."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    found = _run((python, "-I", "-c", code), _QUERY_SECONDS)
    return found.last_line if found.is_good else ""


def _own_python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _python_hint(version: str) -> str:
    return f"install python{version or _own_python()} with its venv module, or uv: pip install uv"


def _run(command: tuple[str, ...], seconds: float = _INSTALL_SECONDS) -> ProgramOutput:
    """Run a program of the installer to its end.

    Raises:
        MissingError: it cannot be started.
    """
    lines: list[str] = []
    held = 0

    def keep(line: bytes) -> bool:
        nonlocal held
        held += len(line)
        if line.strip() and held < _MAX_PRINTED:
            lines.append(line.decode("utf-8", "replace").strip())
        return False

    program = ProcessSpec(command=command, ends_input=True, merged=True, leads_session=True)
    try:
        end = run_process(program, keep, watch=Deadline(seconds))
    except OSError as error:
        raise MissingError(
            f"cannot start {command[0]}: {error.strerror}", hint=_python_hint(""), option="in"
        ) from error
    return ProgramOutput(end=end, lines=tuple(lines))
