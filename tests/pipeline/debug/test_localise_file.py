"""The feeds on which eager runs, and errors of the runtime."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from modelc.core.contract import Array
from modelc.core.errors import RunnerError
from modelc.core.events import Event, Finished
from modelc.pipeline.debug.localise_file import DebugOptions, localise_file
from modelc.pipeline.order import Source

from .conftest import FaultyOnnx

BASIC = "3 feeds"  # min, opt and max


class FeedCounts:
    """A listener: the numbers of feeds on which eager ran."""

    def __init__(self) -> None:
        self.feeds: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Finished) and event.step == "eager reference":
            self.feeds.append(event.detail)


def _doubled(array: Array) -> Array:
    return array * np.float32(2)


def _localise(faulty: FaultyOnnx, source: Source, counts: FeedCounts) -> str:
    import onnx

    onnx.save(faulty.model, faulty.path)
    return localise_file(faulty.path, source, counts).guilty


def test_an_artifact_that_is_wrong_on_basic_feeds_runs_on_no_others(
    faulty: FaultyOnnx, bert_source: Source
) -> None:
    faulty.weight("node_MatMul_92", _doubled)
    counts = FeedCounts()
    assert _localise(faulty, bert_source, counts) == "layers.1.attention.value"
    assert counts.feeds == [BASIC]


def test_an_artifact_that_is_right_on_basic_feeds_runs_on_all(
    faulty: FaultyOnnx, bert_source: Source
) -> None:
    counts = FeedCounts()
    assert _localise(faulty, bert_source, counts) == ""
    basic, every = counts.feeds
    assert basic == BASIC
    assert int(every.split()[0]) > 10


def test_a_recorded_worst_feed_is_used_and_no_other_drawn(bert: Path) -> None:
    copy = bert.with_name("opened")  # as deep, so that the checkpoint is found
    shutil.copytree(bert, copy)
    counts = FeedCounts()
    localise_file(copy / "model.onnx", tell=counts)
    assert counts.feeds == ["0 feeds"]


def test_a_named_feed_is_the_only_one(faulty: FaultyOnnx, bert_source: Source) -> None:
    counts = FeedCounts()
    looking = DebugOptions(feed="min")
    found = localise_file(faulty.path, bert_source, counts, looking=looking)
    assert (found.feed, counts.feeds) == ("min", ["1 feeds"])


def test_an_error_of_the_runtime_has_its_traceback_with_debug(
    faulty: FaultyOnnx, bert_source: Source
) -> None:
    faulty.weight("node_MatMul_92", lambda array: np.ascontiguousarray(array[:, :-1]))
    with pytest.raises(RunnerError) as caught:
        _localise(faulty, bert_source, FeedCounts())
    assert "--debug" in caught.value.hint
    assert "RunnerError" in "".join(caught.value.__notes__)
