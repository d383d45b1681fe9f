"""Make one order per model from settings, and check them before anything slow starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.contract import Deferred, Native
from ..core.errors import ErrorCode, ModelcError, Place, UsageError, unknown_name_error
from ..core.hub_ids import find_hub_id
from ..core.verdict import Limits
from ..pipeline.call_options import TokenOptions
from ..pipeline.make_order import make_order
from ..pipeline.option_spec import read_record, specs_of
from ..pipeline.option_table import ArtifactOptions
from ..pipeline.order import Judging, Order, Wanted
from ..pipeline.parts.parts_order import PartsOrder
from ..pipeline.plan import Step, make_plan
from ..pipeline.recorded_run import check_source
from .artifact_selection import cross_formats
from .project_faults import (
    Faults,
    check_gates,
    check_paths,
    check_shared_gates,
    place_for,
    read_gates,
)
from .project_reader import read_project_leniently
from .project_records import (
    PROJECT_FILE,
    KeyPath,
    ModelOrder,
    ModelSettings,
    Setting,
    SettingLayer,
    Settings,
)
from .setting_keys import ENGINE_KEYS, META, PARTIAL_KEYS, PARTS, TOLERANCE
from .setting_layers import Overrides, read_values, resolve_settings_leniently


@dataclass(frozen=True, kw_only=True)
class PlannedProject:
    """The settings of a project, and the orders of its models."""

    settings: Settings
    models: tuple[ModelOrder, ...]


def plan_project(
    file: Path = Path(PROJECT_FILE),
    *,
    given: Overrides | None = None,
    names: Sequence[str] = (),
    cache: Path | None = None,
) -> PlannedProject:
    """Read the file, apply variables and flags, and plan each model.

    Args:
        file: a modelc.toml.
        given: flags and variables.
        names: the models to plan; all of them if empty.
        cache: the default folder of the cache, which `cache-dir` and `no-cache` override; with
            None there is no cache.

    Raises:
        ModelcError: all faults of the file, the flags, the variables and the models, as one.
    """
    faults = Faults()
    project = read_project_leniently(file, faults)
    settings = resolve_settings_leniently(project, given or Overrides(), faults)
    models = _make_orders(settings, faults, names=names, cache=cache)
    faults.raise_any()
    return PlannedProject(settings=settings, models=models)


def _unknown_model_error(name: str, known: Sequence[str]) -> UsageError:
    """Return the error for a name that is no model's: perhaps it is the project's file."""
    if not Path(name).is_file():
        return unknown_name_error("model", name, known)
    text, hint = f"{name} is a file, not a model", f"give it with -f: modelc run -f {name}"
    return UsageError(text, hint=hint, code=ErrorCode.UNKNOWN_NAME)


def _make_orders(
    settings: Settings, faults: Faults, *, names: Sequence[str], cache: Path | None
) -> tuple[ModelOrder, ...]:
    known = [model.name for model in settings.models]
    for name in names:
        if name not in known:
            faults.found.append(_unknown_model_error(name, known or ["(none)"]))
    if not known and ("models",) not in faults.rejected:
        file = settings.project.file
        faults.add(
            f"{file} has no model",
            hint="add [models.NAME] with checkpoint and to",
            code=ErrorCode.NOTHING_TO_DO,
        )
    run = settings.run
    place = cache and (run.cache_dir or cache)
    found = []
    for model in settings.models:
        if names and model.name not in names:
            continue
        one = _OrderMaker(model, run.out / model.name, place).order(faults)
        if one is not None:
            found.append(replace(one, order=replace(one.order, cache_limit=run.cache_limit)))
    if len(found) == len(known):  # otherwise the artifacts of the others are unknown
        said = (one for model in settings.models for one in model.said.values())
        asked = (name for model in found for name in model.artifact_names)
        check_shared_gates(said, tuple(dict.fromkeys(asked)), faults)
    return tuple(found)


class _OrderMaker:
    """Makes the order of one model."""

    def __init__(self, model: ModelSettings, out: Path, cache: Path | None) -> None:
        self.model = model
        usual = (("precision",),)  # an order sets the other defaults itself
        self.said = {
            path: one
            for path, one in model.said.items()
            if one.layer is not SettingLayer.BUILT_IN or path in usual
        }
        self.out = out
        self.cache = cache
        self.unused: list[str] = []

    def order(self, faults: Faults) -> ModelOrder | None:
        """Return the order with its plan; None if there are errors, which are added to `faults`."""
        before = len(faults.found)
        unsaid = [name for name in ("checkpoint", "to") if (name,) not in self.said]
        lacking = [name for name in unsaid if not faults.is_rejected(self.model.name, name)]
        for name in lacking:
            hint = f"add a line: {name} = ..."
            faults.add(f"{name} is missing", hint=hint, place=self.model.place)
        check_paths(self.said.values(), faults)
        if unsaid or self._is_rejected("precision", faults) or len(faults.found) > before:
            return None
        try:
            made = self._make()
        except ModelcError as error:
            if not any(self._is_rejected(name, faults) for name in error.options):
                places = self._places()
                faults.keep(error, place_for(error, places))
            return None
        artifacts = made.artifact_names
        measures = made.order.measuring is not None or self._is_rejected("data", faults)
        check_gates(self.said.values(), artifacts, faults, measures=measures)
        return made if len(faults.found) == before else None

    def _is_rejected(self, name: str, faults: Faults) -> bool:
        """Whether a setting is missing because its value was rejected."""
        name = PARTS if name == "part" else name
        said = self.said.get((name,))
        here = said is not None and said.layer is not SettingLayer.BUILT_IN
        return not here and faults.is_rejected(self.model.name, name)

    def _make(self) -> ModelOrder:
        """Return the order without shared settings that have no effect on this model.

        Raises:
            ModelcError: something is wrong with it.
        """
        while True:
            try:
                return self._make_as_set()
            except UsageError as error:
                unused = self._find_unused(error)
                if unused is None:
                    raise
                self.unused.append(f"{unused.name} ({unused.place}): {error.message}")
                del self.said[unused.path]

    def _find_unused(self, error: UsageError) -> Setting | None:
        """Return the shared setting that has no effect on this model, by the error."""
        said = self.said.get((error.option,))
        if error.code is not ErrorCode.NO_EFFECT:
            return None
        if said is None or not said.shared or said.path[0] not in PARTIAL_KEYS:
            return None
        return said

    def _make_as_set(self) -> ModelOrder:
        of = read_record(ArtifactOptions, read_values(self.said))
        matrix = cross_formats(of.to, of.precision)
        order = make_model_order(self.said, matrix.wanted, self.out, cache=self.cache)
        source = order.source
        if not find_hub_id(source.checkpoint):  # known when the run has located it
            check_source(source)
        parts, order = PartsOrder.read(self._read_given(), order)
        plan = make_plan(order)
        self._check_settings(order, plan)
        gates = read_gates(self.said)
        timed = any(gate.max_latency_ratio is not None for gate in gates)
        return ModelOrder(
            name=self.model.name,
            order=replace(order, discards=True, timed=timed, judging=self._select_judging(order)),
            plan=plan,
            gates=gates,
            left_out=matrix.left_out,
            unused=tuple(self.unused),
            places=self._places(),
            parts=parts,
        )

    def _select_judging(self, order: Order) -> Judging:
        """Return how it is judged, with the names of settings that are not of this model alone."""
        shared = frozenset(at[-1] for at, one in self.said.items() if one.shared)
        mine = {one.name for one in specs_of(TokenOptions)}  # in use for decoders alone
        return replace(order.judging, shared=shared & mine)

    def _read_given(self) -> dict[str, object]:
        """Return what is set, as options of `modelc export`."""
        parts = [f"{at[1]}={one.value}" for at, one in self.said.items() if at[0] == PARTS]
        tables = {**_read_meta(self.said), **({"part": tuple(parts)} if parts else {})}
        return {**read_values(self.said), **tables}

    def _check_settings(self, order: Order, plan: Sequence[Step]) -> None:
        if order.settings and not any(isinstance(step.target, Deferred | Native) for step in plan):
            name = next(key.name for key in ENGINE_KEYS if (key.name,) in self.said)
            raise UsageError(
                f"--{name} has no effect on the formats in `to`",
                hint="remove it",
                option=name,
                code=ErrorCode.NO_EFFECT,
            )

    def _places(self) -> dict[str, Place]:
        """The place of each key, and that of the model under ""."""
        said = [one for one in self.said.values() if one.layer is not SettingLayer.BUILT_IN]
        parts = [one.place.of(one.name) for one in said if one.path[0] == PARTS]
        found = {"": self.model.place, **{one.name: one.place.of(one.name) for one in said}}
        return {**found, "part": parts[0]} if parts else found


def make_model_order(
    said: Mapping[KeyPath, Setting], wanted: tuple[Wanted, ...], out: Path, *, cache: Path | None
) -> Order:
    """Make the order of a model from its settings, as `modelc export` does from its options.

    Raises:
        UsageError: the settings contradict each other.
    """
    given = {**read_values(said), **_read_meta(said)}
    checkpoint = Path(str(given.get("checkpoint", "")))
    order = make_order(given, checkpoint, wanted, limits=_make_limits(said), cache=cache)
    return replace(order, out=out)


def _read_meta(said: Mapping[KeyPath, Setting]) -> dict[str, object]:
    """Return the metadata as texts of `--meta`; nothing if none is set."""
    texts = tuple(f"{path[1]}={one.value}" for path, one in said.items() if path[0] == META)
    return {META: texts} if texts else {}


def _make_limits(said: Mapping[KeyPath, Setting]) -> tuple[Limits, dict[str, Limits]]:
    """Read the limits of `tolerance`: those for all outputs, and those by output."""
    found: dict[str, dict[str, float]] = {}
    for path, one in said.items():
        if path[0] == TOLERANCE and isinstance(one.value, int | float):
            output = path[1] if len(path) > 2 else ""  # noqa: PLR2004 - tolerance.OUTPUT.LIMIT
            found.setdefault(output, {})[path[-1].replace("-", "_")] = float(one.value)
    shared = Limits(**found.pop("", {}))
    return shared, {output: Limits(**limits) for output, limits in found.items()}
