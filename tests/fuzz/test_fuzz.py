"""Damaged files through every opening: each ends well or in an error of modelc's, and soon."""

from __future__ import annotations

import string
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelc.core.errors import ModelcError
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs
from modelc.projects.project_reader import read_project
from modelc.tests.fuzz.fuzzing import fuzz
from modelc.tests.fuzz.openings import OPENINGS

LEAST = 100_000  # inputs of the slow set, all openings together
HERE = Path(__file__).parent
QUIETLY = settings(
    max_examples=300, deadline=5000, suppress_health_check=list(HealthCheck), database=None,
    derandomize=True,
)  # fmt: skip


NAMES = [one.name for one in OPENINGS]
# Of these no framework is imported, which takes seconds.
PLAIN = ("input", "manifest", "run-record", "cache-entry", "commit", "index", "sidecar",
         "engine-sidecar")  # fmt: skip
HEAVY = "+".join(name for name in NAMES if name not in PLAIN)


def _check(name: str, count: int) -> None:
    tally = fuzz(name, count)
    line = f"{name}: {tally.inputs} inputs, {tally.read} read, {tally.seconds:.0f} s"
    sys.stdout.write(f"{line}\n")
    assert tally.findings == {}
    assert tally.inputs == count
    if name not in ("index", "engine-sidecar"):  # what these name is never there
        assert tally.read, "not even the seeds are read"


@pytest.mark.parametrize("name", PLAIN)
def test_a_few_hundred_damaged_files_of_each_kind(name: str) -> None:
    _check(name, next(one.quick for one in OPENINGS if one.name == name))


def test_a_few_hundred_damaged_files_for_each_framework() -> None:
    few = [one.quick for one in OPENINGS if one.name not in PLAIN]
    _check(HEAVY, sum(few))


def test_the_slow_set_is_large_enough() -> None:
    assert sum(one.slow for one in OPENINGS) >= LEAST


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_damaged_files_of_each_kind(name: str) -> None:
    _check(name, next(one.slow for one in OPENINGS if one.name == name))


def check_error(error: ModelcError) -> None:
    """Check that an error says what is wrong and what fixes it."""
    assert error.message
    assert error.hint


# What reads like the language: names, sizes, ranges and relations put together at random.
_WORDS = st.text(string.ascii_letters + "_0123456789.", max_size=6)
_PIECES = st.one_of(
    st.sampled_from([*":[]{},=*()+-_ ", "..", "float32", "int64", "bool", "k=1..8", "0..99", "é"]),
    st.integers(-(10**25), 10**25).map(str),
    st.floats().map(str),
    _WORDS,
)
_DIMS = st.lists(
    st.one_of(
        _WORDS,
        st.builds("{}={}..{}".format, _WORDS, st.integers(0, 9), st.integers(0, 99)),
        st.builds("{}={}*{}+{}".format, _WORDS, st.integers(0, 9), _WORDS, st.integers(0, 9)),
    ),
    max_size=4,
).map(",".join)
_INPUTS = st.one_of(
    st.lists(_PIECES, max_size=14).map("".join),
    st.text(max_size=30),
    st.builds("{}:{}[{}]".format, _WORDS, st.sampled_from(["float32", "int64", "u8"]), _DIMS),
)


@QUIETLY
@given(st.lists(_INPUTS, min_size=1, max_size=3))
def test_any_text_for_an_input_is_read_or_rejected(texts: list[str]) -> None:
    try:
        signature = merge_inputs([parse_input(text) for text in texts], {})
    except ModelcError as error:
        check_error(error)
    else:
        assert [str(parse_input(str(spec)).name) for spec in signature.inputs]


_VALUES: st.SearchStrategy[str] = st.recursive(
    st.one_of(
        st.integers().map(str), st.floats().map(str), st.booleans().map(lambda b: str(b).lower()),
        st.text(max_size=10).map(repr), st.just("1979-05-27T07:32:00Z"), st.just("{}"),
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
    max_leaves=5,
)  # fmt: skip
_KEYS = st.sampled_from(
    ["to", "precision", "input", "atol", "gates", "max-drop", "tolerance", "calib", "checkpoint",
     "jobs", "model-arg", "trust", "feeds", "nonsense", '"a b"', "a.b.c"]
)  # fmt: skip
_LINES = st.one_of(
    st.builds("{} = {}".format, _KEYS, _VALUES),
    st.sampled_from(
        ["[defaults]", "[models.a]", "[models.a.gates]", "[[models]]", "[tolerance.x]"]
    ),
    st.text(max_size=20),
)


@QUIETLY
@given(st.lists(_LINES, max_size=12).map("\n".join))
def test_any_lines_for_a_project_are_read_or_rejected(text: str) -> None:
    file = HERE / "none" / "modelc.toml"
    try:
        read_project(_Held(file, text))
    except ModelcError as error:
        check_error(error)


class _Held(type(Path())):  # type: ignore[misc] # the class of paths on this system
    """A path whose file is in memory: hypothesis would write thousands."""

    def __new__(cls, path: Path, text: str) -> _Held:
        held: _Held = super().__new__(cls, path)
        held.data = text.encode("utf-8", "surrogatepass")
        return held

    def open(self, *_: object, **__: object) -> object:
        """The text, as bytes."""
        import io

        return io.BytesIO(self.data)
