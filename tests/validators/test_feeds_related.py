"""Feeds of signatures with relations: every size follows, in every kind of feed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.validators.edge_case_feeds import draw_edge_case_feeds, find_batch_dim
from modelc.validators.feed_values import check_samples
from modelc.validators.feeds import FeedDrawer, draw_example_feed, draw_feeds
from modelc.validators.hill_climb import SearchPoint, hill_climb

from ..reasons import has_code
from .judging import signature_of

PAIR = signature_of(
    "a:float32[batch=1..4,seq=1..9]", "b:float32[batch,seq2=seq]", "c:float32[2*seq,n=seq+1]"
)
IMAGE = signature_of("x:float32[batch=1..3,3,h=32*(k=1..4),w=32*(j=1..5)]")


def test_every_feed_keeps_the_relations() -> None:
    feeds = (*draw_feeds(PAIR, count=9), *draw_edge_case_feeds(PAIR))
    for feed in feeds:
        seq = feed.arrays["a"].shape[1]
        assert feed.arrays["b"].shape[1] == seq, feed.name
        assert feed.arrays["c"].shape == (2 * seq, seq + 1), feed.name
    assert {feed.arrays["a"].shape[1] for feed in feeds} >= {1, 5, 9}


STEP = signature_of(
    "ids:int64[batch=1..4,seq=1..8]{0..99}", "mask:int64[batch,total=past+seq]{0..1 ascending}",
    "places:int64[batch,seq]{0..total-1}", "past:float32[batch,past=0..12,4]",
)  # fmt: skip


def test_every_feed_has_the_sum_of_two_sizes_and_shows_each_new_place() -> None:
    feeds = (*draw_feeds(STEP, count=9), *draw_edge_case_feeds(STEP))
    hidden = 0
    for feed in feeds:
        mask, seq = feed.arrays["mask"], feed.arrays["ids"].shape[1]
        past = feed.arrays["past"].shape[1]
        assert mask.shape[1] == past + seq, feed.name
        assert (np.diff(mask, axis=1) >= 0).all(), feed.name
        assert feed.kind == "mask" or mask[:, past:].all(), feed.name
        assert feed.arrays["places"].max() < past + seq
        hidden += int((mask[:, :past] == 0).sum())
    assert hidden > 20
    prompt = next(feed for feed in feeds if feed.name == "mask-left-new")
    assert prompt.sizes["past"] == 0
    assert prompt.arrays["mask"].sum(1).tolist() == [1, 2]
    assert {(feed.sizes["past"], feed.sizes["seq"]) for feed in feeds} >= {(0, 1), (0, 8), (12, 1)}


def test_a_sample_that_breaks_a_sum_is_an_error() -> None:
    feed = dict(draw_example_feed(STEP))
    feed["mask"] = feed["mask"][:, 1:]
    with pytest.raises(UsageError, check=has_code(ErrorCode.SAMPLE_MISMATCH, naming="total=9")):
        check_samples(STEP, feed)


def test_values_are_in_order_in_every_feed() -> None:
    boxes = signature_of(
        "box:int64[batch=1..4,seq=1..9,4]{0..1000 ascending}",
        "x:float32[batch,seq]{-1..2 ascending}",
        "lengths:int64[batch]{1..seq descending}",
    )
    feeds = (*draw_feeds(boxes, count=9), *draw_edge_case_feeds(boxes))
    for feed in feeds:
        for name, array in feed.arrays.items():
            rises = np.diff(array, axis=-1) * (-1 if name == "lengths" else 1)
            assert (rises >= 0).all(), feed.name
    assert len(np.unique(feeds[-1].arrays["box"])) > 1 or len(feeds) > 20


def test_the_sizes_of_a_feed_are_those_of_the_free_dims() -> None:
    feeds = {feed.name: feed for feed in draw_feeds(IMAGE)}
    assert feeds["max"].sizes == {"batch": 3, "k": 4, "j": 5}
    assert feeds["max"].arrays["x"].shape == (3, 3, 128, 160)
    assert feeds["min"].arrays["x"].shape == (1, 3, 32, 32)


def test_a_search_keeps_the_relations() -> None:
    drawer = FeedDrawer.of(PAIR, 0, None)
    start = SearchPoint(feed=drawer.corners()["opt"], headroom=20.0)
    seen: list[tuple[int, ...]] = []

    def score(feed: object) -> float:
        arrays = getattr(feed, "arrays", {})
        seen.append((arrays["a"].shape[1], arrays["b"].shape[1], arrays["c"].shape[0]))
        return 10.0

    hill_climb([start], drawer, score, more=lambda tried: tried < 60)
    assert len({one[0] for one in seen}) > 2
    assert all(b == a and c == 2 * a for a, b, c in seen)


def test_the_example_tells_all_sizes_apart_but_those_that_are_equal() -> None:
    arrays = draw_example_feed(PAIR)
    shapes = [*arrays["a"].shape, *arrays["c"].shape]
    assert len(set(shapes)) == 4
    assert arrays["b"].shape == arrays["a"].shape


def test_a_sample_is_held_to_the_relation() -> None:
    fits = {"x": np.zeros((1, 3, 64, 96), np.float32)}
    assert check_samples(IMAGE, fits)[1] == {"batch": 1, "k": 2, "j": 3}
    with pytest.raises(UsageError, check=has_code(ErrorCode.SAMPLE_MISMATCH, naming="h=65")):
        check_samples(IMAGE, {"x": np.zeros((1, 3, 65, 96), np.float32)})


def test_samples_whose_related_sizes_differ_are_rejected() -> None:
    arrays = {name: array.copy() for name, array in draw_feeds(PAIR)[0].arrays.items()}
    arrays["b"] = np.zeros((1, 3), np.float32)
    with pytest.raises(UsageError, check=has_code(ErrorCode.SAMPLE_MISMATCH, naming="3 in 'b'")):
        check_samples(PAIR, arrays)


def test_the_batch_is_the_dim_that_others_follow_from() -> None:
    found = find_batch_dim(signature_of("a:float32[rows=batch,3]", "b:float32[batch=1..4]"))
    assert found is not None
    assert found.name == "batch"


def test_no_row_is_repeated_where_an_inputs_rows_are_a_multiple() -> None:
    twice = signature_of("a:float32[batch=1..4,3]", "b:float32[2*batch,3]")
    assert "repeated" not in {feed.name for feed in draw_edge_case_feeds(twice)}


def test_equal_rows_are_repeated_in_both() -> None:
    equal = signature_of("a:float32[batch=1..4,3]", "b:float32[rows=batch,3]")
    feed = next(feed for feed in draw_edge_case_feeds(equal) if feed.name == "repeated")
    for array in feed.arrays.values():
        assert (array == array[:1]).all()


@pytest.mark.parametrize("count", [4, 5, 7])
def test_each_two_of_many_dims_are_at_opposite_ends_in_some_feed(count: int) -> None:
    names = [f"d{number}" for number in range(count)]
    many = signature_of(f"x:float32[{','.join(f'{name}=1..3..5' for name in names)}]")
    drawn = [feed.sizes for feed in (*draw_feeds(many), *draw_edge_case_feeds(many))]
    for one, other in itertools.permutations(names, 2):
        for ends in ((1, 5), (1, 1), (5, 5)):
            assert any((sizes[one], sizes[other]) == ends for sizes in drawn), (one, other, ends)
