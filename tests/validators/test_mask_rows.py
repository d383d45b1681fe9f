"""Along which axis the rows of a mask lie."""

from __future__ import annotations

import numpy as np
import pytest

from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, merge_inputs
from modelc.validators.edge_case_feeds import draw_edge_case_feeds
from modelc.validators.feeds import draw_feeds


def signature_of(text: str) -> Signature:
    return merge_inputs([parse_input(text)], {})


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
def test_a_mask_hides_places_along_its_last_axis_longer_than_one(text: str, axis: int) -> None:
    signature = signature_of(text)
    feeds = [*draw_feeds(signature), *draw_edge_case_feeds(signature)]
    masks = [feed.arrays["mask"] for feed in feeds if feed.name != "mask-empty"]
    assert any((mask == 0).any() for mask in masks)
    drawn = [feed.arrays["mask"] for feed in feeds if feed.kind in ("shape", "seed", "batch")]
    for mask in drawn:  # a row of zeros is undefined in most attentions
        assert np.moveaxis(mask, axis, -1).any(-1).all()
