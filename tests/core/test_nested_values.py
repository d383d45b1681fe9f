from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from modelc.core.errors import UsageError
from modelc.core.nested_values import ValuePath, iterate_leaves, name_leaves, nest_leaves


class Pair(NamedTuple):
    left: int
    right: object


@dataclass
class Record:
    scores: int
    hidden: object = None


def is_int(value: object) -> bool:
    return isinstance(value, int)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (1, ["output"]),
        ((1, 2), ["output.0", "output.1"]),
        ([1], ["output.0"]),
        ({"a": 1, "b": {"c": 2}}, ["a", "b.c"]),
        (OrderedDict(z=1, a=(2, 3)), ["z", "a.0", "a.1"]),
        (Pair(1, [2, 3]), ["left", "right.0", "right.1"]),
        (Record(1, (2,)), ["scores", "hidden.0"]),
        (((1, 2), {"a": 3}), ["output.0.0", "output.0.1", "output.1.a"]),
        ({0: 1}, ["output.0"]),
    ],
)
def test_leaves_are_named_by_their_path(value: object, names: list[str]) -> None:
    assert list(name_leaves(value, is_int).found) == names


def test_none_is_left_out() -> None:
    assert name_leaves({"a": None, "b": 1}, is_int).found == {"b": 1}


def test_what_is_no_leaf_is_dropped() -> None:
    parts = name_leaves({"a": "text", "b": 1}, is_int)
    assert parts.dropped == {"a": "text"}
    assert parts.found == {"b": 1}


def test_a_name_that_comes_twice_keeps_both_leaves() -> None:
    assert name_leaves({"a.b": 1, "a": {"b": 2}}, is_int).found == {"a.b": 1, "a.b_": 2}


def test_a_class_is_no_record() -> None:
    assert list(iterate_leaves(Record, is_int)) == [((), Record)]


@pytest.mark.parametrize("value", [{"a": 1, "b": (2, {"c": 3})}, (1, (2, 3)), 7])
def test_nest_undoes_leaves(value: object) -> None:
    assert nest_leaves(dict(iterate_leaves(value, is_int))) == value


def test_positions_are_put_in_order_of_number() -> None:
    parts: dict[ValuePath, object] = {
        (str(index),): index for index in (10, 2, 1, 0, 3, 4, 5, 6, 7, 8, 9)
    }
    assert nest_leaves(parts) == tuple(range(11))


def test_a_left_out_position_is_rejected() -> None:
    with pytest.raises(UsageError, match="positions 0, 2"):
        nest_leaves({("0",): 1, ("2",): 2})


def test_a_value_given_whole_and_in_parts_is_rejected() -> None:
    with pytest.raises(UsageError, match="whole"):
        nest_leaves({(): 1, ("a",): 2})


def test_a_name_that_an_input_has_gets_out_at_its_end() -> None:
    found = name_leaves({"h": 1, "y": 2}, lambda leaf: isinstance(leaf, int), reserved=("x", "h"))
    assert list(found.found) == ["h_out", "y"]
