"""Errors of commands, said of the lines and keys of modelc.toml."""

from __future__ import annotations

import pytest

from modelc.core.errors import CheckpointError, UsageError
from modelc.projects.wording import in_keys, placed

MODEL = "modelc.toml:12 [models.net]"
PLACES = {"": MODEL, "model": "modelc.toml:18 [models.net] model", "input": f"{MODEL} input"}


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("with --calib DIR (or not)", 'with calib = "DIR" (or not)'),
        ("or --calib random, which is marked", 'or calib = "random", which is marked'),
        ('add --input "lengths:float32[...]"', 'add "lengths:float32[...]" in input'),
        ("dims with --input NAME:DTYPE[DIM,...]", 'dims with "NAME:DTYPE[DIM,...]" in input'),
        ("give each --input another name", "give each input another name"),
        ("check --model and --model-arg, or add --no-strict to go on",
         "check model and model-arg, or add no-strict = true to go on"),
        ("add --allow-pickle, only if you", "add allow-pickle = true, only if you"),
        ("export it with --opset 21", "export it with opset = 21"),
        ("or --capture script", 'or capture = "script"'),
        ("add --to onnx, or leave it out", 'add "onnx" in to, or leave it out'),
        ("leave --method out", "leave method out"),
        ("pip install --force-reinstall torch", "pip install --force-reinstall torch"),
        ("give a folder with --cache-dir", "give a folder with --cache-dir"),
        ("modelc export net.pt --model nets:build", "modelc export net.pt --model nets:build"),
    ],
)  # fmt: skip
def test_an_option_of_a_hint_is_the_key_of_its_name(hint: str, said: str) -> None:
    assert in_keys(hint) == said


@pytest.mark.parametrize(
    ("message", "hint", "place"),
    [
        ("--model nets:TwoHead: nets has no 'TwoHead'", "look at nets", PLACES["model"]),
        ("forward requires lengths", 'add --input "lengths:float32[...]"', PLACES["input"]),
        ("net.pt is cut short", "fetch it again", MODEL),
        ("onnx-int8 needs samples", "give --calib DIR", MODEL),
    ],
)
def test_an_error_of_a_model_is_at_the_line_of_its_key(message: str, hint: str, place: str) -> None:
    error = placed(CheckpointError(message, hint=hint), PLACES)
    assert error.message == f"{place}: {message}"
    assert (type(error), error.exit_code) == (CheckpointError, 3)
    assert type(placed(UsageError(message, hint=hint), PLACES)) is UsageError
