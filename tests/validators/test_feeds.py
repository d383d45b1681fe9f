"""Feeds: their names, sizes and values, and the user's sample among them."""

from __future__ import annotations

import numpy as np
import pytest

from modelc.core.contract import Feed
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.signature import Signature
from modelc.validators.edge_case_feeds import draw_edge_case_feeds
from modelc.validators.feeds import (
    NamedFeed,
    describe_named_feed,
    draw_example_feed,
    draw_feeds,
    find_unranged,
)

from ..reasons import has_code
from .judging import signature_of


def by_name(feeds: tuple[NamedFeed, ...]) -> dict[str, NamedFeed]:
    return {feed.name: feed for feed in feeds}


X = signature_of("x:float32[batch=1..8,6]")
TEXT = signature_of("ids:int64[batch=1..4,seq=8..128]{0..99}", "mask:int64[batch,seq]")


def test_the_feeds_come_in_a_fixed_order() -> None:
    names = [feed.name for feed in draw_feeds(X, count=6)]
    assert names == ["min", "opt", "max", "negated", "seed-1", "seed-2"]


def test_a_sample_comes_first_and_counts() -> None:
    feeds = draw_feeds(X, samples={"x": np.ones((3, 6), np.float32)})
    assert [feed.name for feed in feeds] == ["sample", "min", "opt", "max", "negated"]
    assert feeds[0].sizes == {"batch": 3}


def test_without_dynamic_dims_seeds_stand_in_for_the_corners() -> None:
    names = [feed.name for feed in draw_feeds(signature_of("x:float32[2,6]"))]
    assert names == ["opt", "negated", "seed-1", "seed-2", "seed-3"]


def test_without_floats_nothing_is_negated() -> None:
    names = [feed.name for feed in draw_feeds(TEXT)]
    assert names == ["min", "opt", "max", "seed-1", "seed-2", "vary:ids", "vary:mask"]


def test_corners_are_drawn_at_low_opt_and_high() -> None:
    feeds = by_name(draw_feeds(TEXT))
    shapes = [feeds[name].arrays["ids"].shape for name in ("min", "opt", "max")]
    assert shapes == [(1, 8), (2, 68), (4, 128)]


def test_a_dim_has_one_size_in_all_inputs() -> None:
    assert all(f.arrays["ids"].shape == f.arrays["mask"].shape for f in draw_feeds(TEXT, count=9))


def test_seeded_sizes_lie_in_range_and_differ() -> None:
    sizes = [f.sizes["seq"] for f in draw_feeds(TEXT, count=20) if f.name.startswith("seed")]
    assert all(8 <= size <= 128 for size in sizes)
    assert len(set(sizes)) > 5


def test_the_same_seed_draws_the_same_arrays() -> None:
    first, second = draw_feeds(X, seed=3), draw_feeds(X, seed=3)
    pairs = zip(first, second, strict=True)
    assert all(np.array_equal(a.arrays["x"], b.arrays["x"]) for a, b in pairs)


def test_another_seed_draws_other_arrays() -> None:
    first, second = draw_feeds(X, seed=3)[1], draw_feeds(X, seed=4)[1]
    assert not np.array_equal(first.arrays["x"], second.arrays["x"])


def test_arrays_do_not_depend_on_the_number_of_feeds_or_on_other_inputs() -> None:
    few = by_name(draw_feeds(X))
    many = by_name(draw_feeds(signature_of("y:float32[2]", "x:float32[batch=1..8,6]"), count=12))
    assert np.array_equal(few["max"].arrays["x"], many["max"].arrays["x"])


def test_the_draw_is_the_same_on_every_machine() -> None:
    x = by_name(draw_feeds(X))["min"].arrays["x"]
    assert x[0, :2].tolist() == pytest.approx([-0.378335, 0.0573544], abs=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_floats_are_standard_normal_in_their_dtype(dtype: str) -> None:
    x = draw_feeds(signature_of(f"x:{dtype}[4000]"))[0].arrays["x"].astype(np.float64)
    assert draw_feeds(signature_of(f"x:{dtype}[3]"))[0].arrays["x"].dtype == dtype
    assert abs(x.mean()) < 0.1
    assert abs(x.std() - 1) < 0.1


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "bool"])
def test_integers_and_bools_are_zero_or_one(dtype: str) -> None:
    x = by_name(draw_feeds(signature_of(f"x:{dtype}[64]")))["seed-1"].arrays["x"]
    assert x.dtype == dtype
    assert set(x.tolist()) == {0, 1}


def test_bytes_without_a_range_are_drawn_as_images_are() -> None:
    x = draw_feeds(signature_of("x:uint8[4000]"))[0].arrays["x"]
    assert x.dtype == np.uint8
    assert (x.min(), x.max()) == (0, 255)


def test_bytes_with_a_range_keep_to_it() -> None:
    x = draw_feeds(signature_of("x:uint8[400]{0..1}"))[0].arrays["x"]
    assert set(x.tolist()) == {0, 1}


def test_integers_without_a_range_or_a_sample_are_named() -> None:
    signature = signature_of(
        "ids:int64[2]", "n:int8[]", "k:int32[2]{0..9}", "i:uint8[2]", "b:bool[2]", "x:float32[2]"
    )
    assert find_unranged(signature, None) == ("ids", "n")


def test_integers_with_a_sample_are_not_unranged() -> None:
    signature = signature_of("ids:int64[2]", "n:int8[2]")
    assert find_unranged(signature, {"ids": np.array([3, 4])}) == ("n",)


@pytest.mark.parametrize("seed", range(5))
def test_no_row_of_a_mask_is_all_zero(seed: int) -> None:
    feeds = draw_feeds(signature_of("mask:int64[batch=1..8,seq=1..16]{0..1}"), count=9, seed=seed)
    assert all(feed.arrays["mask"].any(axis=-1).all() for feed in feeds)


def test_the_mask_of_max_is_all_ones_as_in_unpadded_batches() -> None:
    feeds = by_name(draw_feeds(signature_of("mask:int64[batch=1..8,seq=1..16]{0..1}")))
    assert feeds["max"].arrays["mask"].all()


def test_the_mask_of_opt_is_padded_on_the_right() -> None:
    feeds = by_name(draw_feeds(signature_of("mask:int64[batch=1..32,seq=1..16]{0..1}")))
    mask = feeds["opt"].arrays["mask"]
    assert (np.diff(mask, axis=-1) <= 0).all()
    assert len(set(mask.sum(axis=-1).tolist())) > 3


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("mask:bool[batch=1..4,seq=1..20]", 1),
        ("mask:bool[batch=1..4,seq=1..20,1]", 1),
        ("mask:bool[batch=1..4,1,1,seq=1..20]", 3),
        ("mask:bool[batch=1..4,1]", 0),
        ("mask:int64[batch=1..4,seq=2..20,1]{0..1}", 1),
    ],
)
def test_a_mask_hides_positions_along_its_last_axis_longer_than_one(text: str, axis: int) -> None:
    signature = signature_of(text)
    feeds = [*draw_feeds(signature), *draw_edge_case_feeds(signature)]
    masks = [feed.arrays["mask"] for feed in feeds if feed.name != "mask-empty"]
    assert any((mask == 0).any() for mask in masks)
    drawn = [feed.arrays["mask"] for feed in feeds if feed.kind in ("shape", "seed", "batch")]
    for mask in drawn:  # a row of zeros is undefined in most attentions
        assert np.moveaxis(mask, axis, -1).any(-1).all()


def test_integers_take_both_ends_of_their_range() -> None:
    ids = draw_feeds(signature_of("ids:int32[400]{-1..2}"))[0].arrays["ids"]
    assert set(ids.tolist()) == {-1, 0, 1, 2}


def test_floats_are_uniform_in_their_range() -> None:
    x = draw_feeds(signature_of("x:float32[4000]{0..16}"))[0].arrays["x"].astype(np.float64)
    assert 0 <= x.min() < 0.5
    assert 15.5 < x.max() <= 16
    assert abs(x.std() - 16 / 12**0.5) < 0.2


def test_a_scalar_input_is_drawn() -> None:
    assert draw_feeds(signature_of("x:float32[]"))[0].arrays["x"].shape == ()


def test_negated_flips_the_signs_of_opt() -> None:
    feeds = by_name(draw_feeds(X))
    assert np.array_equal(feeds["negated"].arrays["x"], np.negative(feeds["opt"].arrays["x"]))


def test_negated_mirrors_inside_a_value_range() -> None:
    feeds = by_name(draw_feeds(signature_of("x:float32[6]{0..16}")))
    assert np.allclose(feeds["negated"].arrays["x"], 16 - feeds["opt"].arrays["x"])


def test_negated_leaves_integers_alone() -> None:
    feeds = by_name(draw_feeds(signature_of("x:float32[6]", "ids:int64[6]")))
    assert np.array_equal(feeds["negated"].arrays["ids"], feeds["opt"].arrays["ids"])


def test_vary_changes_its_own_input_and_no_other() -> None:
    feeds = by_name(draw_feeds(TEXT))
    opt, vary = feeds["opt"].arrays, feeds["vary:mask"].arrays
    assert np.array_equal(vary["ids"], opt["ids"])
    assert not np.array_equal(vary["mask"], opt["mask"])


def test_vary_finds_the_other_value_of_a_single_bool() -> None:
    feeds = by_name(draw_feeds(signature_of("x:float32[2]", "flag:bool[]")))
    assert feeds["vary:flag"].arrays["flag"] != feeds["opt"].arrays["flag"]


def test_an_input_with_one_value_is_not_varied() -> None:
    feeds = by_name(draw_feeds(signature_of("x:float32[2]", "n:int64[]{5..5}")))
    assert "vary:n" not in feeds


def test_an_only_input_is_not_varied() -> None:
    assert not any(feed.name.startswith("vary") for feed in draw_feeds(X))


def test_floats_are_drawn_like_their_sample() -> None:
    sample = np.random.default_rng(0).uniform(0, 16, (500, 6)).astype(np.float32)
    x = by_name(draw_feeds(signature_of("x:float32[500,6]"), samples={"x": sample}))
    drawn = x["opt"].arrays["x"]
    assert sample.min() <= drawn.min()
    assert drawn.max() <= sample.max()
    assert abs(float(drawn.mean()) - 8) < 0.5


def test_integers_are_drawn_in_the_range_of_their_sample() -> None:
    samples = {"ids": np.arange(5, 13).reshape(1, 8), "mask": np.ones((1, 8), np.int64)}
    signature = signature_of("ids:int64[batch=1..4,seq=8..128]", "mask:int64[batch,seq]")
    ids = by_name(draw_feeds(signature, samples=samples))["max"].arrays["ids"]
    assert set(ids.flat) == set(range(5, 13))


def test_a_value_range_goes_before_the_sample() -> None:
    samples = {"ids": np.full((1, 8), 7), "mask": np.ones((1, 8), np.int64)}
    ids = by_name(draw_feeds(TEXT, samples=samples))["max"].arrays["ids"]
    assert ids.max() > 90


def test_a_sample_mask_of_ones_still_draws_zeros() -> None:
    samples = {"ids": np.full((1, 8), 7), "mask": np.ones((1, 8), np.int64)}
    feeds = by_name(draw_feeds(TEXT, samples=samples))
    assert set(feeds["opt"].arrays["mask"].flat) == {0, 1}


def test_a_sample_is_cast_where_no_value_changes() -> None:
    feed = draw_feeds(signature_of("n:int32[2]"), samples={"n": np.array([1, 2])})[0]
    assert feed.arrays["n"].dtype == np.int32


@pytest.mark.parametrize(
    ("signature", "samples", "naming"),
    [
        (X, {}, "x"),
        (X, {"x": np.ones((2, 6)), "y": np.ones(2)}, "y"),
        (X, {"x": np.full((2, 6), 0.1)}, "float32"),
        (X, {"x": np.ones((2, 7))}, "7"),
        (X, {"x": np.ones((9, 6))}, "batch=9"),
        (X, {"x": np.ones((2, 6, 1))}, "3 dims"),
        (X, {"x": np.ones((0, 6))}, "(0, 6)"),
        (X, {"x": np.full((2, 6), "a")}, "float32"),
        (
            TEXT,
            {"ids": np.ones((1, 8), np.int64), "mask": np.ones((1, 9), np.int64)},
            "9 in 'mask'",
        ),
    ],
)
def test_a_sample_that_does_not_fit_is_rejected(
    signature: Signature, samples: Feed, naming: str
) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.SAMPLE_MISMATCH, naming=naming)):
        draw_feeds(signature, samples=samples)


def test_an_integer_too_large_for_the_dtype_is_rejected() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.SAMPLE_MISMATCH, naming="int32")):
        draw_feeds(signature_of("n:int32[1]"), samples={"n": np.array([2**40])})


def test_an_unbounded_dim_takes_a_sample_of_any_size() -> None:
    signature = signature_of("x:float32[batch,6]")
    assert draw_feeds(signature, samples={"x": np.ones((99, 6))})[0].sizes == {"batch": 99}


@pytest.mark.parametrize("text", ["x:uint8[2]{0..300}", "x:float16[2]{0..1e6}", "x:bool[2]{0..2}"])
def test_a_value_range_that_the_dtype_cannot_hold_is_rejected(text: str) -> None:
    dtype = text.partition("[")[0].partition(":")[2]
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, naming=dtype)):
        draw_feeds(signature_of(text))


def test_fewer_than_five_feeds_are_rejected() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, naming="4 feeds")):
        draw_feeds(X, count=4)


def test_a_feed_is_described_with_its_sizes() -> None:
    assert describe_named_feed(by_name(draw_feeds(TEXT))["max"]) == "max (batch=4, seq=128)"


def test_a_feed_without_dynamic_dims_is_described_by_its_name() -> None:
    assert describe_named_feed(draw_feeds(signature_of("x:float32[2]"))[0]) == "opt"


def test_the_example_is_drawn_at_the_opt_sizes() -> None:
    example = draw_example_feed(signature_of("x:float32[batch=1..8,seq=1..100]"), 0, None)
    assert example["x"].shape == (4, 50)


def test_no_dim_of_the_example_is_one_or_equal_to_another() -> None:
    example = draw_example_feed(signature_of("x:float32[a=1..1..8,b=1..1..8,c=1..1..8]"))
    assert set(example["x"].shape) == {2, 3, 4}


def test_a_narrow_dim_of_the_example_makes_a_wide_one_give_way() -> None:
    example = draw_example_feed(signature_of("x:float32[a=1..2..8,b=1..2]"))
    assert example["x"].shape == (3, 2)


def test_a_sample_is_the_example_where_its_sizes_tell_dims_apart() -> None:
    sample = {"x": np.ones((2, 6), np.float32)}
    assert np.array_equal(draw_example_feed(X, 0, sample)["x"], sample["x"])


def test_a_sample_of_one_row_is_not_the_example() -> None:
    sample = {"x": np.full((1, 6), 0.5, np.float32)}
    example = draw_example_feed(X, 0, sample)["x"]
    assert example.shape == (4, 6)
    assert np.all(example == 0.5)
