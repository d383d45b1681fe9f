"""What a model calls its parts reaches the terminal as text, whatever is in it."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from modelc.cli.app import _print_error
from modelc.cli.console import CleanConsole, new_table, print_line
from modelc.cli.render import show_verdict
from modelc.cli.render_manifest import show_manifest

if TYPE_CHECKING:
    from rich.console import Console

EVIL = "a\x1b[2J\x1b]0;owned\x07b\x9bc\u202ed\rerror: fake"
RAW = ("\x1b[2J", "\x1b]0;", "\x07", "\x9b", "\u202e", "\r")


def shown(draw: Callable[[Console], None], *, terminal: bool) -> str:
    stream = io.StringIO()
    draw(CleanConsole(file=stream, force_terminal=terminal, width=120, highlight=False))
    return stream.getvalue()


def in_table(console: Console) -> None:
    table = new_table("name")
    table.add_row(EVIL)
    console.print(table)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("draw", [lambda c: c.print(EVIL), lambda c: print_line(c, EVIL), in_table])
def test_control_characters_are_shown_as_their_escapes(
    draw: Callable[[Console], None], terminal: bool
) -> None:
    text = shown(draw, terminal=terminal)
    assert not [raw for raw in RAW if raw in text]
    assert "\\x1b[2J" in text
    assert "\\u202e" in text


FORGED = "x\n::error file=a.py::forged\u2028row\r\n| pass |"


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    "draw",
    [
        lambda c: c.print(FORGED),
        lambda c: print_line(c, f"  note: {FORGED}"),
        lambda c: row(c, FORGED),
    ],
)
def test_a_name_with_line_breaks_makes_no_line_of_its_own(
    draw: Callable[[Console], None], terminal: bool
) -> None:
    text = shown(draw, terminal=terminal)
    lines = [line.strip() for line in text.splitlines()]
    assert not [line for line in lines if line.startswith(("::", "row", "| pass"))]
    assert "\\n::error" in text.replace("\n", "")


def row(console: Console, name: str) -> None:
    table = new_table("name", "verdict")
    table.add_row(name, "FAIL")
    console.print(table)


def test_a_name_that_is_a_forges_command_is_none_at_the_beginning_of_a_line() -> None:
    text = shown(lambda console: row(console, "::error::forged"), terminal=False)
    assert not [line for line in text.splitlines() if line.lstrip().startswith("::")]


@pytest.mark.parametrize("name", ["inspect", "calibrate"])
def test_names_in_a_model_and_in_samples_are_on_one_line(
    name: str, door: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    port = "x\n::error::forged"
    if name == "inspect":
        info = [onnx.helper.make_tensor_value_info(port, onnx.TensorProto.FLOAT, [1])]
        node = onnx.helper.make_node("Identity", [port], ["y"])
        out = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])]
        model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", info, out))
        onnx.helper.set_model_props(model, {"::error::key": "v"})
        onnx.save(model, tmp_path / "m.onnx")
        given = ["inspect", tmp_path / "m.onnx"]
    else:
        (tmp_path / "samples").mkdir()
        np.savez(tmp_path / "samples" / f"{port}.npz".replace(":", ""), z=np.ones((1, 3)))
        np.savez(tmp_path / "samples" / "b\n::error::forged.npz", x=np.full((1, 3), np.nan, "f"))
        given = ["calibrate", tmp_path / "samples", "--input", "x:float32[1,3]"]
    ran = door(*given)
    shown_lines = (ran.stdout + ran.stderr).splitlines()
    assert "forged" in ran.stdout + ran.stderr
    assert not [line for line in shown_lines if line.lstrip().startswith("::")]


def test_an_error_with_such_a_name_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    _print_error(f"no node {EVIL}\nhint: none", f"rename it\nerror: {EVIL}")
    text = capfd.readouterr().err
    assert not [raw for raw in RAW if raw in text]
    assert [line.partition(":")[0] for line in text.splitlines()] == ["error", "hint"]


def test_a_hostile_manifest_sends_nothing_raw(
    records: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = records.hostile()
    show_manifest(manifest, "out")
    for verdict in manifest.verdicts:
        show_verdict(verdict)
    text = capsys.readouterr().out
    assert len(text) > 100
    assert not [raw for raw in RAW if raw in text]
