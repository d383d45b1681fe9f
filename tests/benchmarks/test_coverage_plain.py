"""The hand-made cases of the coverage suite: built alike, run at all sizes, take all branches."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import CodeType, FrameType
from typing import TYPE_CHECKING, TypeAlias

import pytest
import torch
from torch import nn

from modelc.checkpoints.module_outputs import split_outputs
from modelc.core.call import Binding, bind_inputs, parameters_of
from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, merge_inputs
from modelc.tests.nets.cases import FAMILIES, Case, build, cases
from modelc.validators.feeds import draw_feeds

if TYPE_CHECKING:
    import numpy as np
    from _typeshed import TraceFunction

MODULES = (
    "plain_sequence", "plain_vision", "plain_graph", "hard_branches",
    "hard_forms", "hard_index", "hard_loops", "hard_parts",
    "hard_shapes", "hard_signal", "hard_state",
    "hard_switches", "hard_weights",
)  # fmt: skip
# What the feeds of these differ in is no way through Python, but the size of a result.
SIZED = {
    "packed-lstm-to-longest",
    "nonzero-peaks",
    "unique",
    "boolean-mask",
    "repeat-interleave",
    "histogram",
}
# They have feeds for values alone: no branch, no size, a print or a trip through NumPy.
VALUES = {
    "where-instead-of-if", "torch-cond", "print-in-forward", "numpy-in-forward", "value-as-float",
    "item-as-index", "head-by-dict-key", "nms-matrix", "scatter-and-index-put", "packed-lstm",
    "packed-gru-last", "trim-to-longest",
}  # fmt: skip
Way: TypeAlias = Counter[tuple[CodeType, int]]


@cache
def plain_cases() -> Mapping[str, Case]:
    found = [case for name in MODULES for case in import_module(f"modelc.tests.nets.{name}").CASES]
    return {case.name: case for case in found}


SMALL = tuple(name for name, case in plain_cases().items() if case.family != "large")
# Eager torch.cond compiles itself for each size.
SMALL_MARKED = [
    pytest.param(name, marks=pytest.mark.slow) if name == "torch-cond" else name for name in SMALL
]
FED = tuple(name for name in SMALL if plain_cases()[name].more_feeds)


@cache
def _module(name: str) -> nn.Module:
    return build(name)


def _signature(case: Case) -> Signature:
    return merge_inputs([parse_input(text) for text in case.inputs], {})


def _binding(case: Case) -> Binding:
    names = [spec.name for spec in _signature(case).inputs]
    return bind_inputs(names, parameters_of(_module(case.name).forward))


def _run(name: str, feed: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    case = plain_cases()[name]
    given = [torch.from_numpy(feed[spec.name].copy()) for spec in _signature(case).inputs]
    with torch.no_grad():
        value = _binding(case).call(_module(name), given)
    return {key: tensor.clone() for key, tensor in split_outputs(value).tensors.items()}


def _more(name: str) -> list[dict[str, np.ndarray]]:
    made = plain_cases()[name].more_feeds
    assert made is not None
    return made()


def _same(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    return list(left) == list(right) and all(torch.equal(left[key], right[key]) for key in left)


def _way(name: str, feed: Mapping[str, np.ndarray]) -> Way:
    """Which instructions of the nets' code ran, and how often."""
    steps: Way = Counter()

    def local(frame: FrameType, event: str, _argument: object) -> TraceFunction:
        if event == "opcode":
            steps[frame.f_code, frame.f_lasti] += 1
        return local

    def enter(frame: FrameType, _event: str, _argument: object) -> TraceFunction | None:
        if "nets/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        return local

    _module(name)  # built before it is watched
    before = sys.gettrace()
    sys.settrace(enter)
    try:
        _run(name, feed)
    finally:
        sys.settrace(before)
    return steps


def test_the_names_of_all_cases_are_their_own() -> None:
    names = [case.name for case in cases()]
    assert sorted(set(names)) == sorted(names)
    assert set(plain_cases()) <= set(names)


def test_every_family_of_a_case_is_known_and_every_hard_case_says_why() -> None:
    for case in plain_cases().values():
        assert case.family in FAMILIES
        assert case.why or case.family not in ("hard", "large"), case.name


def test_there_are_as_many_cases_as_the_suite_promises() -> None:
    families = Counter(case.family == "hard" for case in plain_cases().values())
    assert families[True] >= 90
    assert families[False] >= 22


@pytest.mark.parametrize("name", SMALL)
def test_a_case_has_a_dynamic_batch_and_is_drawn_twice_alike(name: str) -> None:
    first, second = _module(name).state_dict(), build(name).state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert _signature(plain_cases()[name]).dynamic_dims


@pytest.mark.parametrize("name", SMALL_MARKED)
def test_a_case_runs_from_min_to_max_and_answers_the_same_again(name: str) -> None:
    feeds = draw_feeds(_signature(plain_cases()[name]))
    assert {"min", "opt", "max"} <= {feed.name for feed in feeds}
    for feed in feeds:
        first = _run(name, feed.arrays)
        assert all(bool(torch.isfinite(value).all()) for value in first.values())
        assert _same(first, _run(name, feed.arrays))


@pytest.mark.parametrize("name", SMALL)
def test_a_float_of_every_case_depends_on_its_inputs(name: str) -> None:
    feeds = {feed.name: feed.arrays for feed in draw_feeds(_signature(plain_cases()[name]))}
    assert not _same(_run(name, feeds["opt"]), _run(name, feeds["seed-1"]))


@pytest.mark.parametrize("name", FED)
def test_more_feeds_fit_the_signature_and_give_finite_outputs(name: str) -> None:
    specs = {spec.name: spec for spec in _signature(plain_cases()[name]).inputs}
    for feed in _more(name):
        assert list(feed) == list(specs)
        for key, array in feed.items():
            assert (array.dtype.name, array.ndim) == (specs[key].dtype, len(specs[key].dims))
            for size, dim in zip(array.shape, specs[key].dims, strict=True):
                assert dim.low <= size <= dim.high
        assert all(bool(torch.isfinite(value).all()) for value in _run(name, feed).values())


@pytest.mark.parametrize("name", sorted(set(FED) - SIZED - VALUES))
def test_more_feeds_go_different_ways_through_the_code(name: str) -> None:
    ways = [_way(name, feed) for feed in _more(name)]
    assert any(way != ways[0] for way in ways[1:])


@pytest.mark.parametrize("name", sorted(SIZED))
def test_more_feeds_give_results_of_different_sizes(name: str) -> None:
    shapes = [tuple(value.shape for value in _run(name, feed).values()) for feed in _more(name)]
    assert len(set(shapes)) > 1


@pytest.mark.parametrize("name", sorted(VALUES))
def test_more_feeds_of_the_others_give_different_values(name: str) -> None:
    feeds = _more(name)
    assert not _same(_run(name, feeds[0]), _run(name, feeds[-1]))


def test_the_way_of_a_feed_is_the_same_each_time() -> None:
    feeds = _more("data-dependent-if")
    ways = [_way("data-dependent-if", feed) for feed in (feeds[0], feeds[0], feeds[1])]
    assert ways[0] == ways[1] != ways[2]
