"""What is written beside an engine: an engine itself is code, and is not loaded to be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...core.contract import TensorInfo
from ...core.digest import sha256_of
from ...core.errors import RunnerError
from ...core.records import FileRecord
from .inspector import EngineLayer
from .records import read_record, write_record

SIDECAR_VERSION = 1
SIDECAR_SUFFIX = ".json"  # after the engine's own


@dataclass(frozen=True, kw_only=True)
class EngineSidecar:
    """The record of one engine.

    `capability` is the GPU's compute capability, `memory` its bytes, `cuda` the newest CUDA that
    its driver runs. `onnx` is what it was built from, and where a stripped engine finds its
    weights. `options` are those that were set, as text. `origin` is the metadata of the job.
    """

    engine: FileRecord
    onnx: FileRecord
    gpu: str
    capability: str
    memory: int
    cuda: str
    tensorrt: str
    builder: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    profiles: tuple[str, ...]
    layers: tuple[EngineLayer, ...]
    plugins: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    stripped: bool = False
    origin: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = SIDECAR_VERSION


def engine_sidecar_path(engine: Path) -> Path:
    """`model.fp16.engine.json` for `model.fp16.engine`."""
    return engine.with_name(engine.name + SIDECAR_SUFFIX)


def write_sidecar(sidecar: EngineSidecar, engine: Path) -> Path:
    """Write it beside the engine."""
    path = engine_sidecar_path(engine)
    write_record(sidecar, path)
    return path


def read_sidecar(engine: Path) -> EngineSidecar:
    """Read what lies beside the engine, and check that it is of this very engine.

    Raises:
        RunnerError: there is none, it cannot be read, or it is of another engine.
    """
    path = engine_sidecar_path(engine)
    try:
        sidecar = read_record(path, EngineSidecar)
    except FileNotFoundError as error:
        raise RunnerError(
            f"{engine.name} has no {path.name}: an engine is code, and is not loaded to look at it",
            hint="keep the two files together, or build the engine again",
        ) from error
    except (OSError, ValueError) as error:
        raise RunnerError(
            f"{path.name} cannot be read: {error}", hint="build the engine again"
        ) from error
    if sidecar.engine.sha256 != sha256_of(engine):
        raise RunnerError(
            f"{path.name} is of another engine than {engine.name}",
            hint="keep the two files together, or build the engine again",
        )
    return sidecar
