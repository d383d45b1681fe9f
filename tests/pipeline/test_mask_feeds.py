"""Masks that are 0 in front: what they show is held to eager, what they hide is told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from modelc.core.kinds import Precision, ReasonCode
from modelc.core.verdict import Verdict
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs

from ..open_models import evidence_of, signature_of
from ..reasons import reason_codes

Array = NDArray[np.float32]
INPUTS = ("x:float32[batch=1..4,6,3]", "mask:int64[batch,6]{0..1}")
SIGNATURE = signature_of(*INPUTS, outputs=("y",))


def verdict_of(
    change: Callable[[Array], None], *, precision: Precision = Precision.FP32, lost: bool = False
) -> Verdict:
    """The verdict on an artifact that is eager's equal but for what `change` does on mask-left."""
    draw = np.random.default_rng(0)
    references, replies = [], []
    for name, kind in (("opt", "drawn"), ("mask-left", "mask")):
        x = draw.standard_normal((2, 6, 3)).astype(np.float32)
        mask = np.ones((2, 6), np.int64)
        mask[:, :3] = kind != "mask"
        feed = NamedFeed(name=name, arrays={"x": x, "mask": mask}, sizes={}, kind=kind)
        eager, found = x * 2, x * 2
        if kind == "mask":
            change(found)
            eager[0, 4] = np.nan if lost else eager[0, 4]
        references.append(ReferenceOutputs(feed=feed, outputs={"y": eager}))
        replies.append(ArtifactOutputs(outputs={"y": found}))

    return evidence_of(references, replies, SIGNATURE, precision=precision).verdict


def behind(found: Array) -> None:
    found[:, 1] += 1


def shown(found: Array) -> None:
    found[1, 4, 2] += 0.01


def test_differences_where_the_mask_shows_reject() -> None:
    verdict = verdict_of(shown)
    assert reason_codes(verdict) == [ReasonCode.OUTPUT_DIFFERS]
    assert "mask-left" in verdict.reason


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_differences_where_the_mask_hides_are_noted(precision: Precision) -> None:
    verdict = verdict_of(behind, precision=precision)
    assert verdict.passed
    (note,) = verdict.notes
    assert "mask-left, only" in note


def test_outputs_are_not_judged_where_eager_is_undefined() -> None:
    assert verdict_of(shown, lost=True).passed
