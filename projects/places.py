"""At which line of a TOML file each key stands; the standard library's reader does not say."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping

from .records import KeyPath

_TOML_TOKEN = re.compile(
    r"""(?P<text>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
    r"""|(?P<comment>\#[^\n]*)|(?P<sign>[\[\]{}=,\n])|(?P<bare>[^\s\[\]{}=,"'\#]+)""",
    re.S,
)
_OPEN_BRACKETS, _CLOSE_BRACKETS = "[{", "]}"


def find_key_lines(text: str) -> dict[KeyPath, int]:
    """The line, from 1, of every table and key of a text that TOML's reader took."""
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for line, header, name in _statements(text):
        path = _parse_dotted_key(name)
        if header:
            table = path
            found.setdefault(table, line)
        else:
            found.setdefault((*table, *path), line)
    return found


def nearest_line(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """The line of a key, of the first thing in it, or of the nearest table around that has one."""
    around = [path[:size] for size in range(len(path), 0, -1)]
    first = (one for one in lines if one[: len(path)] == path)
    return next((lines[one] for one in (path, *first, *around) if one in lines), None)


def _statements(text: str) -> Iterator[tuple[int, bool, str]]:
    """Line, whether it is a table's header, and the name, of each statement."""
    name: list[str] = []
    depth, in_value = 0, False
    for line, sign, word in _tokens(f"{text}\n"):
        if in_value:
            depth += (word in _OPEN_BRACKETS) - (word in _CLOSE_BRACKETS) if sign else 0
            in_value = depth > 0 or word != "\n"
        elif word in ("\n", "="):
            if name:
                yield line, word == "\n", "".join(name)
            name, in_value = [], word == "="
        elif not sign:
            name.append(word)


def _tokens(text: str) -> Iterator[tuple[int, bool, str]]:
    """Line, whether it is a sign of the grammar, and the word, comments left out."""
    line, at = 1, 0
    for token in _TOML_TOKEN.finditer(text):
        line += text.count("\n", at, token.start())
        at = token.start()
        if token.lastgroup != "comment":
            yield line, token.lastgroup == "sign", token.group()


def _parse_dotted_key(name: str) -> KeyPath:
    """The parts of a dotted key, as the reader takes it apart."""
    table: object = tomllib.loads(f"{name} = 0")
    parts = []
    while isinstance(table, dict):
        ((part, table),) = table.items()
        parts.append(part)
    return tuple(parts)
