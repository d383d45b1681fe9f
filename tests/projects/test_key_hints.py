"""Errors of commands, placed at the lines and keys of modelc.toml."""

from __future__ import annotations

import pytest

from modelc.core.errors import CheckpointError, Hint, Option, Place, UsageError
from modelc.projects.project_faults import key_hint, place_error

MODEL = Place(file="modelc.toml", line=12, key="[models.net]")
KEY = Place(file="modelc.toml", line=18, key="[models.net] model")
PLACES = {"": MODEL, "model": KEY}


@pytest.mark.parametrize(
    ("option", "flag", "key"),
    [
        (Option("calib", "DIR"), "--calib DIR", 'calib = "DIR"'),
        (Option("calib", "random"), "--calib random", 'calib = "random"'),
        (Option("input", '"lengths:float32[...]"'), '--input "lengths:float32[...]"',
         '"lengths:float32[...]" in input'),
        (Option("input"), "--input", "input"),
        (Option("no-strict"), "--no-strict", "no-strict = true"),
        (Option("opset", "21"), "--opset 21", "opset = 21"),
        (Option("to", "onnx"), "--to onnx", '"onnx" in to'),
        (Option("cache-dir"), "--cache-dir", "--cache-dir"),
    ],
)  # fmt: skip
def test_an_option_of_a_hint_is_the_key_of_its_name(option: Option, flag: str, key: str) -> None:
    hint = Hint("give ", option, " again")
    assert str(hint) == f"give {flag} again"
    assert str(key_hint(hint)) == f"give {key} again"


@pytest.mark.parametrize(("option", "place"), [("model", KEY), ("calib", MODEL), ("", MODEL)])
def test_an_error_of_a_model_is_at_the_line_of_its_key(option: str, place: Place) -> None:
    error = CheckpointError("nets has no TwoHead", hint="look at nets", option=option)
    found = place_error(error, PLACES)
    assert (found.place, found.text) == (place, f"{place}: {error.message}")
    assert (type(found), found.exit_code, found.message) == (CheckpointError, 3, error.message)
    assert type(place_error(UsageError("wrong", hint="look"), PLACES)) is UsageError
