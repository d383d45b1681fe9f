"""The hill-climb: it stays where values may be, gets worse, and begins the same each time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from modelc.core.signature import Signature
from modelc.validators.feeds import FeedDrawer, NamedFeed, draw_feeds
from modelc.validators.hill_climb import ClimbResult, SearchPoint, hill_climb

from .judging import signature_of

RANGED = ("x:float32[batch=1..4,8]{-4..4}", "ids:int64[batch,5]{0..9}", "mask:int64[batch,5]{0..1}")


def climbed(
    signature: Signature, hill: object, *, steps: int, seed: int = 0
) -> tuple[ClimbResult, list[NamedFeed]]:
    """A climb of so many steps; the margin on a feed is 10 less `hill(feed)`."""
    tried: list[NamedFeed] = []

    def score(feed: NamedFeed) -> float | None:
        tried.append(feed)
        found: float | None = hill(feed)  # type: ignore[operator]  # a function of the test
        return None if found is None else 10.0 - found

    starts = [SearchPoint(feed=feed, headroom=10.0) for feed in draw_feeds(signature, seed=seed)]
    drawer = FeedDrawer.of(signature, seed, None)
    return hill_climb(starts, drawer, score, more=lambda done: done < steps), tried


def flat(feed: NamedFeed) -> float:
    del feed
    return 0.0


def test_values_and_sizes_stay_where_they_are_declared() -> None:
    _, tried = climbed(signature_of(*RANGED), flat, steps=300)
    assert len(tried) == 300
    for feed in tried:
        x, ids, mask = (feed.arrays[name] for name in ("x", "ids", "mask"))
        assert np.abs(x).max() <= 4
        assert x.dtype == np.float32
        assert 0 <= ids.min() <= ids.max() <= 9
        assert ids.dtype == np.int64
        assert mask.any(axis=-1).all()
        assert x.shape[0] == ids.shape[0] == mask.shape[0] == feed.sizes["batch"]
        assert 1 <= feed.sizes["batch"] <= 4


def test_undeclared_floats_stay_within_four_deviations() -> None:
    _, tried = climbed(signature_of("x:float32[batch=1..4,8]"), flat, steps=300)
    assert max(float(np.abs(feed.arrays["x"]).max()) for feed in tried) <= 4.0


def test_a_longer_climb_begins_with_the_same_feeds() -> None:
    def hill(feed: NamedFeed) -> float:
        return float(feed.arrays["x"].mean())

    signature = signature_of(*RANGED)
    _, few = climbed(signature, hill, steps=40)
    _, many = climbed(signature, hill, steps=80)
    for one, other in zip(few, many[:40], strict=True):
        assert one.name == other.name
        assert all(np.array_equal(one.arrays[n], other.arrays[n]) for n in one.arrays)


def test_another_seed_tries_other_feeds() -> None:
    signature = signature_of("x:float32[8]")
    (_, first), (_, second) = (climbed(signature, flat, steps=20, seed=seed) for seed in (1, 2))
    assert any(
        not np.array_equal(a.arrays["x"], b.arrays["x"]) for a, b in zip(first, second, strict=True)
    )


PATTERN = np.array([1, -1, -1, 1, 1, 1, -1, -1])


def toward_pattern(feed: NamedFeed) -> float:
    """Most where a row is 4 times the pattern: 32; normal rows have 3 or so."""
    return float((feed.arrays["x"] @ PATTERN).max())


def test_it_climbs_where_random_feeds_do_not_get() -> None:
    signature = signature_of("x:float32[batch=1..4,8]{-4..4}")

    def hill(feed: NamedFeed) -> float:
        return toward_pattern(feed) / 4  # never beyond the limit: 32 / 4 < 10

    found, tried = climbed(signature, hill, steps=600)
    drawn = max(toward_pattern(feed) for feed in draw_feeds(signature, count=600))
    assert len(tried) == 600
    assert toward_pattern(found.worst.feed) > max(25.0, drawn)


def test_it_ends_at_the_first_feed_beyond_the_limit() -> None:
    signature = signature_of("x:float32[batch=1..4,8]{-4..4}")
    found, tried = climbed(signature, toward_pattern, steps=600)
    assert found.worst.headroom < 0
    assert found.worst.feed is tried[-1]
    assert found.tried == len(tried) < 600


def test_what_is_no_evidence_is_never_the_worst() -> None:
    found, tried = climbed(signature_of("x:float32[8]"), lambda _: None, steps=50)
    assert len(tried) == 50
    assert found.worst.headroom == 10.0
    assert found.worst.feed.kind != "search"


@pytest.mark.parametrize(
    "text", ["x:float32[]", "x:bool[batch=1..4]", "x:float16[3]", "x:uint8[2]"]
)
def test_any_input_can_be_climbed(text: str) -> None:
    _, tried = climbed(signature_of(text), flat, steps=60)
    dtypes = {feed.arrays["x"].dtype for feed in tried}
    assert dtypes == {np.dtype(text.split(":")[1].split("[", maxsplit=1)[0])}


def test_a_feed_that_an_earlier_climb_found_keeps_its_name_for_itself() -> None:
    signature = signature_of("x:float32[batch=1..4,8]")
    drawer = FeedDrawer.of(signature, 0, None)
    found = replace(draw_feeds(signature)[1], name="search-3")
    tried: list[str] = []

    def score(feed: NamedFeed) -> float:
        tried.append(feed.name)
        return 10.0

    hill_climb([SearchPoint(feed=found, headroom=1.0)], drawer, score, more=lambda done: done < 5)
    assert tried == ["search-1", "search-2", "search-3+", "search-4", "search-5"]
