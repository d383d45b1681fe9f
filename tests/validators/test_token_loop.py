"""Tests of a decoder's loop and of the measures of its tokens, with a decoder in numpy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from modelc.core.errors import RunnerError
from modelc.core.generation import TokenReport, TokenWay, WayKind
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.signature import Signature
from modelc.validators.token_loop import LoopSizes, TokenRows, choose_largest, make_sampler
from modelc.validators.token_metrics import (
    find_token_reasons,
    measure_way,
    perplexity_of,
    score_tokens,
    sum_log_likelihood,
)
from modelc.validators.tolerance import TOLERANCES

from ..nets.numpy_decoder import BATCH, IDS, KEY, PAST, SIGNATURE, decode, make_runner

ROWS = TokenRows.of([[3, 1, 4, 1, 5, 9], [2, 6], [5, 3, 5]])


def quiet() -> None:
    """Report nothing."""


def test_rows_are_padded_on_the_left() -> None:
    assert ROWS.ids[1].tolist() == [0, 0, 0, 0, 2, 6]
    assert ROWS.mask[1].tolist() == [0, 0, 0, 0, 1, 1]
    assert ROWS.alone(2).ids.tolist() == [[5, 3, 5]]


@pytest.mark.parametrize("parts", [[6], [2, 4], [1] * 6, [5, 1]])
def test_any_parts_give_the_logits_of_one_pass(parts: list[int]) -> None:
    runner = make_runner()
    whole, _ = runner.advance(ROWS, 0, runner.empty_cache(3))
    np.testing.assert_allclose(runner.walk(ROWS, parts, quiet).logits, whole, atol=1e-5)


def test_a_row_alone_gives_the_logits_that_it_gives_padded() -> None:
    runner, shown = make_runner(), ROWS.mask.astype(bool)
    sizes = LoopSizes(rows=(1, 4), tokens=(1, 4), past=9)
    whole, _ = runner.advance(ROWS, 0, runner.empty_cache(3))
    np.testing.assert_allclose(runner.run_alone(ROWS, sizes, quiet)[shown], whole[shown], atol=1e-5)


def test_a_cache_cut_back_continues_as_the_shorter_one() -> None:
    runner = make_runner()
    short = runner.walk(ROWS.take(tokens=slice(0, 4)), [4], quiet).cache
    cut = runner.cut_cache(runner.walk(ROWS, [6], quiet).cache, 4)
    np.testing.assert_array_equal(cut[KEY], short[KEY])


def test_greedy_tokens_are_the_largest_logits_of_the_whole_row() -> None:
    runner = make_runner()
    made = runner.generate(ROWS, 3, choose_largest, quiet)
    assert made.length == 9
    whole = runner.walk(made, [6, 3], quiet).logits
    assert made.ids[:, 6:].tolist() == whole[:, 5:8].argmax(-1).tolist()


def test_a_sample_follows_the_probabilities_and_the_largest_id() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.25, 1e6]], np.float32))
    draw = make_sampler(0, most=2)
    counts = np.bincount([int(draw(logits)[0]) for _ in range(2000)], minlength=4) / 2000
    np.testing.assert_allclose(counts, [0.5, 0.25, 0.25, 0.0], atol=0.05)


def test_logits_of_another_shape_are_an_error() -> None:
    runner = make_runner(lambda feed: {**decode(feed), "logits": decode(feed)["logits"][:, -1:]})
    with pytest.raises(RunnerError):
        runner.advance(ROWS, 0, runner.empty_cache(3))


def test_the_sizes_of_a_loop_are_those_of_its_domain() -> None:
    loop = make_runner().loop
    sizes = LoopSizes.find(loop, SIGNATURE)
    assert sizes == LoopSizes(rows=(1, 4), tokens=(1, 6), past=9)
    assert sizes is not None
    assert sizes.longest == 15
    assert sizes.parts(15) == (6, 3, 6)  # the past is full before the last part
    assert sizes.parts(4) == (4,)
    spec = SIGNATURE.inputs[3]
    low = replace(spec, dims=(BATCH, spec.dims[1], replace(PAST, low=1), spec.dims[3]))
    assert LoopSizes.find(loop, Signature(inputs=(*SIGNATURE.inputs[:3], low))) is None


def test_kl_and_perplexity_are_those_of_the_formulas() -> None:
    random = np.random.default_rng(0)
    left, right = random.normal(size=(2, 1, 5, IDS)).astype(np.float32)
    p, q = (np.exp(one.astype(float)) / np.exp(one.astype(float)).sum(-1, keepdims=True)
            for one in (left, right))  # fmt: skip
    np.testing.assert_allclose(score_tokens(left, right).kl, (p * np.log(p / q)).sum(-1), rtol=1e-6)
    rows = TokenRows.of([[1, 2, 3, 4, 5]])
    likely = sum(math.log(p[0, token, rows.ids[0, token + 1]]) for token in range(4))
    assert sum_log_likelihood(left, rows) == pytest.approx(likely, rel=1e-6)
    assert perplexity_of(likely, 4) == pytest.approx(math.exp(-likely / 4), rel=1e-6)


def test_nan_and_minus_infinity_are_measured() -> None:
    left = np.zeros((1, 1, 3), np.float32)
    left[0, 0] = [1.0, 0.0, -np.inf]
    same = score_tokens(left, left)
    assert same.kl.tolist() == [[0.0]]
    assert score_tokens(left, np.full_like(left, np.nan)).kl[0, 0] == pytest.approx(1e3)


def way_of(left: Any, right: Any, rows: TokenRows, noise: float = 1e-3) -> TokenWay:
    scores = score_tokens(np.asarray(left, np.float32), np.asarray(right, np.float32))
    return measure_way(WayKind.TEXT, scores, rows, lambda: noise, factor=2.0)


def test_padding_is_not_measured_and_the_first_difference_counts_without_it() -> None:
    rows = TokenRows.of([[1, 2, 3], [4]])
    left = np.zeros((2, 3, 3))
    left[..., 0] = 1.0
    right = left.copy()
    right[1, :2] = [0, 0, 9]  # padding
    assert way_of(left, right, rows).tokens == 4
    assert way_of(left, right, rows).difference is None
    right[1, 2] = [0, 0, 9]
    found = way_of(left, right, rows)
    assert found.difference is not None
    assert (found.difference.row, found.difference.token) == (1, 0)
    assert (found.difference.eager, found.difference.artifact) == (0, 2)
    assert found.agreement == 0.75
    assert found.differing == 1


@pytest.mark.parametrize(
    ("margin", "tie", "near"), [(1e-3, True, 1.0), (0.1, False, 1.0), (0.8, False, 0.0)]
)
def test_a_choice_within_eagers_noise_is_a_tie(margin: float, tie: bool, near: float) -> None:
    left, right = [[[margin, 0.0]]], [[[0.0, 1.0]]]
    found = way_of(left, right, TokenRows.of([[1]]))
    assert found.difference is not None
    assert found.difference.tie is tie
    assert found.differing == (not tie)
    assert found.near == near


def report_of(way: TokenWay, *others: TokenWay, perplexity: float = 10.0) -> TokenReport:
    return TokenReport(
        source="", ways=(way, *others), perplexity=perplexity, eager_perplexity=10.0, longest=4
    )


FINE = TokenWay(kind=WayKind.TEXT, tokens=100, kl=1e-9, kl_max=1e-8, agreement=1.0, near=1.0)


@pytest.mark.parametrize("precision", Precision)
def test_equal_tokens_pass_in_every_precision(precision: Precision) -> None:
    steps = replace(FINE, kind=WayKind.STEPS, own_kl=1e-9)
    assert find_token_reasons(report_of(FINE, steps), TOLERANCES[precision]) == ()


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (report_of(replace(FINE, kl=0.2)), ReasonCode.TOKENS_DIFFER),
        (report_of(replace(FINE, agreement=0.8, near=0.84)), ReasonCode.TOKENS_DIFFER),
        (report_of(FINE, perplexity=11.6), ReasonCode.TOKENS_DIFFER),
        (report_of(FINE, replace(FINE, kind=WayKind.STEPS, kl=0.2)), ReasonCode.LOOP_DIFFERS),
        (report_of(FINE, replace(FINE, kind=WayKind.STEPS, own_kl=0.01)), ReasonCode.LOOP_DIFFERS),
    ],
)
def test_each_limit_of_int4_gives_a_reason(report: TokenReport, code: ReasonCode) -> None:
    (reason,) = find_token_reasons(report, TOLERANCES[Precision.INT4])
    assert reason.code is code
    assert not reason.fault  # another tolerance decides again


def test_in_fp32_one_choice_that_is_no_tie_is_enough() -> None:
    rows = TokenRows.of([[1]])
    other = replace(way_of([[[0.1, 0.0]]], [[[0.0, 0.1]]], rows), kind=WayKind.STEPS, kl=0.0)
    (reason,) = find_token_reasons(report_of(FINE, other), TOLERANCES[Precision.FP32])
    assert reason.code is ReasonCode.TOKENS_DIFFER
    tie = replace(way_of([[[1e-4, 0.0]]], [[[0.0, 1e-4]]], rows), kl=0.0)
    assert find_token_reasons(report_of(FINE, tie), TOLERANCES[Precision.FP32]) == ()
