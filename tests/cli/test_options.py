"""The options of all commands beside each other: one name has one meaning, help and place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from modelc.cli.app import make_app
from modelc.pipeline.option_spec import Panel

GROUP: Any = typer.main.get_command(make_app())  # typer's own classes are private
PANELS = [str(panel) for panel in Panel]
APART = {  # options that mean another thing in a command, and why
    ("--out", "run"): "the folder of all models, which the project file may name",
    ("--out", "merge"): "the folder of all models; the project file is not read",
    ("--out", "finish"): "the folder of all models, which the project file may name",
    ("--out", "debug"): "the default is the folder of the artifact",
    ("--out", "report"): "the default is the folder of the run; it may be a file",
    ("--out", "init"): "the project file",
    ("--out", "sbom"): "a file; the default is stdout",
    ("--out", "pack"): "a repository, which may hold models of others",
    ("--to", "pack"): "the kind of server",
    ("--check", "pack"): "of a repository, not of settings",
    ("--memory", "run"): "models run side by side and share it",
    ("--calib-samples", "calibrate"): "what is on disk is looked at as a whole by default",
    ("--fail-on-regression", "report"): "a flag: both runs are arguments",
}
MAKING = {"export", "build-ov", "build-trt"}
JUDGING = MAKING | {"validate"}
CHILDREN = JUDGING | {"debug", "inspect", "pack"}
SHARED = {  # what each of these commands has to take
    "--debug": None,  # every command
    "--quiet": None,
    "--report": JUDGING | {"run", "report"},
    "--sign-key": JUDGING | {"run", "merge", "finish"},
    "--isolate": CHILDREN,
    "--timeout": CHILDREN | {"run", "bench", "finish"},
    "--memory": CHILDREN | {"run"},
    "--fp16": MAKING,
    "--int8": MAKING,
    "--half-io": MAKING - {"build-ov"},  # OpenVINO's FP16 is of weights: its inputs stay float32
    "--bf16": MAKING - {"build-ov"},  # OpenVINO has none on record
    "--keep-fp": MAKING,
    "--patch": MAKING,
    "--custom-op": MAKING,
    "--dry-run": MAKING | {"run"},
    "--no-cache": MAKING | {"run", "finish"},
}


def commands(group: Any = GROUP, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its whole name, those of groups as well."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


COMMANDS = dict(commands())


def options(name: str) -> list[Any]:
    found = COMMANDS[name].params
    return [one for one in found if one.param_type_name == "option" and one.name != "help"]


def flag(option: Any) -> str:
    return str(max(option.opts, key=len))


BY_FLAG: dict[str, list[tuple[str, Any]]] = {}
for _name in COMMANDS:
    for _option in options(_name):
        BY_FLAG.setdefault(flag(_option), []).append((_name, _option))


def meaning(option: Any) -> dict[str, object]:
    wanted = ("opts", "secondary_opts", "help", "metavar", "default", "multiple", "rich_help_panel")
    return {name: getattr(option, name) for name in wanted}


@pytest.mark.parametrize("name", BY_FLAG)
def test_an_option_is_the_same_in_every_command(name: str) -> None:
    alike = [(where, meaning(o)) for where, o in BY_FLAG[name] if (name, where) not in APART]
    assert [one for one in alike if one[1] != alike[0][1]] == []


def test_what_is_apart_differs() -> None:
    for name, where in APART:
        usual = next(o for n, o in BY_FLAG[name] if (name, n) not in APART or n != where)
        own = next(o for n, o in BY_FLAG[name] if n == where)
        assert meaning(own) != meaning(usual), (name, where)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_a_panel_and_panels_have_one_order(name: str) -> None:
    found = [str(option.rich_help_panel) for option in options(name)]
    assert set(found) <= set(PANELS)
    assert found == sorted(found, key=PANELS.index)


@pytest.mark.parametrize("name", SHARED)
def test_the_commands_that_share_a_feature_take_its_option(name: str) -> None:
    wanted = SHARED[name]
    assert {where for where, _ in BY_FLAG[name]} == (set(COMMANDS) if wanted is None else wanted)


@pytest.mark.parametrize(
    "name", [one for one in COMMANDS if one != "sbom"]
)  # whose document is the result
def test_every_command_takes_json(name: str) -> None:
    assert "--json" in {flag(option) for option in options(name)}


@pytest.mark.parametrize("name", BY_FLAG)
def test_a_value_has_a_name_in_the_help(name: str) -> None:
    for where, option in BY_FLAG[name]:
        is_choice = type(option.default).__name__.endswith("Choice") or name == "--device"
        assert option.is_flag or option.metavar or is_choice or option.is_bool_flag, (name, where)


def test_half_inputs_of_a_format_that_has_none_are_refused(refuse: Any, digits: Any) -> None:
    lines = refuse(
        "export", *digits, "--to", "openvino:fp16", "--half-io", "--dry-run", code=2
    )  # fmt: skip
    assert "--half-io" in lines
    assert "--to onnx:fp16" in lines


def test_half_inputs_beside_such_a_format_are_taken(door: Any, digits: Any) -> None:
    wanted = ("--to", "openvino:fp16", "--to", "onnx:fp16", "--half-io", "--dry-run")
    assert door("export", *digits, *wanted).returncode == 0


def test_a_list_is_separated_by_commas_or_repeated(door: Any, digits: Any) -> None:
    both = door("export", *digits, "--to", "onnx,openvino:fp16", "--dry-run", "--json")
    one_by_one = door(
        "export", *digits, "--to", "onnx", "--to", "openvino:fp16", "--dry-run", "--json"
    )
    assert both.stdout == one_by_one.stdout
    assert "openvino-fp16" in both.stdout


def test_the_time_of_a_step_bounds_an_engine_too(refuse: Any, digits: Any) -> None:
    given = ("build-trt", *digits, "--int8", "--timeout", "soon")
    assert "soon" in refuse(*given, code=2)


@pytest.mark.parametrize(
    "command", ["doctor", "targets", "cache ls", "cache gc", "cache verify", "config"]
)
def test_a_table_command_takes_q(
    command: str, door: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "modelc.toml").write_text("[models.net]\ncheckpoint = 'net.pt'\nto = 'onnx'\n")
    folder = ("--cache-dir", tmp_path) if command.startswith("cache") else ()
    ran = door(*command.split(), *folder, "-q")
    assert ran.returncode in (0, 4), ran.stderr
    assert ran.stdout
