"""What a condition on sizes asks of the dims, said as `--input` writes it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from modelc.core.domain import DimFit, fit_dims, sample_points
from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, merge_inputs

Sizes = Mapping[str, int]


def signature(*inputs: str) -> Signature:
    return merge_inputs([parse_input(text) for text in inputs], {})


def asked(condition: str, base: Sizes, *inputs: str) -> DimFit | None:
    """What a condition in Python asks of the free dims."""
    code = compile(condition, "condition", "eval")
    return fit_dims(lambda sizes: bool(eval(code, dict(sizes))), signature(*inputs), base)


@pytest.mark.parametrize(
    ("condition", "write"),
    [
        ("h % 8 == 0", "write h=8*(k=4..12)"),
        ("h % 8 == 3", "write h=8*(k=4..12)+3"),
        ("h <= 64", "write h=32..64"),
        ("h >= 40", "write h=40..100"),
        ("h == 48", "--static h"),
        ("w == h", "write w=h in --input of x"),
        ("w == 2*h + 1", "write w=2*h+1 in --input of x"),
        ("h == 2*w", "write h=2*w in --input of x"),
    ],
)
def test_each_kind_of_relation_is_found(condition: str, write: str) -> None:
    sizes = {"b": 2, "h": 48, "w": 48}
    wide = "w=1..300" if "w" in condition else "w=32..100"
    if "2*h" in condition:
        sizes["w"] = 97
    if "2*w" in condition:
        sizes["w"] = 24
    if condition == "h % 8 == 3":
        sizes["h"] = 51
    found = asked(condition, sizes, f"x:float32[b=1..4,h=32..100,{wide}]")
    assert found is not None
    assert found.write == write


def test_a_factor_of_a_relation_is_multiplied() -> None:
    found = asked("k % 2 == 0", {"k": 4}, "x:float32[h=16*(k=1..8)]")
    assert found is not None
    assert found.write == "write h=32*(k2=1..4)"


def test_nothing_is_said_of_what_always_holds() -> None:
    assert asked("h > 0", {"h": 4}, "x:float32[h=1..8]") is None


def test_of_sizes_without_a_pattern_those_around_the_base_are_given() -> None:
    found = asked("h in (3, 4, 7, 13)", {"h": 4}, "x:float32[h=1..20]")
    assert found is not None
    assert found.interval == ("h", 3, 4)
    assert "only" not in found.said
    assert asked("h in (1, 4, 7, 13)", {"h": 4}, "x:float32[h=1..20]") is None


def test_a_size_that_is_wrong_beside_another_alone_has_no_interval() -> None:
    assert asked("h != w + 3", {"h": 9, "w": 4}, "x:float32[h=1..20,w=1..20]") is None


def test_an_interval_is_given_as_numbers_too() -> None:
    found = asked("h <= 512", {"h": 4}, "x:float32[h=1..2048]")
    assert found is not None
    assert (found.write, found.interval) == ("write h=1..512", ("h", 1, 512))


def test_points_are_at_both_ends_and_at_products_of_each_two_dims() -> None:
    found = list(
        sample_points(signature("x:float32[a=1..4,b=2..500,c=1..3]"), {"a": 2, "b": 9, "c": 2})
    )
    for one in ({"a": 1, "b": 2, "c": 1}, {"a": 4, "b": 500, "c": 3}, {"a": 4, "b": 2, "c": 2}):
        assert one in found
