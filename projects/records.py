"""The records of a project: what its file, flags and environment say, and where each was said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from ..core.errors import Place
from ..pipeline.order import Order
from ..pipeline.plan import Step

PROJECT_FILE = "modelc.toml"
Value: TypeAlias = str | int | float | bool | tuple[str, ...]
KeyPath: TypeAlias = tuple[str, ...]  # of a setting: ("seed",), ("gates", "*-int8", "max-size")
ALL_ARTIFACTS = "*"  # the pattern of gates that hold for every artifact


class SettingLayer(StrEnum):
    """Who says a setting, the strongest first."""

    FLAG = "flag"
    ENV = "env"
    FILE = "file"
    BUILT_IN = "default"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting, and who said it: `told` is `modelc.toml:12 [models.digits]`, `--set`, ...

    What is `shared` was said for all models at once.
    """

    path: KeyPath
    value: Value
    layer: SettingLayer
    told: Place
    shared: bool = False

    @property
    def name(self) -> str:
        """`seed`, `gates.max-size`, `gates."*-int8".max-size`."""
        return format_key_path(self.path)


def format_key_path(path: KeyPath) -> str:
    """A path as TOML writes it."""
    plain = (part.replace("-", "").replace("_", "").isalnum() and part.isascii() for part in path)
    return ".".join(part if bare else f'"{part}"' for part, bare in zip(path, plain, strict=True))


@dataclass(frozen=True, kw_only=True)
class Project:
    """What a modelc.toml says; `models` are in the order of the file.

    `places` is `modelc.toml:12 [models.digits]` by model.
    """

    file: Path
    run: tuple[Setting, ...] = ()
    defaults: tuple[Setting, ...] = ()
    models: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """What its relative paths are relative to."""
        return self.file.parent


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How `modelc run` goes about it.

    `memory` and `cache_limit` are in bytes, `timeout` in seconds of one step; None is no limit.
    `jobs` is how many models run side by side. `cache_dir` None is the system's own place.
    """

    out: Path = Path("out")
    jobs: int = 1
    memory: int | None = None
    timeout: float | None = None
    keep_going: bool = False
    cache_dir: Path | None = None
    cache_limit: int | None = None
    remote_cache: str | None = None
    report: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """All that holds for one model, by path; what nobody said is there as it is built in.

    `place` is where the file names the model.
    """

    name: str
    place: Place
    said: Mapping[KeyPath, Setting]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A project with all its layers: what holds, and who said so. `warnings` are to be told."""

    project: Project
    run: RunSettings
    run_said: Mapping[KeyPath, Setting]
    models: tuple[ModelSettings, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What artifacts whose name matches `pattern` must keep to; None asks for nothing.

    `max_drop` is a part as in `--max-drop`, `max_size` bytes of all that ships, and
    `max_latency_ratio` the most that its latency may be of its FP32 parent's. `told` is where each
    was said, by field.
    """

    pattern: str = ALL_ARTIFACTS
    max_drop: float | None = None
    max_size: int | None = None
    max_latency_ratio: float | None = None
    told: Mapping[str, Place] = field(default_factory=dict)

    def over(self, other: Gate) -> Gate:
        """This gate's limits, and the other's where this has none."""
        return Gate(
            pattern=self.pattern,
            max_drop=other.max_drop if self.max_drop is None else self.max_drop,
            max_size=other.max_size if self.max_size is None else self.max_size,
            max_latency_ratio=other.max_latency_ratio
            if self.max_latency_ratio is None
            else self.max_latency_ratio,
            told={**other.told, **self.told},
        )


@dataclass(frozen=True, kw_only=True)
class ModelOrder:
    """One model of a project, ready to be carried out: its order, checked, and its plan.

    `left_out` are combinations of `to` and `precision` that a format does not have, `unused`
    settings for all models that have no effect here, with the reason. `gates` are general ones
    first. `places` is where each key was said, as `modelc.toml:18 [models.digits] model`; under ""
    is where the model is.
    """

    name: str
    order: Order
    plan: tuple[Step, ...]
    gates: tuple[Gate, ...] = ()
    left_out: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    places: Mapping[str, Place] = field(default_factory=lambda: {"": Place(file=PROJECT_FILE)})

    def gate_for(self, artifact: str) -> Gate:
        """The limits of one artifact: its own, before those of a pattern, before those of all."""
        found = Gate(pattern=artifact)
        ordered = sorted(
            self.gates, key=lambda g: (g.pattern != ALL_ARTIFACTS, g.pattern == artifact)
        )
        for gate in ordered:
            if gate.pattern == artifact or fnmatchcase(artifact, gate.pattern):
                found = gate.over(found)
        return found
