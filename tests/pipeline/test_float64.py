"""Eager in float64: each feed has its own reference, whatever feeds are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from modelc.core.events import ignore_events
from modelc.pipeline.float64_reference import _choose_references, add_float64
from modelc.pipeline.run_progress import Progress
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import ReferenceOutputs

from ..open_models import open_source, signature_of

if TYPE_CHECKING:
    from pathlib import Path

    from modelc.pipeline.eager_reference import EagerReference
    from modelc.pipeline.order import Source


def held_out_1(subject: EagerReference, seed: int) -> ReferenceOutputs:
    """As two artifacts have it: of one name, with other samples."""
    x = np.random.default_rng(seed).random((1, 1, 8, 8)).astype(np.float32)
    feed = NamedFeed(name="held-out-1", arrays={"x": x}, sizes={})
    return ReferenceOutputs(feed=feed, outputs=subject.model.run(feed.arrays))


def test_feeds_of_one_name_have_each_their_own_reference(
    digits_source: Source, tmp_path: Path
) -> None:
    subject = open_source(digits_source, tmp_path)
    progress = Progress(tell=ignore_events, logs=tmp_path)
    for seed in (1, 2):
        (found,) = add_float64((held_out_1(subject, seed),), subject, progress)
        assert found.exact is not None
        np.testing.assert_allclose(found.exact["output"], found.outputs["output"], atol=1e-4)


ROWS = "x:float32[rows=1..8,length=1..64]"


def answered(
    name: str, rows: int, length: int, kind: str = "shape", value: float | None = None
) -> ReferenceOutputs:
    """A feed of these sizes, drawn or full of one value, with answers of its size."""
    x = np.random.default_rng(rows * length).random((rows, length)).astype(np.float32)
    x = x if value is None else np.full_like(x, value)
    sizes = {"rows": rows, "length": length}
    feed = NamedFeed(name=name, arrays={"x": x}, sizes=sizes, kind=kind, beyond=kind == "mask")
    return ReferenceOutputs(feed=feed, outputs={"y": x})


def test_float64_runs_on_one_row_of_the_largest_sizes_and_on_few_small_feeds() -> None:
    signature = signature_of(ROWS)
    feeds = [
        answered("min", 1, 1),
        answered("opt", 4, 32),
        answered("max", 8, 64),
        answered("corner:length", 1, 64),
        answered("corner:rows", 8, 1),
        answered("batch-2", 2, 32),
        answered("zeros", 1, 32, "value", 0.0),
        answered("signs", 1, 32, "value"),
        answered("mask-one", 1, 32, "mask"),
    ]
    names = [one.feed.name for one in _choose_references(feeds, signature)]
    assert names == ["corner:length", "min", "corner:rows", "batch-2"]


def test_wide_integers_are_judged_alone_and_so_run_in_float64() -> None:
    signature = signature_of(ROWS)
    wide = [answered(f"wide-{number}", 8, 64, "wide") for number in (1, 2)]
    names = [one.feed.name for one in _choose_references([answered("min", 1, 1), *wide], signature)]
    assert names == ["min", "wide-1", "wide-2"]
