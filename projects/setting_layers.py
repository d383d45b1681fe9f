"""Resolve settings: flags, environment, model tables, defaults, built-in values, in this order."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.errors import ErrorCode, Place, UsageError, unknown_name_error
from ..pipeline.model_metadata import make_meta, split_meta
from ..pipeline.option_spec import OptionSpec, ValueKind, read_record
from ..pipeline.option_table import OPTIONS
from ..pipeline.option_values import parse_parts
from ..pipeline.parts.parts_file import check_part_name
from .project_faults import Faults
from .project_reader import (
    parse_dotted_key,
    parse_limit_texts,
    read_project_leniently,
    unknown_key_hint,
)
from .project_records import (
    KeyPath,
    ModelSettings,
    Project,
    Setting,
    SettingLayer,
    Settings,
    format_key_path,
)
from .setting_keys import (
    DEFAULT_KEYS,
    GATE_KEYS,
    GATES,
    LIMIT_KEYS,
    META,
    MODEL_KEYS,
    PARTS,
    RUN_KEYS,
    TOLERANCE,
    RunSettings,
)
from .setting_values import parse_value_text

VARIABLE_PREFIX = "MODELC_"
# Variables of commands, which are not project settings.
OTHER_VARIABLES = frozenset(
    {"MODELC_ISOLATE", "MODELC_PRELOAD", *(one.env for one in OPTIONS if one.env)}
)
_CURRENT_FOLDER = Path()  # the base of relative paths in flags and variables


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Settings beside the file, as text.

    `sets` are `key=value` or `model.key=value`, `flags` are options of the run by their keys, and
    `environment` holds variables, of which those that begin with MODELC_ count.
    """

    sets: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def resolve_settings(project: Project, given: Overrides | None = None) -> Settings:
    """Return the effective settings, each with its layer and place.

    Raises:
        UsageError: flags or variables have invalid values; the error names all of them.
    """
    faults = Faults()
    settings = resolve_settings_leniently(project, given or Overrides(), faults)
    faults.raise_any()
    return settings


def resolve_settings_leniently(project: Project, given: Overrides, faults: Faults) -> Settings:
    """Resolve settings like `resolve_settings`, but add invalid values to `faults`."""
    warnings: list[str] = []
    variables = tuple(_read_variables(given.environment, faults, warnings))
    flags = tuple(_read_flags(project, given, faults))
    shared = (*variables, *(said for model, said in flags if model is None))
    weaker = (*_default_settings(DEFAULT_KEYS, project.folder), *project.defaults)
    stronger = tuple(one for one in shared if one.path[0] not in RUN_KEYS)
    models = []
    for name, said in project.models.items():
        own = (one for model, one in flags if model == name)
        models.append(
            ModelSettings(
                name=name,
                place=project.places.get(name, Place(file=str(project.file))),
                said={one.path: one for one in (*weaker, *said, *stronger, *own)},  # the last wins
            )
        )
    runs = (*_default_settings(RUN_KEYS, project.folder), *project.run, *shared)
    run = {one.path: one for one in runs if one.path[0] in RUN_KEYS}
    return Settings(
        project=project,
        run=read_record(RunSettings, read_values(run)),
        run_said=run,
        models=tuple(models),
        warnings=tuple(warnings),
    )


def select_model_overrides(given: Overrides) -> Overrides:
    """Return the variables and `--set` that models have, the same on all hosts of a run.

    Folders, limits and switches of this host, such as that of its cache, are left out.
    """
    names = {name for name, path in _variable_names().items() if path[0] not in RUN_KEYS}
    return Overrides(
        sets=tuple(one for one in given.sets if one.partition("=")[0].strip() not in RUN_KEYS),
        environment={name: text for name, text in given.environment.items() if name in names},
    )


def read_run_settings(file: Path, given: Overrides) -> RunSettings:
    """Return the settings of the run, even of a project with faults, as far as it can be read."""
    faults = Faults()
    try:
        project = read_project_leniently(file, faults)
    except UsageError:
        project = Project(file=file)
    return resolve_settings_leniently(project, given, faults).run


def _default_settings(keys: Mapping[str, OptionSpec], folder: Path) -> Iterator[Setting]:
    """Yield the defaults; paths are relative to the folder of the project."""
    for name, key in keys.items():
        if key.default is not None:
            value = str(folder / str(key.default)) if key.kind is ValueKind.PATH else key.default
            yield Setting(
                path=(name,), value=value, layer=SettingLayer.BUILT_IN, place=Place(key="default")
            )


def _read_flags(
    project: Project, given: Overrides, faults: Faults
) -> Iterator[tuple[str | None, Setting]]:
    """Yield the model of each flag, None for all models, and its setting."""
    for name, text in given.flags.items():
        with faults.at(Place(key=f"--{name}")):
            for said in _parse_setting((name,), text, SettingLayer.FLAG, Place(key=f"--{name}")):
                yield None, said
    for text in given.sets:
        with faults.at(Place(key=f"--set {text[:80]}")):
            model, path, value = _split_flag(text, project.models)
            if model is None and path == ("checkpoint",):
                raise UsageError(
                    "each model has its own checkpoint",
                    hint="write --set NAME.checkpoint=PATH",
                    code=ErrorCode.UNKNOWN_NAME,
                )
            if model is not None and path[:1] and path[0] in RUN_KEYS:
                name = path[0]
                raise UsageError(
                    f"{name} is a setting of the run",
                    hint=f"write --set {name}={value}",
                    code=ErrorCode.UNKNOWN_NAME,
                )
            table = ("defaults",) if model is None else ("models", model)
            with faults.record_rejection((*table, *path)):
                for said in _parse_setting(path, value, SettingLayer.FLAG, Place(key="--set")):
                    yield model, replace(said, shared=model is None)


def _split_flag(text: str, models: Mapping[str, object]) -> tuple[str | None, KeyPath, str]:
    """Split `digits.seed=3` into model, path and value."""
    at = -1
    while True:
        at = text.find("=", at + 1)
        if at < 0:
            raise UsageError(
                "not KEY=VALUE",
                hint="write --set seed=3 or digits.seed=3",
                code=ErrorCode.INVALID_VALUE,
            )
        path = _parse_key_path(text[:at])
        if path:
            break
    if path[0] in models:
        return path[0], path[1:], text[at + 1 :]
    if len(path) > 1 and path[0] not in (GATES, TOLERANCE, META, PARTS):
        raise unknown_name_error("model", path[0], list(models) or ["(none)"])
    return None, path, text[at + 1 :]


def _parse_key_path(text: str) -> KeyPath:
    """Split a TOML key into its parts; empty if it is not a key."""
    if "\n" in text or text.count(".") > len(text) // 2:
        return ()
    try:
        return parse_dotted_key(text)
    except ValueError:
        return ()


def _parse_setting(
    path: KeyPath, text: str, layer: SettingLayer, place: Place
) -> Iterator[Setting]:
    """Parse the text of a setting; `tolerance` may hold several limits.

    Raises:
        UsageError: the key is unknown, or the value is invalid.
    """
    if path == (TOLERANCE,):
        texts = parse_value_text(OptionSpec(name=TOLERANCE, many=True), text, _CURRENT_FOLDER)
        for output, name, value in parse_limit_texts(texts if isinstance(texts, tuple) else ()):
            under = (TOLERANCE, output, name) if output else (TOLERANCE, name)
            yield Setting(path=under, value=value, layer=layer, place=place)
        return
    if path[:1] == (META,):
        given = text if len(path) == 1 else f"{'.'.join(path[1:])}={text}"
        pairs = split_meta((given,), _CURRENT_FOLDER)
        make_meta(pairs)
        for meta_key, meta_text in pairs.items():
            yield Setting(path=(META, meta_key), value=meta_text, layer=layer, place=place)
        return
    if path[:1] == (PARTS,):
        for part, method in parse_parts(
            (text if len(path) == 1 else f"{path[-1]}={text}",)
        ).items():
            check_part_name(part)
            yield Setting(path=(PARTS, part), value=method, layer=layer, place=place)
        return
    key = _find_key(path)
    yield Setting(
        path=path, value=parse_value_text(key, text, _CURRENT_FOLDER), layer=layer, place=place
    )


def _find_key(path: KeyPath) -> OptionSpec:
    """Find the key of a path in its table."""
    under = {GATES: GATE_KEYS, TOLERANCE: LIMIT_KEYS}.get(path[0] if path else "")
    known = under if under is not None else {**RUN_KEYS, **MODEL_KEYS}
    depths = (2, 3) if under is not None else (1,)
    if len(path) not in depths or path[-1] not in known:
        name = format_key_path(path) or "(nothing)"
        hint = unknown_key_hint(path[-1] if path else "", known)
        if under is not None and len(path) not in depths:
            hint = f"known keys: {', '.join(f'{path[0]}.{key}' for key in under)}"
        raise UsageError(f"unknown key {name}", hint=hint, code=ErrorCode.UNKNOWN_NAME)
    return known[path[-1]]


def _read_variables(
    environment: Mapping[str, str], faults: Faults, warnings: list[str]
) -> Iterator[Setting]:
    known = _variable_names()
    for name, text in sorted(environment.items()):
        if not name.startswith(VARIABLE_PREFIX) or name in OTHER_VARIABLES:
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            more = f": did you mean {near[0]}?" if near else ""
            warnings.append(f"unknown variable {name} has no effect{more}")
            continue
        setting = ("defaults", *known[name])
        with faults.at(Place(key=f"env {name}={text[:80]}")), faults.record_rejection(setting):
            for said in _parse_setting(
                known[name], text, SettingLayer.ENV, Place(key=f"env {name}")
            ):
                yield replace(said, shared=True)


def _variable_names() -> dict[str, KeyPath]:
    """Map variables to paths: `MODELC_GATES_MAX_DROP` is gates.max-drop."""
    plain: list[KeyPath] = [(name,) for name in (*RUN_KEYS, *DEFAULT_KEYS, TOLERANCE)]
    paths = [
        *plain,
        *((GATES, name) for name in GATE_KEYS),
        *((TOLERANCE, name) for name in LIMIT_KEYS),
    ]
    return {VARIABLE_PREFIX + "_".join(path).upper().replace("-", "_"): path for path in paths}


def read_values(said: Mapping[KeyPath, Setting]) -> dict[str, object]:
    """Map keys to values, for records of options; the tables have their own readers."""
    return {path[0]: one.value for path, one in said.items() if len(path) == 1}
