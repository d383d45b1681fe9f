"""Whether what differs lies behind a mask is looked at, not assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelc.core.precision import Precision
from modelc.validators.feeds import NamedFeed
from modelc.validators.judge import Reference, Reply
from modelc.validators.masked import differs_behind_masks
from modelc.validators.tolerance import tolerance_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

MASK = np.array([[0, 0, 1, 1, 1]] * 2)
FP32 = tolerance_for(Precision.FP32)


def told(
    change: tuple[Any, ...], shape: tuple[int, ...] = (2, 5, 3), mask: NDArray[Any] = MASK
) -> bool | None:
    eager = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    artifact = eager.copy()
    artifact[change] += 1
    feed = NamedFeed(name="mask-left", arrays={"attention_mask": mask}, sizes={}, kind="mask")
    reference = Reference(feed=feed, outputs={"y": eager})
    return differs_behind_masks(reference, Reply(outputs={"y": artifact}), FP32, ["y"])


def test_masked_rows_alone() -> None:
    assert told((slice(None), slice(0, 2))) is True


@pytest.mark.parametrize("at", [2, 4])
def test_one_visible_element_is_seen(at: int) -> None:
    assert told((1, at, 0)) is False


def test_positions_are_found_behind_the_heads() -> None:
    assert told((0, 1, 1), shape=(2, 4, 5, 3)) is True
    assert told((0, 1, 3), shape=(2, 4, 5, 3)) is False


def test_a_lost_number_in_a_visible_row_is_seen() -> None:
    eager = np.ones((2, 5), np.float32)
    artifact = eager.copy()
    artifact[0, 3] = np.nan
    feed = NamedFeed(name="mask-left", arrays={"m": MASK}, sizes={}, kind="mask")
    reference = Reference(feed=feed, outputs={"y": eager})
    assert differs_behind_masks(reference, Reply(outputs={"y": artifact}), FP32, ["y"]) is False


@pytest.mark.parametrize(
    ("shape", "mask"),
    [((2, 3), MASK), ((2, 5, 5), MASK), ((2, 5, 3), np.ones((2, 5), int))],
    ids=["pooled", "two axes as long", "nothing masked"],
)
def test_what_cannot_be_told_is_not_claimed(shape: tuple[int, ...], mask: NDArray[Any]) -> None:
    assert told((0, 0), shape=shape, mask=mask) is None
