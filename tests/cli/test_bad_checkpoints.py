"""Checkpoints and factories that cannot be used: one line of error, one of hint, nothing left."""

from __future__ import annotations

import argparse
import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

Refuse = Callable[..., str]
Ran = subprocess.CompletedProcess[str]
REST = ("--to", "torchscript", "-o", "out")
MODEL = ("--model", "modelc.sample_models.digits:build")
IMAGE = ("--input", "x:float32[batch=1..8,1,8,8]")


@pytest.fixture
def net(tmp_path: Path) -> Callable[[str], str]:
    """`net(source)`: a user's module in the working folder; gives its unique name."""

    def write(source: str) -> str:
        name = f"net_of_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


def test_a_missing_file_is_told(refuse: Refuse) -> None:
    told = refuse("export", "nofile.pt", *MODEL, *IMAGE, *REST, code=2)
    assert "nofile.pt" in told


def test_a_misspelt_file_gets_a_suggestion(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(b"")
    assert "weights.pt" in refuse("export", "weihgts.pt", *MODEL, *REST, code=2)


def test_a_text_file_is_no_checkpoint(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_text("only words\n")
    told = refuse("export", "a.pt", *MODEL, *IMAGE, *REST, code=3)
    assert "a.pt " in told


def test_an_empty_file_is_told(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"")
    assert "a.pt" in refuse("export", "a.pt", *MODEL, *IMAGE, *REST, code=3)


@pytest.mark.parametrize("kept", [20, 100, 5000])
def test_truncated_safetensors_are_told(
    refuse: Refuse, tmp_path: Path, weights: Path, kept: int
) -> None:
    (tmp_path / "a.safetensors").write_bytes(weights.read_bytes()[:kept])
    assert "truncated" in refuse("export", "a.safetensors", *MODEL, *IMAGE, *REST, code=3)


def test_a_truncated_zip_is_told(refuse: Refuse, tmp_path: Path) -> None:
    whole = tmp_path / "whole.pt"
    torch.save(nn.Linear(3, 2).state_dict(), whole)
    (tmp_path / "a.pt").write_bytes(whole.read_bytes()[:-300])
    assert "truncated" in refuse("export", "a.pt", *MODEL, *IMAGE, *REST, code=3)


def test_another_zip_is_no_checkpoint(refuse: Refuse, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("letter.txt", "words")
    assert "letter.txt" in refuse("export", "a.pt", *MODEL, *IMAGE, *REST, code=3)


def test_a_full_pickle_is_refused_by_the_name_of_what_it_holds(
    refuse: Refuse, tmp_path: Path
) -> None:
    torch.save(nn.Linear(3, 2), tmp_path / "a.pt")
    told = refuse("export", "a.pt", *MODEL, *IMAGE, *REST, code=2)
    assert "torch.nn.modules.linear.Linear" in told
    assert "add --allow-pickle" in told


def test_objects_beside_weights_need_consent_which_is_enough(
    refuse: Refuse, door: Callable[..., Ran], tmp_path: Path
) -> None:
    held = {"model": nn.Linear(3, 2).state_dict(), "args": argparse.Namespace(depth=1)}
    torch.save(held, tmp_path / "a.pt")
    linear = ("--model", "torch.nn:Linear", "--model-arg", "in_features=3")
    sizes = ("--model-arg", "out_features=2", "--input", "input:float32[2,3]")
    given = ("a.pt", *linear, *sizes, *REST)
    assert "add --allow-pickle" in refuse("export", *given, code=2)
    ran = door("export", *given, "--allow-pickle", "--no-isolate", "--sensitivity", "0")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("command", ["inspect", "export"])
def test_where_consent_has_no_option_the_hint_names_none(
    refuse: Refuse, tmp_path: Path, command: str
) -> None:
    torch.save({"x": torch.ones(2), "args": argparse.Namespace(depth=1)}, tmp_path / "a.pt")
    given: tuple[str, ...] = ("a.pt",)
    if command == "export":
        torch.save({}, tmp_path / "net.pt")
        given = ("net.pt", "--model", "torch.nn:Identity", "--samples", "a.pt", *REST)
    told = refuse(command, *given, code=2)
    assert "argparse.Namespace" in told
    assert "--allow-pickle" not in told


def test_a_shard_that_is_not_there_is_named(refuse: Refuse, tmp_path: Path) -> None:
    index = {"weight_map": {"weight": "m-1-of-2.safetensors"}}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps(index))
    told = refuse("export", "m.safetensors.index.json", *MODEL, *IMAGE, *REST, code=3)
    assert "m-1-of-2.safetensors" in told


def test_weights_alone_need_a_factory(refuse: Refuse, weights: Path) -> None:
    assert "--model PKG.MOD:FACTORY" in refuse("export", weights, *IMAGE, *REST, code=2)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("no_such_package:build", "no module 'no_such_package'"),
        (
            "modelc.sample_models.digits:bild",
            "did you mean build?",
        ),
        ("digits", "not of the form PKG.MOD:FACTORY"),
        ("nets/digits.py:build", "write --model nets.digits:build"),
        ("modelc.sample_models.digits:SIGNATURE", "a tuple, which cannot be called"),
    ],
)
def test_a_factory_that_is_not_there_is_told(
    refuse: Refuse, weights: Path, model: str, said: str
) -> None:
    assert said in refuse("export", weights, "--model", model, *IMAGE, *REST, code=2)


def test_a_factory_that_raises_is_told_with_the_users_line(
    refuse: Refuse, weights: Path, net: Callable[[str], str]
) -> None:
    name = net('def build():\n    sizes = {}\n    return sizes["width"]\n')
    told = refuse("export", weights, "--model", f"{name}:build", *IMAGE, *REST, code=3)
    assert f"raised KeyError at {name}.py:3: 'width'" in told


def test_a_module_that_does_not_import_is_told_with_the_users_line(
    refuse: Refuse, weights: Path, net: Callable[[str], str]
) -> None:
    name = net("import math\nmath.no_such_function()\n")
    told = refuse("export", weights, "--model", f"{name}:build", *IMAGE, *REST, code=3)
    assert f"importing {name} raised AttributeError at {name}.py:2" in told


def test_a_factory_must_return_a_module(
    refuse: Refuse, weights: Path, net: Callable[[str], str]
) -> None:
    name = net("def build():\n    return 3\n")
    told = refuse("export", weights, "--model", f"{name}:build", *IMAGE, *REST, code=3)
    assert "returned int" in told


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("width", "'width' is not KEY=VALUE"),
        ("width=wide", "width is int"),
        ("widht=3", "did you mean width?"),
        ("width=3", "'depth'"),
    ],
)
def test_a_wrong_argument_of_the_factory_is_told(
    refuse: Refuse, weights: Path, net: Callable[[str], str], given: str, said: str
) -> None:
    name = net("def build(width: int, depth: int):\n    ...\n")
    model = ("--model", f"{name}:build", "--model-arg", given)
    assert said in refuse("export", weights, *model, *IMAGE, *REST, code=2)


def test_missing_keys_are_named(refuse: Refuse, tmp_path: Path) -> None:
    torch.save({"bias": torch.ones(2)}, tmp_path / "a.pt")
    model = ("--model", "torch.nn:Linear", "--model-arg", "in_features=3")
    rest = ("--model-arg", "out_features=2", "--input", "x:float32[3]", *REST)
    assert "1 missing: weight" in refuse("export", "a.pt", *model, *rest, code=3)


def test_a_shape_that_does_not_fit_is_named(refuse: Refuse, tmp_path: Path) -> None:
    torch.save(nn.Linear(4, 2).state_dict(), tmp_path / "a.pt")
    model = ("--model", "torch.nn:Linear", "--model-arg", "in_features=3")
    rest = ("--model-arg", "out_features=2", "--input", "x:float32[3]", *REST)
    told = refuse("export", "a.pt", *model, *rest, code=3)
    assert "(2, 4)" in told
    assert "(2, 3)" in told
