"""The small records that make up a manifest: files, checkpoints, artifacts."""

from __future__ import annotations

from dataclasses import dataclass, field

from .precision import Precision
from .verdict import Tolerance


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One file: `name` is relative to the folder of its owner, `size` is in bytes."""

    name: str
    size: int
    sha256: str
    role: str = "model"  # model | data | debug | weights | config


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Weights on disk and how to build the module they belong to. Holds no torch object.

    `path` is relative to the manifest's folder once it is written there. `digest` is the SHA-256
    of the one file, or of the sorted list of names and SHA-256s where there are several.
    """

    path: str
    kind: str
    digest: str
    files: tuple[FileRecord, ...]
    factory: str | None = None
    factory_args: dict[str, str] = field(default_factory=dict)
    strict: bool = True
    allow_pickle: bool = False


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One capture that was tried for an artifact, and why it was kept or passed over."""

    capture: str
    outcome: str  # passed | failed | error
    reason: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One model in one format and precision.

    `files[0]` is the model itself. `parent` is the SHA-256 of what it was made from: the
    checkpoint or another artifact's first file. `tolerance` is what it was exported within.
    """

    name: str
    target: str
    precision: Precision
    files: tuple[FileRecord, ...]
    parent: str
    made_from: str
    capture: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    rejected: bool = False
    tolerance: Tolerance | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the model file."""
        return self.files[0].sha256

    @property
    def size(self) -> int:
        """Bytes of everything that ships: the debug sidecar does not."""
        return sum(file.size for file in self.files if file.role != "debug")
