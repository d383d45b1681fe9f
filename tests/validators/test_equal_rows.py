"""Equal rows have to come out equal, as far as eager's own do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from modelc.core.verdict import Tolerance
from modelc.validators.feeds import NamedFeed
from modelc.validators.input_sensitivity import find_unequal_rows
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

WITHIN = Tolerance(atol=1e-3, rtol=3e-2, min_sqnr=40.0)
ROWS = np.full((3, 4), 2.0, np.float32)
FEED = NamedFeed(name="repeated", arrays={"x": ROWS}, sizes={"batch": 3}, kind="batch")


def apart(artifact: NDArray[np.generic], eager: NDArray[np.generic] = ROWS) -> tuple[str, ...]:
    reference = ReferenceOutputs(feed=FEED, outputs={"y": eager})
    return find_unequal_rows(reference, ArtifactOutputs(outputs={"y": artifact}), WITHIN)


def with_last(by: float) -> NDArray[np.float32]:
    rows = ROWS.copy()
    rows[2] += by
    return rows


def test_equal_rows_are_fine() -> None:
    assert apart(ROWS + np.float32(1)) == ()  # all off alike: the judge's business


def test_a_row_that_is_off_within_the_tolerance_is_found() -> None:
    (fault,) = apart(with_last(0.05))
    for value in ("'y'", "5.00e-02", "feed repeated"):
        assert value in fault


def test_rows_that_differ_by_roundoff_are_fine() -> None:
    assert apart(with_last(1e-3)) == ()


def test_rows_that_differ_in_eager_may_differ() -> None:
    assert apart(with_last(0.05), with_last(0.012)) == ()
    assert apart(with_last(1.0), with_last(1.0)) == ()


def test_what_has_no_rows_is_passed_over() -> None:
    flat = np.arange(4, dtype=np.float32)
    assert apart(flat * 2, flat) == ()
    assert apart(np.float32(3.0) * np.ones(()), np.ones(())) == ()


def test_integers_and_refusals_are_the_judges_business() -> None:
    assert apart(np.arange(3), np.zeros(3, np.int64)) == ()
    assert (
        find_unequal_rows(
            ReferenceOutputs(feed=FEED, outputs={"y": ROWS}), ArtifactOutputs(outputs=None), WITHIN
        )
        == ()
    )
