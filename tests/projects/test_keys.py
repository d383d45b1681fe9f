"""The keys of modelc.toml and the options of the commands: one vocabulary."""

from __future__ import annotations

from typing import Any

import typer

from modelc.cli.app import make_app
from modelc.core.kinds import Precision
from modelc.core.verdict import Limits
from modelc.pipeline.limit_text import LIMIT_FIELDS
from modelc.projects.setting_keys import (
    DEFAULT_KEYS,
    ENGINE_KEYS,
    GATE_KEYS,
    LIMIT_KEYS,
    MODEL_KEYS,
    RESERVED_NAMES,
    RUN_KEYS,
    TABLES,
)

GROUP: Any = typer.main.get_command(make_app())  # typer's own classes are private
SHOWN = {"json", "quiet", "debug", "dry-run", "help"}  # of one call
OF_RUN = {
    "out",
    "report",
    "overwrite",
    "timeout",
    "memory",
    "isolate",
    "sign-key",
}  # of `modelc run` as a whole
OF_PROJECTS = {"precision", "depends"}  # what only a project needs: several precisions, a cache
# `precision` says them; a table says it
OTHERWISE = {*Precision, "tolerance", "meta", "part"} - {"fp32"}


def options(command: str) -> dict[str, Any]:
    return {
        option.opts[-1].removeprefix("--"): option
        for option in GROUP.commands[command].params
        if option.param_type_name == "option"
    }


EXPORT = options("export")


def test_every_option_of_export_is_a_key_and_every_key_is_one() -> None:
    own = set(EXPORT) - SHOWN - OF_RUN - OTHERWISE
    engine = {key.name for key in ENGINE_KEYS}
    assert own == set(MODEL_KEYS) - engine - {"checkpoint", *OF_PROJECTS}


def test_no_name_means_two_things() -> None:
    assert not set(RUN_KEYS) & (set(MODEL_KEYS) | set(TABLES))
    assert set(DEFAULT_KEYS) == set(MODEL_KEYS) - {"checkpoint"}
    assert {*RUN_KEYS, *MODEL_KEYS, *TABLES} <= RESERVED_NAMES


def test_precisions_are_all_there_are() -> None:
    assert MODEL_KEYS["precision"].choices == tuple(Precision)


def test_limits_are_all_there_are_and_no_wider() -> None:
    from modelc.validators.tolerance import _LIMIT_RANGES

    assert {name: name.replace("-", "_") for name in LIMIT_KEYS} == LIMIT_FIELDS
    assert {field.replace("_", "-") for field in vars(Limits())} == set(LIMIT_KEYS)
    ranges = {
        name: tuple(None if abs(end) == float("inf") else end for end in ends)
        for name, ends in _LIMIT_RANGES.items()
    }
    assert ranges == {k.name.replace("-", "_"): (k.least, k.most) for k in LIMIT_KEYS.values()}


def test_what_no_option_says_is_told_by_the_key() -> None:
    assert not [
        key.name
        for key in (*RUN_KEYS.values(), *GATE_KEYS.values(), *LIMIT_KEYS.values())
        if not key.help
    ]
