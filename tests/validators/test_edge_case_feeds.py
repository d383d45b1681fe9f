"""Edge-case feeds: which there are, at which sizes, with which values, and within which range."""

from __future__ import annotations

import numpy as np
import pytest

from modelc.core.contract import Feed
from modelc.core.errors import UsageError
from modelc.validators.edge_case_feeds import draw_edge_case_feeds
from modelc.validators.edge_case_values import EDGE_MAGNITUDE
from modelc.validators.feeds import NamedFeed, draw_feeds

from .judging import signature_of


def drawn(*inputs: str, seed: int = 0, samples: Feed | None = None) -> dict[str, NamedFeed]:
    feeds = draw_edge_case_feeds(signature_of(*inputs), seed=seed, samples=samples)
    assert len({feed.name for feed in feeds}) == len(feeds)
    return {feed.name: feed for feed in feeds}


IMAGE = "x:float32[batch=1..8,3,8,8]"
TEXT = ("ids:int64[batch=1..4,seq=2..16]{0..99}", "mask:int64[batch,seq]{0..1}")


def test_an_image_model_with_one_dynamic_batch_gets_ten_more() -> None:
    assert list(drawn(IMAGE)) == [
        "batch-2", "batch-3", "batch-7", "repeated",
        "zeros", "constant", "small", "large", "signs", "one-hot",
    ]  # fmt: skip


def test_every_feed_has_its_kind() -> None:
    kinds = {feed.kind for feed in drawn(*TEXT).values()}
    assert kinds == {"shape", "batch", "value", "mask"}


def test_the_same_seed_draws_the_same_feeds() -> None:
    first, second = drawn(IMAGE, seed=5), drawn(IMAGE, seed=5)
    assert list(first) == list(second)
    assert all(np.array_equal(first[n].arrays["x"], second[n].arrays["x"]) for n in first)


def test_another_seed_draws_other_feeds() -> None:
    first, second = drawn(IMAGE, seed=5), drawn(IMAGE, seed=6)
    assert not np.array_equal(first["batch-3"].arrays["x"], second["batch-3"].arrays["x"])


def test_no_two_feeds_are_equal() -> None:
    signature = signature_of(IMAGE)
    feeds = [*draw_feeds(signature), *draw_edge_case_feeds(signature)]
    contents = [(f.arrays["x"].shape, f.arrays["x"].tobytes()) for f in feeds]
    assert len(set(contents)) == len(contents)


# Sizes.


def test_two_dims_have_the_two_corners_that_min_and_max_are_not() -> None:
    feeds = drawn("x:float32[batch=1..4,seq=2..16]")
    corners = {n: f.sizes for n, f in feeds.items() if n.startswith("corner")}
    assert corners == {
        "corner:seq": {"batch": 1, "seq": 16},
        "corner:batch": {"batch": 4, "seq": 2},
    }


def test_three_dims_have_all_corners() -> None:
    feeds = drawn("x:float32[b=1..4,h=8..16,w=8..16]")
    assert sum(name.startswith("corner") for name in feeds) == 6


def test_dims_are_at_primes_between_their_ends_and_do_not_rise_together() -> None:
    feeds = drawn("x:float32[batch=1..4,3,h=32..256,w=32..256]")
    primes = [f.sizes for n, f in feeds.items() if n.startswith("prime")]
    assert primes == [
        {"batch": 1, "h": 53, "w": 89},
        {"batch": 1, "h": 89, "w": 151},
        {"batch": 1, "h": 151, "w": 53},
    ]


@pytest.mark.parametrize(("text", "sizes"), [("1..8", []), ("1..64", [23])])
def test_a_batch_alone_is_at_one_prime_above_those_that_it_has(text: str, sizes: list[int]) -> None:
    feeds = drawn(f"x:float32[batch={text},3]")
    assert [f.sizes["batch"] for n, f in feeds.items() if n.startswith("prime")] == sizes


def test_each_of_many_dims_is_at_its_ends_alone() -> None:
    feeds = drawn("x:float32[a=1..4,b=1..4,c=1..4,d=2..6]")
    assert not any(name.startswith("corner") for name in feeds)
    assert feeds["lowest:d"].sizes == {"a": 2, "b": 2, "c": 2, "d": 2}
    assert feeds["highest:d"].sizes == {"a": 2, "b": 2, "c": 2, "d": 6}


def test_odd_sizes_are_odd_and_apart_and_in_range() -> None:
    sizes = drawn("x:float32[batch=1..4,h=8..64,w=8..64]")["odd"].sizes
    assert sizes["h"] % 2 == sizes["w"] % 2 == 1
    assert sizes["h"] != sizes["w"]
    assert 8 <= min(sizes["h"], sizes["w"]) <= max(sizes["h"], sizes["w"]) <= 64


def test_a_dim_without_an_odd_size_keeps_its_opt() -> None:
    feeds = drawn("x:float32[batch=1..4,h=8..8..9]", "y:float32[k=2..2..3]")
    assert all(2 <= feed.sizes["k"] <= 3 for feed in feeds.values())


@pytest.mark.parametrize(
    ("dim", "sizes"),
    [
        ("batch=1..8", {2, 3, 7}),
        ("batch=2..5", {2, 3}),
        ("batch", {2, 3, 7}),
        ("batch=4..6", set()),
    ],
)
def test_batches_of_1_2_3_and_7_are_drawn_where_the_range_has_them(
    dim: str, sizes: set[int]
) -> None:
    feeds = draw_feeds(signature_of(f"x:float32[{dim},6]"))
    known = {feed.sizes["batch"] for feed in feeds if feed.name in ("min", "opt", "max")}
    named = {int(n.removeprefix("batch-")) for n in drawn(f"x:float32[{dim},6]") if "batch-" in n}
    assert named == sizes - known


def test_sizes_stay_in_their_ranges() -> None:
    feeds = drawn("x:float32[batch=2..5,seq=3..9,6]", "y:float32[seq]")
    assert all(2 <= f.sizes["batch"] <= 5 and 3 <= f.sizes["seq"] <= 9 for f in feeds.values())


def test_without_dynamic_dims_only_values_are_hard() -> None:
    assert {feed.kind for feed in drawn("x:float32[2,6]").values()} == {"value"}


# Rows.


def test_the_rows_of_repeated_are_one_row() -> None:
    feed = drawn(*TEXT)["repeated"]
    assert feed.arrays["ids"].shape[0] == 3
    for array in feed.arrays.values():
        assert (array == array[:1]).all()


def test_nothing_is_repeated_without_a_batch() -> None:
    assert "repeated" not in drawn("x:float32[2,6]")


# Values.


def test_feeds_about_values_have_two_rows() -> None:
    feeds = drawn(IMAGE)
    assert {f.arrays["x"].shape[0] for f in feeds.values() if f.kind == "value"} == {2}


def test_feeds_about_values_have_one_row_where_a_row_is_large() -> None:
    feeds = drawn("x:float32[batch=1..8,3,224,224]")
    assert {f.arrays["x"].shape[0] for f in feeds.values() if f.kind == "value"} == {1}


def test_zeros_and_constants_are_what_they_are_called() -> None:
    feeds = drawn(IMAGE)
    assert not feeds["zeros"].arrays["x"].any()
    assert set(feeds["constant"].arrays["x"].flat) == {1.0}


def test_large_and_small_are_a_thousand_times_so() -> None:
    feeds = drawn(IMAGE)
    large, small = (np.abs(feeds[name].arrays["x"]).max() for name in ("large", "small"))
    assert large / small == pytest.approx(EDGE_MAGNITUDE**2, rel=1e-4)


def test_large_stays_finite_in_half() -> None:
    assert np.isfinite(drawn("x:float16[batch=1..8,600]")["large"].arrays["x"]).all()


def test_signs_flips_some_and_not_all() -> None:
    feeds = drawn(IMAGE)
    signs, base = (feeds[name].arrays["x"] for name in ("signs", "large"))
    assert 0.2 < (np.sign(signs) == np.sign(base)).mean() < 0.8
    assert np.allclose(np.abs(signs) * EDGE_MAGNITUDE, np.abs(base), rtol=1e-5)


def test_one_hot_has_one_element_in_each_row() -> None:
    x = drawn(IMAGE)["one-hot"].arrays["x"]
    assert [int((row != 0).sum()) for row in x] == [1, 1]
    assert x.max() == 1.0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("x:float32[batch=1..8,6]{0..16}", 0, 16),
        ("x:float32[batch=1..8,6]{-1..1}", -1, 1),
        ("x:float32[batch=1..8,6]{5..9}", 5, 9),
        ("x:int64[batch=1..8,6]{3..70}", 3, 70),
        ("x:uint8[batch=1..8,6]", 0, 255),
        ("x:int8[batch=1..8,6]{-7..-2}", -7, -2),
        ("x:bool[batch=1..8,6]", 0, 1),
    ],
)
def test_hard_values_stay_in_the_range(text: str, low: float, high: float, seed: int) -> None:
    feeds = drawn(text, seed=seed)
    assert feeds
    for feed in feeds.values():
        assert low <= feed.arrays["x"].min() <= feed.arrays["x"].max() <= high, feed.name


def test_the_lowest_and_highest_of_declared_integers_are_drawn() -> None:
    feeds = drawn(*TEXT)
    assert set(feeds["lowest"].arrays["ids"].flat) == {0}
    assert set(feeds["highest"].arrays["ids"].flat) == {99}


def test_the_ends_of_a_float_range_stand_in_for_the_constant() -> None:
    feeds = drawn("x:float32[batch=1..8,6]{2..16}")
    assert set(feeds["lowest"].arrays["x"].flat) == {2.0}
    assert set(feeds["highest"].arrays["x"].flat) == {16.0}
    assert not {"zeros", "constant", "large"} & set(feeds)


def test_only_what_lies_outside_is_beyond() -> None:
    beyond = {n for n, f in {**drawn(IMAGE), **drawn(*TEXT)}.items() if f.beyond}
    assert beyond == {"large", "mask-left", "mask-one", "mask-empty"}


def test_a_sample_says_what_is_usual() -> None:
    sample = {"x": np.linspace(0, 16, 12, dtype=np.float32).reshape(2, 6)}
    feeds = drawn("x:float32[batch=1..8,6]", samples=sample)
    usual = [f.arrays["x"] for f in feeds.values() if not f.beyond]
    assert all(array.min() >= 0 and array.max() <= 16 for array in usual)
    assert feeds["large"].arrays["x"].max() > 16


def test_a_sample_that_does_not_fit_is_rejected() -> None:
    with pytest.raises(UsageError, match="lacks x"):
        drawn(IMAGE, samples={})


# Masks.


def test_masks_are_padded_on_the_left_have_holes_and_one_position() -> None:
    feeds = drawn(*TEXT)
    left, holes, one = (
        feeds[name].arrays["mask"][0].tolist() for name in ("mask-left", "mask-holes", "mask-one")
    )
    assert left == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert holes == [1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert one == [0, 0, 0, 0, 1, 0, 0, 0, 0]


def test_one_mask_has_a_row_of_zeros_and_no_other() -> None:
    feeds = drawn(*TEXT)
    empty = feeds.pop("mask-empty").arrays["mask"]
    assert empty[:-1].any(axis=-1).all()
    assert not empty[-1].any()
    assert all(feed.arrays["mask"].any(axis=-1).all() for feed in feeds.values())


def test_the_other_inputs_of_a_mask_feed_are_the_usual_ones() -> None:
    feeds = drawn(*TEXT)
    assert np.array_equal(feeds["mask-left"].arrays["ids"], feeds["mask-one"].arrays["ids"])


def test_a_model_without_floats_has_no_zeros() -> None:
    assert not {"zeros", "constant", "small", "large", "signs"} & set(drawn(*TEXT))


def test_scalars_are_left_as_they_are_by_what_needs_an_axis() -> None:
    feeds = drawn("x:float32[]", "flag:bool[]")
    assert "one-hot" not in feeds
    assert feeds["zeros"].arrays["x"].shape == ()


def test_a_single_bool_is_a_switch_and_goes_both_ways() -> None:
    for dims in ("", "1"):
        signature = signature_of("x:float32[batch=1..4,3]", f"fast:bool[{dims}]")
        feeds = draw_edge_case_feeds(signature)
        assert {bool(feed.arrays["fast"].any()) for feed in feeds} == {True, False}


def test_a_row_of_bools_stays_a_mask() -> None:
    feeds = draw_edge_case_feeds(signature_of("mask:bool[batch=1..4,seq=2..9]"))
    usual = [feed for feed in feeds if feed.name != "mask-empty"]
    assert all(feed.arrays["mask"].any(axis=-1).all() for feed in usual)
