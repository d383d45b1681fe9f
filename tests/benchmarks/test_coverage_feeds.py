"""The fresh feeds of benchmarks/coverage.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import nn

from modelc.benchmarks.coverage_feeds import example, fresh_feeds
from modelc.tests.nets.cases import Case

CASE = Case(
    name="two",
    family="hard",
    build=nn.Identity,
    inputs=("ids:int64[batch=1..4,seq=2..24]{2..99}", "mask:int64[batch=1..4,seq=2..24]{0..1}"),
)


def shapes(case: Case, name: str) -> list[tuple[int, ...]]:
    return [feed[name].shape for feed in fresh_feeds(case)]


def test_two_dims_are_at_least_middle_and_most_in_every_combination() -> None:
    found = shapes(CASE, "ids")
    assert len(found) == len(set(found)) == 9
    assert {size for _, size in found} == {2, 15, 24}
    assert shapes(CASE, "mask") == found


def test_the_middle_is_odd_and_not_the_size_captured_at() -> None:
    opt = example(CASE)["ids"].shape[1]
    middle = sorted({size for _, size in shapes(CASE, "ids")})[1]
    assert middle % 2 == 1
    assert middle != opt


def test_three_dims_are_each_at_both_ends_alone_and_together() -> None:
    case = replace(CASE, inputs=("x:float32[a=1..3,b=2..6,c=4..9]",))
    found = set(shapes(case, "x"))
    assert {(1, 2, 4), (3, 6, 9)} <= found
    middle = sorted(found, key=sum)[len(found) // 2]
    assert {(1, *middle[1:]), (3, *middle[1:])} & found


def test_values_are_in_their_range_and_reach_over_it() -> None:
    drawn = np.concatenate([feed["ids"].ravel() for feed in fresh_feeds(CASE)])
    assert (drawn.min(), drawn.max()) == (2, 99)


def test_masks_have_a_one_in_front_and_some_have_holes() -> None:
    masks = [feed["mask"] for feed in fresh_feeds(CASE)]
    assert all((mask[:, 0] == 1).all() for mask in masks)
    assert any((np.diff(mask, axis=1) > 0).any() for mask in masks)
    assert any(mask.min() == 0 and not (np.diff(mask, axis=1) > 0).any() for mask in masks)


def test_feeds_of_the_case_come_after_those_that_are_drawn() -> None:
    own = {"ids": np.full((1, 2), 7), "mask": np.ones((1, 2), np.int64)}
    assert fresh_feeds(replace(CASE, more_feeds=lambda: [own]))[-1] is own


def test_a_case_of_fixed_sizes_gets_several_feeds_that_differ() -> None:
    first, *others = fresh_feeds(replace(CASE, inputs=("x:float32[2,3]",)))
    assert others
    assert not any(np.array_equal(first["x"], feed["x"]) for feed in others)


def test_feeds_are_the_same_each_time() -> None:
    pairs = zip(fresh_feeds(CASE), fresh_feeds(CASE), strict=True)
    assert all(np.array_equal(one["ids"], other["ids"]) for one, other in pairs)
