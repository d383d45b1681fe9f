"""The keys of modelc.toml and the options of the commands: one vocabulary."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import typer

from modelc.cli.app import app
from modelc.core.kinds import Precision
from modelc.core.verdict import Limits
from modelc.pipeline.limit_text import LIMIT_FIELDS
from modelc.pipeline.option_spec import OptionSpec, ValueKind
from modelc.projects.setting_keys import (
    DEFAULT_KEYS,
    ENGINE_KEYS,
    GATE_KEYS,
    LIMIT_KEYS,
    MODEL_KEYS,
    RESERVED_NAMES,
    RUN_KEYS,
    SHARED_KEYS,
    TABLES,
)

GROUP: Any = typer.main.get_command(app)  # typer's own classes are private
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
OTHERWISE = {"fp16", "bf16", "int8", "tolerance"}  # `precision` says them; a table says it
KINDS = {
    ValueKind.WHOLE: (int,),
    ValueKind.NUMBER: (float,),
    ValueKind.TRUTH: (bool,),
    ValueKind.TEXT: (str,),
}


def options(command: str) -> dict[str, Any]:
    return {
        option.opts[-1].removeprefix("--"): option
        for option in GROUP.commands[command].params
        if option.param_type_name == "option"
    }


EXPORT = options("export")
BUILD = options("build-trt")


def test_every_option_of_export_is_a_key_and_every_key_is_one() -> None:
    own = set(EXPORT) - SHOWN - OF_RUN - OTHERWISE
    engine = {key.name for key in ENGINE_KEYS}
    assert own == set(MODEL_KEYS) - engine - {"checkpoint", *OF_PROJECTS}


def test_every_setting_of_an_engine_is_a_key_and_every_key_is_one() -> None:
    beside = {"against", "checkpoint", "prepare-only"}
    own = set(BUILD) - set(EXPORT) - SHOWN - OF_RUN - OTHERWISE - beside
    assert own == {key.name for key in ENGINE_KEYS}


@pytest.mark.parametrize(
    "key", [key for key in SHARED_KEYS if key.name not in OF_PROJECTS], ids=lambda key: key.name
)
def test_a_key_is_of_its_options_type(key: OptionSpec) -> None:
    annotation = (EXPORT.get(key.name) or BUILD[key.name]).type_descriptor.annotation
    assert (get_origin(annotation) is list) is key.many
    kind = get_args(annotation)[0] if key.many else annotation
    if issubclass(kind, Enum):
        assert tuple(one.value for one in kind) == key.choices
    else:
        assert kind in KINDS.get(key.kind, (str, Path))


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
