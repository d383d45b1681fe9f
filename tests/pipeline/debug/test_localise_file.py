"""No more feeds are run than a look needs, and a refusal says where its log is."""

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

from .conftest import Spoiled

BASIC = "3 feeds"  # min, opt and max


class Told:
    """Listens to how many feeds eager ran on, each time."""

    def __init__(self) -> None:
        self.feeds: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Finished) and event.step == "eager reference":
            self.feeds.append(event.detail)


def _doubled(array: Array) -> Array:
    return array * np.float32(2)


def _look(spoiled: Spoiled, source: Source, told: Told) -> str:
    import onnx

    onnx.save(spoiled.model, spoiled.path)
    return localise_file(spoiled.path, source, told).guilty


def test_an_artifact_that_is_wrong_on_basic_feeds_is_run_on_no_others(
    spoiled: Spoiled, bert_source: Source
) -> None:
    spoiled.weight("node_MatMul_92", _doubled)
    told = Told()
    assert _look(spoiled, bert_source, told) == "layers.1.attention.value"
    assert told.feeds == [BASIC]


def test_one_that_is_right_on_basic_feeds_is_run_on_all(
    spoiled: Spoiled, bert_source: Source
) -> None:
    told = Told()
    assert _look(spoiled, bert_source, told) == ""
    basic, every = told.feeds
    assert basic == BASIC
    assert int(every.split()[0]) > 10


def test_a_worst_feed_on_record_is_taken_and_eager_drawn_on_no_other(bert: Path) -> None:
    copy = bert.with_name("opened")  # as deep, so that the checkpoint is found
    shutil.copytree(bert, copy)
    told = Told()
    localise_file(copy / "model.onnx", tell=told)
    assert told.feeds == ["0 feeds"]


def test_a_feed_that_is_named_is_the_only_one(spoiled: Spoiled, bert_source: Source) -> None:
    told = Told()
    looking = DebugOptions(feed="min")
    found = localise_file(spoiled.path, bert_source, told, looking=looking)
    assert (found.feed, told.feeds) == ("min", ["1 feeds"])


def test_a_runtimes_refusal_says_how_to_see_its_whole_text(
    spoiled: Spoiled, bert_source: Source
) -> None:
    spoiled.weight("node_MatMul_92", lambda array: np.ascontiguousarray(array[:, :-1]))
    with pytest.raises(RunnerError) as told:
        _look(spoiled, bert_source, Told())
    assert "--debug" in told.value.hint
    text = "".join(told.value.__notes__)
    assert "RunnerError" in text
