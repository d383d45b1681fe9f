from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

import pytest

from modelc.core.contract import Branch
from modelc.sources.arms import Arm, arms_of


def statement(value: int) -> int:
    if value > 0:
        return 1
    return 2


def expression(value: int) -> int:
    return 1 if value > 0 else 2


def loop(value: int) -> int:
    while value > 0:
        value -= 1
    return value


def both(value: int) -> int:
    return statement(value) + expression(-value)


def branch_in(function: Callable[[int], int], text: str) -> Branch:
    lines, start = inspect.getsourcelines(function)
    offset = next(index for index, line in enumerate(lines) if text in line)
    return Branch(file=__file__, line=start + offset)


def arm(function: Callable[[int], int], text: str, value: int) -> Arm:
    (found,) = arms_of(lambda: function(value), [branch_in(function, text)])
    return found


@pytest.mark.parametrize(
    ("function", "text"), [(statement, "if value"), (expression, "if value"), (loop, "while")]
)
def test_another_way_is_another_arm(function: Callable[[int], int], text: str) -> None:
    assert arm(function, text, 3) != arm(function, text, -3)


@pytest.mark.parametrize(("function", "text"), [(statement, "if value"), (expression, "if value")])
def test_the_same_way_is_the_same_arm(function: Callable[[int], int], text: str) -> None:
    assert len({arm(function, text, value) for value in range(1, 40)}) == 1


def test_another_number_of_turns_is_another_arm() -> None:
    assert arm(loop, "while", 2) != arm(loop, "while", 3)
    assert arm(loop, "while", 2) == arm(loop, "while", 2)


def test_each_branch_has_an_arm_of_its_own() -> None:
    branches = [branch_in(statement, "if value"), branch_in(expression, "if value")]
    first = arms_of(lambda: both(1), branches)
    second = arms_of(lambda: both(-1), branches)
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_a_branch_that_was_not_reached_has_no_arm() -> None:
    assert arms_of(lambda: None, [branch_in(statement, "if value")]) == (frozenset(),)


def test_a_line_of_another_file_is_not_mistaken() -> None:
    branch = branch_in(statement, "if value")
    other = Branch(file="elsewhere.py", line=branch.line)
    assert arms_of(lambda: statement(1), [other]) == (frozenset(),)


def test_the_trace_function_before_is_put_back_even_after_an_error() -> None:
    before = sys.gettrace()
    with pytest.raises(ZeroDivisionError):
        arms_of(lambda: 1 // 0, [branch_in(statement, "if value")])
    assert sys.gettrace() is before
