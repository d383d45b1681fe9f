"""Records of a project: settings, gates, the order and outcome of each model, and regressions."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from ..core.errors import ModelcError, Place
from ..core.kinds import Precision
from ..core.manifest import Manifest
from ..core.records import LEAST_RATIO, Artifact, Latency, artifact_names, size_text
from ..pipeline.order import Order
from ..pipeline.parts.parts_order import PartsOrder
from ..pipeline.plan import Step
from ..reports.comparison import Change
from ..serving.ensembles import EnsembleSpec
from .setting_keys import RunSettings

PROJECT_FILE = "modelc.toml"
Value: TypeAlias = str | int | float | bool | tuple[str, ...]
KeyPath: TypeAlias = tuple[str, ...]  # of a setting: ("seed",), ("gates", "*-int8", "max-size")
ALL_ARTIFACTS = "*"  # the pattern of gates that hold for every artifact


class SettingLayer(StrEnum):
    """Where a setting comes from, the strongest first."""

    FLAG = "flag"
    ENV = "env"
    FILE = "file"
    BUILT_IN = "default"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting; `place` is where it comes from: `modelc.toml:12 [models.digits]`, `--set`, ...

    A `shared` setting applies to all models.
    """

    path: KeyPath
    value: Value
    layer: SettingLayer
    place: Place
    shared: bool = False

    @property
    def name(self) -> str:
        """The path as in TOML: `seed`, `gates.max-size`, `gates."*-int8".max-size`."""
        return format_key_path(self.path)


@functools.lru_cache(maxsize=4096)
def format_key_path(path: KeyPath) -> str:
    """Format a path as in TOML."""
    plain = (part.replace("-", "").replace("_", "").isalnum() and part.isascii() for part in path)
    return ".".join(part if bare else f'"{part}"' for part, bare in zip(path, plain, strict=True))


@dataclass(frozen=True, kw_only=True)
class Project:
    """The content of a modelc.toml; `models` are in the order of the file.

    `places` maps a model to its place, as `modelc.toml:12 [models.digits]`. `ensembles` are for
    `modelc pack`.
    """

    file: Path
    run: tuple[Setting, ...] = ()
    defaults: tuple[Setting, ...] = ()
    models: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    ensembles: tuple[EnsembleSpec, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder that relative paths start from."""
        return self.file.parent


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The effective settings of one model by path, defaults included.

    `place` is where the file names the model.
    """

    name: str
    place: Place
    said: Mapping[KeyPath, Setting]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The effective settings of a project, with their places, and warnings for the user."""

    project: Project
    run: RunSettings
    run_said: Mapping[KeyPath, Setting]
    models: tuple[ModelSettings, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Limits of artifacts whose name matches `pattern`; None is no limit.

    `max_drop` is a share as in `--max-drop`, `max_size` is in bytes of all files that ship, and
    `max_latency_ratio` is relative to the FP32 parent. `places` says where each is set.
    """

    pattern: str = ALL_ARTIFACTS
    max_drop: float | None = None
    max_size: int | None = None
    max_latency_ratio: float | None = None
    places: Mapping[str, Place] = field(default_factory=dict)

    def over(self, other: Gate) -> Gate:
        """Combine two gates: the limits of this one, else those of the other."""
        return Gate(
            pattern=self.pattern,
            max_drop=other.max_drop if self.max_drop is None else self.max_drop,
            max_size=other.max_size if self.max_size is None else self.max_size,
            max_latency_ratio=other.max_latency_ratio
            if self.max_latency_ratio is None
            else self.max_latency_ratio,
            places={**other.places, **self.places},
        )


@dataclass(frozen=True, kw_only=True)
class ModelOrder:
    """One model of a project, ready to run: its checked order and its plan.

    `left_out` are combinations of `to` and `precision` that a format does not have; `unused` are
    shared settings without effect here, with the reason. General `gates` come first. `places` has
    the place of each key, as `modelc.toml:18 [models.digits] model`, and under "" of the model.
    With `parts`, order and plan are those of every part.
    """

    name: str
    order: Order
    plan: tuple[Step, ...]
    gates: tuple[Gate, ...] = ()
    left_out: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    places: Mapping[str, Place] = field(default_factory=lambda: {"": Place(file=PROJECT_FILE)})
    parts: PartsOrder | None = None

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of all steps, of parts with the part."""
        if self.parts is not None:
            return tuple(self.parts.names(self.plan))
        return tuple(step.name for step in self.plan)

    @property
    def asked_names(self) -> tuple[str, ...]:
        """The names of the requested artifacts."""
        if self.parts is not None:
            return tuple(self.parts.names(self.plan, asked=True))
        return tuple(step.name for step in self.plan if step.asked)


def gate_for(gates: Sequence[Gate], artifact: str) -> Gate:
    """Return the limits of one artifact: its own first, then a pattern's, then general ones."""
    found = Gate(pattern=artifact)
    ordered = sorted(gates, key=lambda g: (g.pattern != ALL_ARTIFACTS, g.pattern == artifact))
    for gate in ordered:
        if gate.pattern == artifact or fnmatchcase(artifact, gate.pattern):
            found = gate.over(found)
    return found


_RATIO_GATE = "max-latency-ratio"


@dataclass(frozen=True, kw_only=True)
class Breach:
    """A gate that an artifact breaks, in words; `told` is the place of the gate."""

    artifact: str
    gate: str  # max-size, max-drop, max-latency-ratio
    message: str
    told: Place | None


def find_breaches(
    gates: Sequence[Gate], asked: Collection[str], manifest: Manifest
) -> tuple[Breach, ...]:
    """Find the gates that the requested artifacts break.

    A gate on a value that was not measured is broken: nothing shows that it holds.
    """
    found: list[Breach] = []
    for artifact in manifest.artifacts:
        if artifact.name in asked:
            found += _gate_breaches(artifact, gate_for(gates, artifact.name))
    return tuple(found)


def _gate_breaches(artifact: Artifact, gate: Gate) -> list[Breach]:
    checks = {
        "max-size": _size_breach(artifact, gate),
        "max-drop": _drop_breach(artifact, gate),
        _RATIO_GATE: _latency_breach(artifact, gate),
    }
    return [
        Breach(
            artifact=artifact.name,
            gate=name,
            message=message,
            told=gate.places.get(name.replace("-", "_")),
        )
        for name, message in checks.items()
        if message
    ]


def _size_breach(artifact: Artifact, gate: Gate) -> str:
    if gate.max_size is None or artifact.size <= gate.max_size:
        return ""
    return f"{size_text(artifact.size)} > max-size {size_text(gate.max_size)}"


def _drop_breach(artifact: Artifact, gate: Gate) -> str:
    if gate.max_drop is None:
        return ""
    found = artifact.accuracy
    if found is None:
        return "max-drop is set, but accuracy was not measured"
    if found.drop <= gate.max_drop:
        return ""
    return f"{found.metric} drops by {found.drop:.2%} > max-drop {gate.max_drop:.2%}"


def _latency_breach(artifact: Artifact, gate: Gate) -> str:
    """Compare with the latency of the FP32 parent; an FP32 artifact has no parent to compare.

    The gate is broken if the artifact is certainly too slow: the whole interval of the ratio is
    beyond the limit. A run of the same artifact on a busier machine does not break it.
    """
    most, found = gate.max_latency_ratio, artifact.latency
    if most is None or (found is None and artifact.precision is Precision.FP32):
        return ""
    if found is None:
        return f"{_RATIO_GATE} is set, but latency was not measured"
    # Two models without a difference do not break a limit that asks for no more than that.
    limit = max(most, LEAST_RATIO) if most >= 1 else most
    if found.low <= limit:
        return ""
    return f"{_latency_text(found)} > {_RATIO_GATE} {most:g}"


def find_doubts(
    gates: Sequence[Gate], asked: Collection[str], manifest: Manifest
) -> tuple[Breach, ...]:
    """Find the gates that the requested artifacts hold, but perhaps only by chance.

    The limit of a ratio of latencies lies within its interval.
    """
    found: list[Breach] = []
    for artifact in manifest.artifacts:
        gate, latency = gate_for(gates, artifact.name), artifact.latency
        most = gate.max_latency_ratio
        if artifact.name not in asked or most is None or latency is None:
            continue
        if latency.high > most and not _latency_breach(artifact, gate):
            text = f"{_latency_text(latency)}: too close to {_RATIO_GATE} {most:g} to decide"
            found.append(
                Breach(
                    artifact=artifact.name,
                    gate=_RATIO_GATE,
                    message=text,
                    told=gate.places.get("max_latency_ratio"),
                )
            )
    return tuple(found)


def _latency_text(latency: Latency) -> str:
    return (
        f"{latency.milliseconds:.3g} ms beside {latency.parent:.3g} ms of its fp32 parent, "
        f"{latency.ratio_text}"
    )


BREACH_EXIT_CODE = 1  # as of a rejected artifact
NOT_STARTED = "not started, as an earlier model failed"  # why a model was skipped


@dataclass(frozen=True, kw_only=True)
class ModelOutcome:
    """The manifest of one model, or the error that prevented it.

    `doubts` are gates that hold, but perhaps only by chance. `kept` are
    steps that are up to date in the folder, failures included; `restored` came from the
    cache; the others were executed. `seconds` is wall time. `started` is False for a model that was
    never begun.
    """

    name: str
    folder: str
    manifest: Manifest | None = None
    error: ModelcError | None = None
    breaches: tuple[Breach, ...] = ()
    doubts: tuple[Breach, ...] = ()
    kept: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    seconds: float = 0.0
    started: bool = True

    @cached_property
    def exit_code(self) -> int:
        """The exit code of `modelc export` for this model; 1 if a gate is broken."""
        if self.error is not None:
            return self.error.exit_code
        code = 0 if self.manifest is None else self.manifest.exit_code
        return code or (BREACH_EXIT_CODE if self.breaches else 0)


def combine_exit_codes(ended: Sequence[ModelOutcome], *, prepare_only: bool = False) -> int:
    """Return 1 if an artifact is wrong or breaks a gate; else the first other code, or 0.

    With `prepare_only`, models that are only pending on another host do not count.
    """
    codes = [one.exit_code for one in ended if not (prepare_only and is_only_pending(one))]
    return 1 if 1 in codes else next((code for code in codes if code), 0)


def is_only_pending(one: ModelOutcome) -> bool:
    """Whether the only thing left is steps that are pending on another host."""
    manifest = one.manifest
    if one.error is not None or one.breaches or manifest is None:
        return False
    mine = artifact_names(manifest.steps)
    judged = all(v.passed for v in manifest.verdicts if v.artifact in mine)
    return bool(manifest.pending) and not manifest.failures and judged


@dataclass(frozen=True, kw_only=True)
class MeasureChange:
    """One measure of an artifact that changed."""

    model: str
    artifact: str
    measure: str
    change: Change
    before: str
    after: str
    why: str = ""

    @property
    def name(self) -> str:
        """The model and its artifact, if the change is of one."""
        return "/".join(filter(None, (self.model, self.artifact)))

    @property
    def text(self) -> str:
        """The measure with its values before and now."""
        why = f" ({self.why})" if self.why else ""
        return f"{self.measure}: {self.before} before, {self.after} now{why}"


@dataclass(frozen=True, kw_only=True)
class Regression:
    """All changes since the run in `base`, without noise.

    `compared` is the number of measures compared. `notes` say what makes the runs hard to compare;
    `left_out` says what was not compared, and why.
    """

    base: str
    changed: tuple[MeasureChange, ...]
    compared: int
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def worse(self) -> tuple[MeasureChange, ...]:
        """The measures that got worse beyond their margin."""
        return tuple(one for one in self.changed if one.change is Change.WORSE)
