"""What a model calls its parts reaches the terminal as text, whatever is in it."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from modelc.cli.app import _tell
from modelc.cli.render import show_verdict
from modelc.cli.render_manifest import show_manifest
from modelc.cli.tables import CleanConsole, new_table, say

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
@pytest.mark.parametrize("draw", [lambda c: c.print(EVIL), lambda c: say(c, EVIL), in_table])
def test_control_characters_are_shown_as_their_escapes(
    draw: Callable[[Console], None], terminal: bool
) -> None:
    text = shown(draw, terminal=terminal)
    assert not [raw for raw in RAW if raw in text]
    assert "\\x1b[2J" in text
    assert "\\u202e" in text


def test_an_error_with_such_a_name_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    _tell(f"no node {EVIL}\nhint: none", f"rename it\nerror: {EVIL}")
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
