"""The installed package: its name and extras, and the results of `modelc doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .contract import Readiness
from .errors import MissingError


class CheckState(StrEnum):
    """The result of a check.

    MISSING is absent, which may be intended; WARN works, but not as well as it could; BROKEN is
    installed and cannot work.
    """

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check: what was found, and the command that fixes it."""

    name: str
    state: CheckState
    detail: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class Buildable:
    """A format or quantizer: whether it can be used here, its version, or why not.

    `builds` says that its files can be built here, and judged on another host.
    """

    name: str
    makes: str
    ready: bool
    detail: str
    fix: str = ""
    builds: bool = False


def readiness_text(readiness: Readiness) -> str:
    """Return the version, or why the format is not ready."""
    only_builds = f"{readiness.version} builds here; not judged: {readiness.reason}"
    return only_builds if readiness.builds else readiness.version or readiness.reason


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All checks, in the order of the layers: system, driver, libraries, packages."""

    checks: tuple[Check, ...]
    targets: tuple[Buildable, ...]
    quantizers: tuple[Buildable, ...] = ()

    @property
    def exit_code(self) -> int:
        """0, or that of a missing dependency if something is broken."""
        return MissingError.exit_code if self.failures else 0

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks of what is installed and cannot work."""
        return tuple(check for check in self.checks if check.state is CheckState.BROKEN)


DISTRIBUTION = "modelc-toolchain"

# one package each; a hint installs the package itself, which works with any install of modelc
EXTRAS = {
    "hf": "transformers>=5.0",
    "hub": "huggingface_hub>=2.4",
    "ray": "ray>=2.60",
    "remote": "fsspec>=2024.12",
    "sign": "cryptography>=44.0",
    "sbom": "cyclonedx-python-lib>=9.0",
    "serve": "grpcio>=1.68",
    "torchao": "torchao>=0.18",
}


def hint_for_extra(extra: str) -> str:
    """Return the command that installs the package of an extra."""
    return f"pip install '{EXTRAS[extra]}'"
