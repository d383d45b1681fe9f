"""Eager in float64: each feed has its own reference, whatever feeds are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from modelc.core.events import silence
from modelc.pipeline.float64 import with_float64
from modelc.pipeline.order import Judging
from modelc.pipeline.stage import Stage
from modelc.pipeline.subject import open_subject, read_checkpoint
from modelc.validators.evidence import Reference
from modelc.validators.feeds import NamedFeed

if TYPE_CHECKING:
    from pathlib import Path

    from modelc.pipeline.order import Source
    from modelc.pipeline.subject import Subject


def held_out_1(subject: Subject, seed: int) -> Reference:
    """As two artifacts have it: of one name, with other samples."""
    x = np.random.default_rng(seed).random((1, 1, 8, 8)).astype(np.float32)
    feed = NamedFeed(name="held-out-1", arrays={"x": x}, sizes={})
    return Reference(feed=feed, outputs=subject.eager.run(feed.arrays))


def test_feeds_of_one_name_have_each_their_own_reference(
    digits_source: Source, tmp_path: Path
) -> None:
    stage = Stage(tell=silence, logs=tmp_path)
    subject = open_subject(digits_source, read_checkpoint(digits_source, stage), Judging(), stage)
    for seed in (1, 2):
        (found,) = with_float64((held_out_1(subject, seed),), subject, stage)
        assert found.exact is not None
        np.testing.assert_allclose(found.exact["output"], found.outputs["output"], atol=1e-4)
