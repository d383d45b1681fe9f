from __future__ import annotations

import numpy as np
import pytest

from modelc.converters.runner_base import check_feed
from modelc.core.contract import Feed
from modelc.core.errors import RunnerError
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs

SPECS = merge_inputs(
    [
        parse_input("x:float32[batch=1..4,h=8*k,3]"),
        parse_input("ids:int64[batch,k=1..5]"),
        parse_input("free:float32[any]"),
    ],
    {},
).inputs


def feed(batch: int = 2, height: int = 16, k: int = 2, *, ids: int | None = None) -> Feed:
    return {
        "x": np.zeros((batch, height, 3), np.float32),
        "ids": np.zeros((batch if ids is None else ids, k), np.int64),
        "free": np.zeros(100_000, np.float32),
    }


def test_a_sum_of_dims_is_checked() -> None:
    texts = ("x:int64[seq=1..8]", "p:int64[past=0..9]", "m:int64[total=past+seq]")
    specs = merge_inputs(map(parse_input, texts), {}).inputs
    check_feed({name: np.zeros(n, np.int64) for name, n in (("x", 3), ("p", 0), ("m", 3))}, specs)
    with pytest.raises(RunnerError, match=r"5, not past\+seq"):
        check_feed(
            {name: np.zeros(n, np.int64) for name, n in (("x", 3), ("p", 1), ("m", 5))}, specs
        )


@pytest.mark.parametrize("good", [feed(), feed(1), feed(4, 40, 5)])
def test_a_feed_in_the_domain_is_accepted(good: Feed) -> None:
    check_feed(good, SPECS)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (feed(5), "dim batch of x is 5, outside 1..4"),
        (feed(0), "dim batch of x is 0, outside 1..4"),
        (feed(2, 48, 6), "outside"),
        (feed(2, 20, 2), "dim h is 20, not 8*k"),
        (feed(2, 24, 2), "dim h is 24, not 8*k"),
        (feed(2, ids=3), "dim batch is 2, but 3 in ids"),
        ({**feed(), "free": np.zeros(0, np.float32)}, "dim any of free is 0"),
        ({**feed(), "free": np.zeros(3, np.float64)}, "free is float64, not float32"),
        ({**feed(), "ids": np.zeros(2, np.int64)}, "ids has 1 dims (2,), not 2"),
        ({**feed(), "x": np.zeros((2, 16, 4), np.float32)}, "dim 2 of x is 4, not 3"),
    ],
)
def test_a_feed_outside_names_the_dim(bad: Feed, message: str) -> None:
    with pytest.raises(RunnerError) as caught:
        check_feed(bad, SPECS)
    assert message in caught.value.message
