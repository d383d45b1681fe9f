"""Differences behind a mask, and results without the row that a mask hides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelc.core.kinds import Precision
from modelc.validators.feeds import NamedFeed
from modelc.validators.judge import ArtifactOutputs, ReferenceOutputs
from modelc.validators.masked_rows import differs_behind_masks, drop_masked_row
from modelc.validators.tolerance import tolerance_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

MASK = np.array([[0, 0, 1, 1, 1]] * 2)
FP32 = tolerance_for(Precision.FP32)


def differs(
    change: tuple[Any, ...],
    shape: tuple[int, ...] = (2, 5, 3),
    mask: NDArray[Any] = MASK,
    hiding: frozenset[str] = frozenset(),
) -> bool | None:
    eager = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    artifact = eager.copy()
    artifact[change] += 1
    arrays = {"attention_mask": mask}
    feed = NamedFeed(name="mask-left", arrays=arrays, sizes={}, kind="mask", hiding=hiding)
    reference = ReferenceOutputs(feed=feed, outputs={"y": eager})
    return differs_behind_masks(reference, ArtifactOutputs(outputs={"y": artifact}), FP32, ["y"])


def test_masked_rows_alone() -> None:
    assert differs((slice(None), slice(0, 2))) is True


def test_a_mask_of_which_true_hides_is_read_so() -> None:
    change = (slice(None), slice(0, 2))
    hiding = frozenset({"attention_mask"})
    assert differs(change, mask=MASK == 0, hiding=hiding) is True
    assert differs(change, mask=MASK == 1, hiding=hiding) is False


@pytest.mark.parametrize("at", [2, 4])
def test_one_visible_element_is_seen(at: int) -> None:
    assert differs((1, at, 0)) is False


def test_positions_are_found_behind_the_heads() -> None:
    assert differs((0, 1, 1), shape=(2, 4, 5, 3)) is True
    assert differs((0, 1, 3), shape=(2, 4, 5, 3)) is False


def test_a_lost_number_in_a_visible_row_is_seen() -> None:
    eager = np.ones((2, 5), np.float32)
    artifact = eager.copy()
    artifact[0, 3] = np.nan
    feed = NamedFeed(name="mask-left", arrays={"m": MASK}, sizes={}, kind="mask")
    reference = ReferenceOutputs(feed=feed, outputs={"y": eager})
    assert (
        differs_behind_masks(reference, ArtifactOutputs(outputs={"y": artifact}), FP32, ["y"])
        is False
    )


@pytest.mark.parametrize(
    ("shape", "mask"),
    [((2, 3), MASK), ((2, 5, 5), MASK), ((2, 5, 3), np.ones((2, 5), int))],
    ids=["pooled", "two axes as long", "nothing masked"],
)
def test_what_cannot_be_decided_is_not_claimed(shape: tuple[int, ...], mask: NDArray[Any]) -> None:
    assert differs((0, 0), shape=shape, mask=mask) is None


def scored(texts: int, images: int, *, hidden: bool = False) -> ReferenceOutputs:
    """Eager on texts with a mask and on images: what two such towers give."""
    rng = np.random.default_rng(texts * 10 + images)
    mask = np.ones((texts, 5), np.int64)
    mask[0, -1] = 0
    mask[-1] = 0 if hidden else mask[-1]
    outputs = {
        "by_image": rng.standard_normal((images, texts)).astype(np.float32),
        "by_text": rng.standard_normal((texts, images)).astype(np.float32),
        "image": rng.standard_normal((images, 4)).astype(np.float32),
    }
    name = "mask-empty" if hidden else f"{texts}-{images}"
    feed = NamedFeed(name=name, arrays={"attention_mask": mask}, sizes={}, kind="mask")
    return ReferenceOutputs(feed=feed, outputs=outputs)


EMPTIED = scored(3, 3, hidden=True)
OTHERS = (EMPTIED, scored(2, 3), scored(4, 1), scored(1, 4))


@pytest.mark.parametrize(
    ("output", "change", "shown"),
    [
        ("by_image", (slice(None), -1), False),  # the hidden text
        ("by_image", (-1, 0), True),  # another text, beside the last image
        ("by_text", (-1, slice(None)), False),
        ("by_text", (0, -1), True),
    ],
)
def test_a_hidden_row_lies_along_the_axis_that_follows_the_mask(
    output: str, change: tuple[Any, ...], *, shown: bool
) -> None:
    answers = {name: array.copy() for name, array in EMPTIED.outputs.items()}
    answers[output][change] += 1
    pair = drop_masked_row(EMPTIED, ArtifactOutputs(outputs=answers), OTHERS)
    assert pair is not None
    reference, reply = pair
    assert reference.outputs["by_image"].shape == (3, 2)
    assert reference.outputs["image"].shape == (3, 4)
    assert reply.outputs is not None
    apart = (reply.outputs[output] != reference.outputs[output]).any()
    assert apart == shown


def test_what_eager_leaves_nan_beside_a_hidden_row_is_not_judged() -> None:
    eager = {name: array.copy() for name, array in EMPTIED.outputs.items()}
    eager["by_text"][0, 1] = np.nan
    answers = {name: np.nan_to_num(array) for name, array in eager.items()}
    answers["by_text"][1, 0] += 1  # eager has a number there
    pair = drop_masked_row(
        replace(EMPTIED, outputs=eager), ArtifactOutputs(outputs=answers), OTHERS
    )
    assert pair is not None
    wanted, found = pair[0].outputs["by_text"], (pair[1].outputs or {})["by_text"]
    assert np.isnan(found[0, 1])
    assert found[1, 0] != wanted[1, 0]


def test_rows_are_along_the_first_axis_where_their_number_never_varies() -> None:
    outputs = {"by_text": EMPTIED.outputs["by_text"]}
    fixed = replace(EMPTIED, outputs=outputs)
    pair = drop_masked_row(fixed, ArtifactOutputs(outputs=outputs), [fixed])
    assert pair is not None
    assert pair[0].outputs["by_text"].shape == (2, 3)
    other = replace(EMPTIED, outputs={"image": np.zeros((2, 4), np.float32)})
    assert drop_masked_row(other, ArtifactOutputs(outputs=other.outputs), [other]) is None
