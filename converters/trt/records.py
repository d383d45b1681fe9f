"""What goes to the building process and what comes back, as JSON files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ...core.contract import TensorInfo
from ...core.whole import write_whole
from .options import EngineOptions
from .profiles import Profile

Read = TypeVar("Read")
REQUEST_FILE = "build.request.json"
RESULT_FILE = "build.result.json"


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One engine to build.

    `engine` is written whole or not at all. `timing_cache` is the file to use, empty for none.
    `path` is the parent's sys.path: the child finds modelc where the parent did.
    """

    onnx: str
    engine: str
    profiles: tuple[Profile, ...]
    options: EngineOptions
    timing_cache: str = ""
    path: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """An engine that was built. `layers` is the inspector's JSON as TensorRT gave it."""

    tensorrt: str
    layers: str = ""
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BuildOutcome:
    """How a build ended: with `built`, or with why not; `exit_code` is that of the error."""

    built: BuildResult | None = None
    message: str = ""
    hint: str = ""
    exit_code: int = 0
    cancelled: bool = False


def write_record(record: object, path: Path) -> None:
    """Write a record as JSON; the file is there whole or not at all."""
    import msgspec

    write_whole(path, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def read_record(path: Path, kind: type[Read]) -> Read:
    """Read a record.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not such a record.
    """
    import msgspec

    return msgspec.json.decode(path.read_bytes(), type=kind)
