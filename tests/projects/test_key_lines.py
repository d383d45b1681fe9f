"""At which line each key of a TOML file stands."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping

from modelc.projects.project_reader import find_key_lines, nearest_line

TEXT = '''\
# a = 1
a = 1 # = b = 2
"quoted.key" = 2
x . 'y' = """
fake = 3
[not.a.table]
"""
list = [
  "[no]", # ] = {
  { k = 1 },
]
inline = { p = 1, q = [2, 3] }

[ models . "a=b" ]
s = 'it''s'
t = \'\'\'
u = 4
\'\'\'
[models.c.gates."*-int8"]
v = 5
'''.replace("'it''s'", "'its'")


def paths(table: Mapping[str, object], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in table.items():
        yield (*at, name)
        if isinstance(value, dict):
            yield from paths(value, (*at, name))


def test_every_line_is_the_one_that_says_the_key() -> None:
    found = find_key_lines(TEXT)
    starts = {
        ("a",): "a = 1", ("quoted.key",): '"quoted.key"', ("x", "y"): "x . 'y'",
        ("list",): "list", ("inline",): "inline", ("models", "a=b"): '[ models . "a=b" ]',
        ("models", "a=b", "s"): "s =", ("models", "a=b", "t"): "t =",
        ("models", "c", "gates", "*-int8"): "[models.c.gates",
        ("models", "c", "gates", "*-int8", "v"): "v",
    }  # fmt: skip
    lines = TEXT.splitlines()
    assert set(found) == set(starts)
    assert not [p for p, line in found.items() if not lines[line - 1].startswith(starts[p])]


def test_nothing_is_found_that_the_reader_does_not_know() -> None:
    assert set(find_key_lines(TEXT)) <= set(paths(tomllib.loads(TEXT)))


def test_what_has_no_line_of_its_own_is_at_the_table_around_it() -> None:
    found = find_key_lines("a = 1\nb = { c = { d = 2 } }\n")
    assert nearest_line(found, ("b", "c", "d")) == 2
    assert nearest_line(found, ("nowhere",)) is None
