"""Feeds of values that follow a dim, as `lengths{1..seq}`: in bounds at the sizes of each."""

from __future__ import annotations

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.core.grammar import parse_input
from modelc.core.signature import Signature
from modelc.validators.edge_case_feeds import draw_edge_case_feeds
from modelc.validators.feeds import FeedDrawer, NamedFeed, draw_example_feed, draw_feeds
from modelc.validators.hill_climb import SearchPoint, hill_climb

from ..reasons import has_code
from .judging import signature_of

PACKED = signature_of("ids:int64[batch=1..4,seq=1..20]{0..49}", "lengths:int64[batch]{1..seq}")
GRAPH = signature_of("x:float32[nodes=2..9,5]", "edges:int64[2,m=1..30]{0..nodes-1}")


def in_bounds(feed: NamedFeed) -> None:
    if "edges" in feed.arrays:
        low, high, array = 0, feed.arrays["x"].shape[0] - 1, feed.arrays["edges"]
    else:
        low, high, array = 1, feed.arrays["ids"].shape[1], feed.arrays["lengths"]
    assert low <= array.min() <= array.max() <= high, feed.name


@pytest.mark.parametrize("given", [PACKED, GRAPH])
def test_every_feed_keeps_the_bound_at_its_sizes(given: Signature) -> None:
    feeds = (*draw_feeds(given, count=30), *draw_edge_case_feeds(given))
    for feed in feeds:
        in_bounds(feed)
    in_bounds(NamedFeed(name="example", arrays=draw_example_feed(given), sizes={}))
    assert {"max", "highest", "one-hot"} <= {feed.name for feed in feeds}


def test_the_largest_feed_reaches_beyond_the_smallest_one() -> None:
    feeds = {feed.name: feed for feed in draw_feeds(GRAPH)}
    assert feeds["max"].arrays["edges"].max() > feeds["min"].arrays["x"].shape[0] - 1


def test_the_highest_values_are_the_bound_itself() -> None:
    feed = next(feed for feed in draw_edge_case_feeds(PACKED) if feed.name == "highest")
    assert (feed.arrays["lengths"] == feed.arrays["ids"].shape[1]).all()


def test_a_climb_keeps_the_bound_also_from_feeds_without_sizes() -> None:
    drawer = FeedDrawer.of(PACKED, 0, None)
    tried: list[NamedFeed] = []

    def score(feed: NamedFeed) -> float:
        tried.append(feed)
        return 1.0

    start = NamedFeed(
        name="held-out-1", arrays=drawer.feed("a", {"batch": 2, "seq": 3}).arrays, sizes={}
    )
    hill_climb([SearchPoint(feed=start, headroom=2.0)], drawer, score, more=lambda done: done < 150)
    for feed in tried:
        in_bounds(feed)
    assert any(feed.arrays["ids"].shape == (2, 3) for feed in tried)


def test_an_index_of_two_nodes_is_no_mask() -> None:
    names = {
        feed.name
        for feed in draw_edge_case_feeds(
            signature_of("e:int64[m=2..9]{0..n-1}", "x:float32[n=2..2,m]")
        )
    }
    assert not {name for name in names if name.startswith("mask")}


def test_a_bound_may_follow_a_dim_that_follows_another() -> None:
    given = signature_of(
        "past:float32[b=1..2,past=1..7]", "mask:int64[b,n=past+1]", "at:int64[b]{past..n-1}"
    )
    assert (given.inputs[2].values.low, given.inputs[2].values.high) == (1, 7)  # type: ignore[union-attr]
    for feed in draw_feeds(given, count=12):
        assert (feed.arrays["at"] == feed.arrays["past"].shape[1]).all()


def test_a_bound_on_the_factor_of_a_relation() -> None:
    given = signature_of("x:float32[h=8*(k=1..4)]", "i:int64[5]{0..k-1}")
    assert all(f.arrays["i"].max() < f.sizes["k"] for f in draw_feeds(given))


def test_a_static_dim_makes_the_bound_a_number() -> None:
    assert str(PACKED.fix_at_opt(["seq"]).inputs[1]) == "lengths:int64[batch=1..4]{1..10}"
    assert str(PACKED.fix_at_opt(["batch"]).inputs[1]) == "lengths:int64[2]{1..seq}"


@pytest.mark.parametrize("given", [PACKED, GRAPH])
def test_what_is_written_can_be_read_back(given: Signature) -> None:
    assert signature_of(*map(str, given.inputs)) == given


def test_an_unknown_dim_names_the_nearest() -> None:
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming="'sqe'")
    ) as caught:
        signature_of("ids:int64[batch=1..4,seq=1..20]", "lengths:int64[batch]{1..sqe}")
    assert "'seq'" in caught.value.hint


def test_a_bound_without_values_at_some_size_is_rejected() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, naming="{0..n-2}")):
        signature_of("x:float32[n=1..9]", "e:int64[3]{0..n-2}")


def test_a_bound_that_the_dtype_cannot_hold_is_rejected() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, naming="uint8")):
        draw_feeds(signature_of("x:float32[n=1..900]", "e:uint8[3]{0..n-1}"))


def test_a_bound_that_is_neither_a_dim_nor_a_number_is_rejected_with_its_place() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, naming="15")):
        parse_input("x:int64[n]{0..*}")
