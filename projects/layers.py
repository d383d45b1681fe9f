"""Flags over environment over [models.NAME] over [defaults] over what is built in."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.errors import Place, UsageError
from ..core.names import unknown
from .faults import Faults
from .keys import (
    DEFAULTS,
    FORMER,
    GATE,
    GATES,
    LIMIT,
    MODEL,
    REPLACED,
    RUN,
    TOLERANCE,
    Key,
    Kind,
)  # fmt: skip
from .reading import hint_for, limits_in, read_lenient
from .records import KeyPath, Layer, ModelSettings, Project, RunSettings, Said, Settings, dotted
from .typed import Typed
from .values import value_in_text

PREFIX = "MODELC_"
ELSEWHERE = ("MODELC_ISOLATE", "MODELC_SIGN_KEY")  # of commands, and no settings of a project
_HERE = Path()  # what paths of flags and variables are relative to


@dataclass(frozen=True, kw_only=True)
class Given:
    """What is said beside the file, as text.

    `sets` are `key=value` or `model.key=value`, `flags` options of the run by their keys, and
    `environment` variables of any name: those that begin with MODELC_ count.
    """

    sets: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def settings_of(project: Project, given: Given | None = None) -> Settings:
    """What holds, and who said so.

    Raises:
        UsageError: a flag or a variable that cannot be: all of them, each named.
    """
    faults = Faults()
    settings = settings_lenient(project, given or Given(), faults)
    faults.raise_any()
    return settings


def settings_lenient(project: Project, given: Given, faults: Faults) -> Settings:
    """The same without what is wrong, which goes to `faults`."""
    warnings: list[str] = []
    variables = tuple(_variables(given.environment, faults, warnings))
    flags = tuple(_flags(project, given, faults))
    weaker = (*_usual(DEFAULTS, project.folder), *project.defaults)
    models = tuple(
        ModelSettings(
            name=name,
            place=project.places.get(name, Place(file=str(project.file))),
            said=_topmost(
                (*weaker, *said, *_of_models((*variables, *_of(flags, None))), *_of(flags, name))
            ),
        )
        for name, said in project.models.items()
    )
    runs = (
        *_usual(RUN, project.folder),
        *project.run,
        *_of_run(variables),
        *_of_run(_of(flags, None)),
    )
    run = _topmost(runs)
    return Settings(
        project=project,
        run=run_settings(run),
        run_said=run,
        models=models,
        warnings=tuple(warnings),
    )


def results_folder(file: Path, given: Given) -> Path:
    """Where the results of a project go, also of one that is refused: as far as it can be read."""
    faults = Faults()
    try:
        project = read_lenient(file, faults)
    except UsageError:
        project = Project(file=file)
    return settings_lenient(project, given, faults).run.out


def run_settings(said: Mapping[KeyPath, Said]) -> RunSettings:
    """The settings of the run as one record."""
    of = Typed(said)
    usual = RunSettings()
    return RunSettings(
        out=of.path("out") or usual.out,
        jobs=of.whole("jobs") or usual.jobs,
        memory=of.whole("memory"),
        timeout=of.number("timeout"),
        keep_going=of.truth("keep-going"),
        cache_dir=of.path("cache-dir"),
        cache_limit=of.whole("cache-limit"),
        remote_cache=of.text("remote-cache"),
        report=of.texts("report"),
    )


def _usual(keys: Mapping[str, Key], folder: Path) -> Iterator[Said]:
    """What is built in; paths are below the project's folder."""
    for name, key in keys.items():
        if key.usual is not None:
            value = str(folder / str(key.usual)) if key.kind is Kind.PATH else key.usual
            yield Said(path=(name,), value=value, layer=Layer.BUILT_IN, told=Place(key="default"))


def _topmost(said: Sequence[Said]) -> dict[KeyPath, Said]:
    """By path, the last that was said."""
    return {one.path: one for one in said}


@dataclass(frozen=True, kw_only=True)
class _Flag:
    """A flag, and the model that it is for; None is for all."""

    model: str | None
    said: Said


def _of(flags: Sequence[_Flag], model: str | None) -> tuple[Said, ...]:
    return tuple(flag.said for flag in flags if flag.model == model)


def _of_run(said: Sequence[Said]) -> tuple[Said, ...]:
    return tuple(one for one in said if one.path[0] in RUN)


def _of_models(said: Sequence[Said]) -> tuple[Said, ...]:
    return tuple(one for one in said if one.path[0] not in RUN)


def _flags(project: Project, given: Given, faults: Faults) -> Iterator[_Flag]:
    for name, text in given.flags.items():
        with faults.at(Place(key=f"--{name}")):
            for said in _spoken((name,), text, Layer.FLAG, Place(key=f"--{name}")):
                yield _Flag(model=None, said=said)
    for text in given.sets:
        with faults.at(Place(key=f"--set {text[:80]}")):
            model, path, value = _pair(text, project.models)
            if model is None and path == ("checkpoint",):
                raise UsageError("each model has its own", hint="write --set NAME.checkpoint=PATH")
            if model is not None and path[:1] and path[0] in RUN:
                name = path[0]
                raise UsageError(f"{name} is of the whole run", hint=f"write --set {name}={value}")
            table = ("defaults",) if model is None else ("models", model)
            with faults.refusing((*table, *path)):
                for said in _spoken(path, value, Layer.FLAG, Place(key="--set")):
                    yield _Flag(model=model, said=replace(said, shared=model is None))


def _pair(text: str, models: Mapping[str, object]) -> tuple[str | None, KeyPath, str]:
    """`digits.seed=3` taken apart: the model, the path, the value's text."""
    at = -1
    while True:
        at = text.find("=", at + 1)
        if at < 0:
            raise UsageError("it is not KEY=VALUE", hint="write --set seed=3 or digits.seed=3")
        path = _dotted_path(text[:at])
        if path:
            break
    if path[0] in models:
        return path[0], path[1:], text[at + 1 :]
    if len(path) > 1 and path[0] not in (GATES, TOLERANCE):
        raise unknown("model", path[0], list(models) or ["(none)"])
    return None, path, text[at + 1 :]


def _dotted_path(text: str) -> KeyPath:
    """The parts of a key as TOML has it; empty where it is none."""
    if "\n" in text or text.count(".") > len(text) // 2:
        return ()
    try:
        table: object = tomllib.loads(f"{text} = 0")
    except ValueError:
        return ()
    parts: list[str] = []
    while isinstance(table, dict):
        ((part, table),) = table.items()
        parts.append(part)
    return tuple(parts)


def _spoken(path: KeyPath, text: str, layer: Layer, told: Place) -> Iterator[Said]:
    """What a text says under a path; `tolerance` may say several limits.

    Raises:
        UsageError: an unknown key, or a value that it cannot have.
    """
    if path == (TOLERANCE,):
        texts = value_in_text(Key(name=TOLERANCE, many=True), text, _HERE)
        for output, name, value in limits_in(texts if isinstance(texts, tuple) else ()):
            under = (TOLERANCE, output, name) if output else (TOLERANCE, name)
            yield Said(path=under, value=value, layer=layer, told=told)
        return
    path = tuple(FORMER.get(name, name) for name in path)
    key = _key_at(path)
    yield Said(path=path, value=value_in_text(key, text, _HERE), layer=layer, told=told)


def _key_at(path: KeyPath) -> Key:
    """The key of a path, in the table where it belongs."""
    under = {GATES: GATE, TOLERANCE: LIMIT}.get(path[0] if path else "")
    known = under if under is not None else {**RUN, **MODEL}
    depths = (2, 3) if under is not None else (1,)
    if len(path) not in depths or path[-1] not in known:
        name = dotted(path) or "(nothing)"
        hint = hint_for(path[-1] if path else "", known)
        if under is not None and len(path) not in depths:
            hint = f"known are {', '.join(f'{path[0]}.{key}' for key in under)}"
        raise UsageError(f"unknown key {name}", hint=hint)
    return known[path[-1]]


def _variables(
    environment: Mapping[str, str], faults: Faults, warnings: list[str]
) -> Iterator[Said]:
    known = _variable_names()
    for name, text in sorted(environment.items()):
        if not name.startswith(PREFIX):
            continue
        if name in ELSEWHERE:
            continue
        replaced = REPLACED.get(name.removeprefix(PREFIX).lower().replace("_", "-"))
        if replaced:
            warnings.append(f"{name} has no effect: {_variable(replaced)}")
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            mend = f": did you mean {near[0]}?" if near else ", and it has no effect"
            warnings.append(f"nothing is called {name}{mend}")
            continue
        setting = ("defaults", *known[name])
        with faults.at(Place(key=f"env {name}={text[:80]}")), faults.refusing(setting):
            for said in _spoken(known[name], text, Layer.ENV, Place(key=f"env {name}")):
                yield replace(said, shared=True)


def _variable(text: str) -> str:
    """What to write in place of a key of an earlier version, said of its variable."""
    key, comma, rest = text.partition(",")
    return f"use {PREFIX}{key.upper().replace('-', '_')}{comma}{rest}"


def _variable_names() -> dict[str, KeyPath]:
    """The path by the name of its variable: `MODELC_GATES_MAX_DROP` is of gates.max-drop."""
    plain = [(name,) for name in (*RUN, *DEFAULTS, TOLERANCE)]
    paths = [*plain, *((GATES, name) for name in GATE), *((TOLERANCE, name) for name in LIMIT)]
    named: dict[KeyPath, KeyPath] = {path: path for path in paths}
    named |= {(old,): (new,) for old, new in FORMER.items()}
    return {PREFIX + "_".join(name).upper().replace("-", "_"): path for name, path in named.items()}
