from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable

import pytest

from modelc.checkpoints.branch_tracer import trace_branch_outcomes, trace_lines
from modelc.checkpoints.source_decisions import BranchTest
from modelc.checkpoints.source_positions import CodeSite
from modelc.checkpoints.value_dataflow import find_value_uses


def statement(value: int) -> int:
    if value > 0:
        return 1
    return 2


def one_line(value: int) -> int:
    if bool(value > 0): value += 1  # fmt: skip  # noqa: E701 - the point
    return value


def bare(value: int) -> int:
    if value:
        value += 1
    return value


def negated(value: int) -> int:
    if not value > 0:
        value += 1
    return value


def both_sides(value: int) -> int:
    if value > 0 and value < 9:
        value += 1
    else:
        value -= 1
    return value


def over_lines(value: int) -> int:
    if (
        value > 0
        or value < -9
    ):  # fmt: skip
        value += 1
    return value


def expression(value: int) -> int:
    return 1 if value > 0 else 2


def loop(value: int) -> int:
    while value > 0:
        value -= 1
    return value


def skipping(value: int) -> int:
    for turn in range(2):
        if value > 0:
            continue
        value -= turn
    return value


def comprehension(value: int) -> list[int]:
    return [turn for turn in range(2) if value > 0]


def turning(value: int) -> int:
    for turn in range(value):
        value += turn
    return value


def caught(value: int) -> int:
    try:
        if 1 // value > 0:
            return 1
    except ZeroDivisionError:
        return 2
    return 3


def last(value: int) -> None:
    kept = []
    if value > 2:
        kept.append(value)


def last_chained(value: int) -> None:
    kept = []
    if 2 < value < 5:
        kept.append(value)


def branch_of(function: Callable[[int], object]) -> BranchTest:
    """The first branch of the function, as it is found from the names in its condition."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    nodes = list(ast.walk(tree))
    conditions = [
        *(getattr(node, "test", None) for node in nodes),
        *(part for node in nodes for part in getattr(node, "ifs", ())),
        *(getattr(node, "iter", None) for node in nodes),
    ]
    for condition in conditions:
        if isinstance(condition, ast.expr):
            span = (
                condition.lineno + first - 1, condition.col_offset,
                (condition.end_lineno or 0) + first - 1, condition.end_col_offset or 0,
            )  # fmt: skip
            (found,) = find_value_uses(
                [CodeSite(file=__file__, function=function.__name__, span=span)]
            )
            assert isinstance(found, BranchTest)
            return found
    raise AssertionError(function)


def way(function: Callable[[int], object], value: int) -> str:
    (found,) = trace_branch_outcomes(lambda: function(value), [branch_of(function)])
    return found


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        (statement, 3, "T"), (statement, -3, "F"),
        (one_line, 3, "T"), (one_line, -3, "F"),
        (bare, 3, "T"), (bare, 0, "F"),
        (negated, 3, "F"), (negated, -3, "T"),
        (both_sides, 3, "T"), (both_sides, -3, "F"), (both_sides, 11, "F"),
        (over_lines, 3, "T"), (over_lines, -3, "F"), (over_lines, -11, "T"),
        (expression, 3, "T"), (expression, -3, "F"),
        (loop, 2, "TTF"), (loop, 0, "F"),
        (skipping, 3, "TT"), (skipping, -3, "FF"),
        (comprehension, 3, "TT"), (comprehension, -3, "FF"),
        (turning, 2, "TTF"), (turning, 0, "F"),
        (caught, 1, "T"), (caught, 5, "F"), (caught, 0, ""),
        (last, 3, "T"), (last, -3, "F"),
        (last_chained, 3, "T"), (last_chained, -3, "F"), (last_chained, 9, "F"),
    ],
)  # fmt: skip
def test_each_way_is_reported(function: Callable[[int], object], value: int, expected: str) -> None:
    assert way(function, value) == expected


def test_each_branch_has_ways_of_its_own() -> None:
    tests = [branch_of(statement), branch_of(expression)]
    assert trace_branch_outcomes(lambda: (statement(1), expression(-1)), tests) == ("T", "F")


def test_a_branch_that_was_not_reached_has_no_way() -> None:
    assert trace_branch_outcomes(lambda: None, [branch_of(statement)]) == ("",)


def test_the_trace_function_before_is_put_back_even_after_an_error() -> None:
    before = sys.gettrace()
    with pytest.raises(ZeroDivisionError):
        trace_branch_outcomes(lambda: 1 // 0, [branch_of(statement)])
    assert sys.gettrace() is before


def test_only_lines_that_ran_are_reached() -> None:
    _, first = inspect.getsourcelines(statement)
    places = {(__file__, first + line) for line in (1, 2, 3)}
    found = trace_lines(lambda: statement(1), places)
    assert found == {(__file__, first + 1), (__file__, first + 2)}
