"""The installed package: its name and extras, and what `modelc doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .errors import MissingError


class CheckState(StrEnum):
    """How a check came out.

    MISSING is not there, which may be as it should be; WARN works, but not as well as it could;
    BROKEN is installed and cannot work as it is.
    """

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at: what was found, and the one line that mends it."""

    name: str
    state: CheckState
    told: str
    mend: str = ""


@dataclass(frozen=True, kw_only=True)
class Buildable:
    """One format or quantizer: whether it can be used here, its version, or why not."""

    name: str
    makes: str
    ready: bool
    told: str
    mend: str = ""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All checks, in the order of the layers: system, driver, libraries, packages."""

    checks: tuple[Check, ...]
    targets: tuple[Buildable, ...]
    quantizers: tuple[Buildable, ...] = ()

    @property
    def exit_code(self) -> int:
        """0, or that of a dependency that is missing where something is broken."""
        return MissingError.exit_code if self.failures else 0

    @property
    def failures(self) -> tuple[Check, ...]:
        """What is installed and cannot work."""
        return tuple(check for check in self.checks if check.state is CheckState.BROKEN)


DISTRIBUTION = "modelc-toolchain"

# One package each. A hint installs the package itself: that works however modelc was installed.
EXTRAS = {
    "hf": "transformers>=5.0",
    "remote": "fsspec>=2024.6",
    "sign": "cryptography>=44.0",
    "sbom": "cyclonedx-python-lib>=9.0",
}


def hint_for_extra(extra: str) -> str:
    """The command that installs what an extra of modelc brings."""
    return f"pip install '{EXTRAS[extra]}'"
