"""A model on a server is found, described, and run as an artifact."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from modelc.core.dims import Dim
from modelc.core.errors import ErrorCode, RunnerError, UsageError
from modelc.core.kinds import Precision
from modelc.core.records import Artifact
from modelc.core.signature import InputSpec, Signature
from modelc.runtimes.served_runtime import ServedRuntime, find_model
from modelc.runtimes.v2_client import ServerAddress, parse_address

from .v2_double import Arrays, ServedDouble, serve

BATCH = Dim(low=1, opt=2, high=8, name="batch")
SIGNATURE = Signature(
    inputs=(
        InputSpec(name="x", dtype="float32", dims=(BATCH,)),
        InputSpec(name="s", dtype="float32", dims=()),
    ),
    outputs=("y", "total"),
)
ARTIFACT = Artifact(
    name="onnx",
    target="onnx",
    precision=Precision.FP32,
    files=(),
    parent="",
    made_from="checkpoint",
)


def answer(feed: Arrays) -> Arrays:
    """The net itself, with the dims of 1 that servers add."""
    x, s = feed["x"], feed["s"]
    assert x.ndim == 2
    assert s.shape == (1,)
    return {"total": x.sum(0), "y": x * s}


@pytest.fixture
def double() -> Iterator[ServedDouble]:
    config = {
        "max_batch_size": 0, "backend": "onnxruntime",
        "output": [{"name": "y", "reshape": {"shape": []}},
                   {"name": "total", "reshape": {"shape": []}}],
    }  # fmt: skip
    shown = ServedDouble(
        answer=answer,
        inputs=(("x", "FP32", [-1, 1]), ("s", "FP32", [1])),
        outputs=(("y", "FP32", [-1, 1]), ("total", "FP32", [1])),
        config=config,
    )
    with serve(shown) as running:
        yield running


def at(double: ServedDouble) -> ServerAddress:
    return parse_address(double.url)


FEED = {"x": np.arange(3, dtype="float32"), "s": np.array(2.0, "float32")}


def test_scalars_and_rows_get_the_shape_that_the_server_takes(double: ServedDouble) -> None:
    runtime = ServedRuntime(address=at(double), model="net")
    with runtime.open(Path(), ARTIFACT, SIGNATURE) as runner:
        found = runner.run(FEED)
    assert list(found) == ["y", "total"]
    assert found["y"].tolist() == [0, 2, 4]
    assert found["total"].shape == ()
    assert found["total"] == 3


def test_half_inputs_are_converted_both_ways(double: ServedDouble) -> None:
    seen: list[str] = []

    def halves(feed: Arrays) -> Arrays:
        seen.extend(str(array.dtype) for array in feed.values())
        return answer(feed)

    double.answer = halves
    double.inputs = (("x", "FP16", [-1, 1]), ("s", "FP16", [1]))
    artifact = Artifact(**{**vars(ARTIFACT), "options": {"io": "fp16"}})
    with ServedRuntime(address=at(double), model="net").open(Path(), artifact, SIGNATURE) as runner:
        found = runner.run(FEED)
    assert seen == ["float16", "float16"]
    assert found["y"].dtype == np.float32


def test_the_only_model_needs_no_name(double: ServedDouble) -> None:
    assert find_model(at(double)).name == "net"


@pytest.mark.parametrize("index", [None, (), ({"name": "a"}, {"name": "b"})])
def test_several_models_need_a_name(
    double: ServedDouble, index: tuple[dict[str, str], ...] | None
) -> None:
    double.index = index
    with pytest.raises(UsageError) as caught:
        find_model(at(double))
    assert caught.value.option == "model"


def test_an_unknown_model_is_named(double: ServedDouble) -> None:
    with pytest.raises(UsageError) as caught:
        find_model(at(double), "nut")
    assert caught.value.code is ErrorCode.UNKNOWN_NAME
    assert "net" in caught.value.hint


def test_an_unknown_version_is_named(double: ServedDouble) -> None:
    double.ready = False
    with pytest.raises(UsageError) as caught:
        find_model(at(double), "net", "7")
    assert caught.value.code is ErrorCode.UNKNOWN_NAME


def test_a_model_that_is_not_ready_is_refused(double: ServedDouble) -> None:
    double.ready = False
    with pytest.raises(RunnerError) as caught:
        find_model(at(double), "net")
    assert caught.value.code is ErrorCode.SERVER_REJECTED


@pytest.mark.parametrize(
    ("versions", "asked"), [(("2", "10", "9"), "10"), ((), ""), (("v1",), ""), (("1", "v2"), "1")]
)
def test_the_newest_version_is_asked_by_its_number(
    double: ServedDouble, versions: tuple[str, ...], asked: str
) -> None:
    double.versions = versions
    assert find_model(at(double), "net").version == asked


def test_versions_name_server_and_model(double: ServedDouble) -> None:
    found = ServedRuntime(address=at(double), model="net").prepare(Path(), ARTIFACT)
    assert found == {
        "server": "double 9", "model": "net", "version": "1", "platform": "onnxruntime_onnx",
    }  # fmt: skip


def test_feeds_are_sent_at_the_same_time(double: ServedDouble) -> None:
    meeting = threading.Barrier(4, timeout=60)  # as many as connections

    def wait(feed: Arrays) -> Arrays:
        if feed["x"].size == 5:
            meeting.wait()
        return answer(feed)

    double.answer = wait
    feeds = [{**FEED, "x": np.ones(size, "float32")} for size in (5, 2, 3)]
    runtime = ServedRuntime(address=at(double), model="net")
    found = runtime.run_together(ARTIFACT, SIGNATURE, feeds[:1] * 3)
    assert [len(replies) for replies in found] == [4, 4, 4]


def test_a_refused_feed_beside_others_is_none(double: ServedDouble) -> None:
    def refuse(feed: Arrays) -> Arrays:
        if len(feed["x"]) == 2:
            raise ValueError("too busy")
        return answer(feed)

    double.answer = refuse
    feeds = [{**FEED, "x": np.ones(size, "float32")} for size in (1, 2)]
    found = ServedRuntime(address=at(double), model="net").run_together(ARTIFACT, SIGNATURE, feeds)
    assert found[1] == [None] * 4
    assert all(reply is not None for reply in found[0])
