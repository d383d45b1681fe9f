"""A failure belongs to its step, and no partial result is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from modelc.core.contract import Feed, Outputs, Target
from modelc.core.errors import ConversionError, MissingError, ModelcError, RunnerError
from modelc.core.events import Event, Started
from modelc.core.manifest import Manifest
from modelc.core.verdict import State
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Order, Source
from modelc.pipeline.run_order import run

Fakes = Callable[..., Target]
Orders = Callable[..., Order]


def throw(error: BaseException) -> Callable[..., None]:
    """A function that raises, whatever it is given."""

    def raiser(*_: object) -> None:
        raise error

    return raiser


def wrong(feed: Feed) -> Outputs:
    import numpy as np

    return {"output": np.ones((len(feed["x"]), 4), np.float32)}


REJECTED = ConversionError("unknown operator", hint="replace it")
BROKEN = RunnerError("unknown kernel", hint="the whole text is in the log")


def read(folder: Path) -> Manifest:
    found = read_manifest(folder)
    assert found is not None
    return found


@pytest.fixture
def family(fake: Fakes) -> Callable[..., tuple[Target, ...]]:
    """`family(on_convert=...)`: such a parent, its child, and an independent target."""

    def make(**parts: object) -> tuple[Target, ...]:
        child = fake(NAME="child", SUFFIX=".child", origin="fake", CAPTURES=())
        return (fake(**parts), child, fake(NAME="apart", SUFFIX=".apart"))

    return make


def test_a_child_is_built_from_the_file_of_its_parent(order: Orders, fake: Fakes) -> None:
    seen: list[str] = []
    child = fake(
        NAME="child",
        SUFFIX=".child",
        origin="fake",
        CAPTURES=(),
        on_convert=lambda job: seen.append(job.parent.read_text()),
    )
    found = run(order("child"), targets=(fake(text="parent"), child))
    assert seen == ["parent"]
    assert found.artifacts[1].parent == found.artifacts[0].digest


def test_the_children_of_a_rejected_artifact_are_skipped(
    order: Orders, family: Callable[..., tuple[Target, ...]]
) -> None:
    found = run(order("child", "apart"), targets=family(answer=wrong))
    assert [artifact.name for artifact in found.artifacts] == ["rejected/fake", "apart"]
    assert [(f.step, f.exit_code) for f in found.failures] == [("child", 1)]
    assert found.failures[0].orphan_of == "fake"
    assert found.exit_code == 1


def test_the_children_of_a_rejected_artifact_are_skipped_despite_an_earlier_one(
    order: Orders, family: Callable[..., tuple[Target, ...]], tmp_path: Path
) -> None:
    run(order("fake"), targets=family())
    found = run(order("child"), targets=family(answer=wrong))
    assert [artifact.name for artifact in found.artifacts] == ["fake", "rejected/fake"]
    assert [failure.step for failure in found.failures] == ["child"]
    assert (tmp_path / "out" / "model.fake").exists()


def test_a_failed_conversion_is_recorded_and_others_continue(
    order: Orders, family: Callable[..., tuple[Target, ...]], tmp_path: Path
) -> None:
    found = run(order("fake", "apart"), targets=family(on_convert=throw(REJECTED)))
    (failure,) = found.failures
    assert (failure.step, failure.message, failure.hint) == (
        "fake",
        REJECTED.message,
        REJECTED.hint,
    )
    assert [artifact.name for artifact in found.artifacts] == ["apart"]
    assert found.exit_code == 5
    assert found == read(tmp_path / "out")


def test_the_children_of_a_failed_step_are_skipped_with_its_exit_code(
    order: Orders, family: Callable[..., tuple[Target, ...]]
) -> None:
    found = run(order("child"), targets=family(on_convert=throw(REJECTED)))
    assert [(f.step, f.exit_code) for f in found.failures] == [("fake", 5), ("child", 5)]
    assert [(a.capture, a.outcome) for a in found.failures[0].attempts] == [("trace", "error")]


def test_an_artifact_that_cannot_be_opened_has_exit_code_6(
    order: Orders, family: Callable[..., tuple[Target, ...]], tmp_path: Path
) -> None:
    found = run(order("fake"), targets=family(on_open=throw(BROKEN)))
    assert found.exit_code == 6
    assert found.failures[0].message == BROKEN.message
    assert not list(tmp_path.rglob("*.fake"))


def test_an_artifact_that_runs_no_feed_has_exit_code_6(
    order: Orders, family: Callable[..., tuple[Target, ...]], tmp_path: Path
) -> None:
    found = run(order("fake"), targets=family(answer=throw(BROKEN)))
    assert found.verdicts[0].state is State.ERROR
    assert BROKEN.message in found.verdicts[0].reason
    assert found.exit_code == 6
    assert (tmp_path / "out" / "rejected" / "model.fake").exists()


def test_a_rejection_precedes_a_failure_in_the_exit_code(order: Orders, fake: Fakes) -> None:
    broken = fake(NAME="apart", SUFFIX=".apart", on_convert=throw(REJECTED))
    assert run(order("apart", "fake"), targets=(fake(answer=wrong), broken)).exit_code == 1


def test_a_missing_device_ends_the_run_and_keeps_earlier_artifacts(
    order: Orders, family: Callable[..., tuple[Target, ...]], fake: Fakes, tmp_path: Path
) -> None:
    missing = throw(MissingError("no device", hint="buy one"))
    targets = (*family(), fake(NAME="last", SUFFIX=".last", on_open=missing))
    with pytest.raises(MissingError):
        run(order("fake", "last"), targets=targets)
    assert [artifact.name for artifact in read(tmp_path / "out").artifacts] == ["fake"]


STOPS = [KeyboardInterrupt(), MissingError("gone", hint="get it"), RuntimeError("a bug of ours")]


@pytest.mark.parametrize("stop", STOPS, ids=lambda error: type(error).__name__)
def test_an_interrupted_run_keeps_earlier_artifacts_and_leaves_no_partial_file(
    order: Orders, fake: Fakes, tmp_path: Path, stop: BaseException
) -> None:
    run(order("fake"), targets=(fake(),))
    before = read(tmp_path / "out")
    second = fake(NAME="second", SUFFIX=".second", on_convert=throw(stop))
    with pytest.raises(type(stop)):
        run(order("second"), targets=(fake(), second))
    assert read(tmp_path / "out") == before
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"logs", "manifest.json", "model.fake", "worst"}


def test_an_interrupted_rebuild_keeps_the_earlier_artifact(
    order: Orders, fake: Fakes, tmp_path: Path
) -> None:
    before = run(order("fake"), targets=(fake(),))
    with pytest.raises(KeyboardInterrupt):
        run(order("fake"), targets=(fake(text="half", on_convert=throw(KeyboardInterrupt())),))
    assert (tmp_path / "out" / "model.fake").read_text() == "a model"
    assert read(tmp_path / "out") == before


def test_a_run_that_is_interrupted_before_any_result_leaves_no_folder(
    order: Orders, tmp_path: Path
) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, Started):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(order("torchscript"), stop)
    assert not (tmp_path / "out").exists()


def test_an_error_of_the_checkpoint_leaves_no_folder(order: Orders, tmp_path: Path) -> None:
    with pytest.raises(ModelcError):
        run(order("torchscript", source=Source(checkpoint=tmp_path / "absent.pt", model="a:b")))
    assert not (tmp_path / "out").exists()


def test_an_artifact_that_passes_in_the_next_run_is_no_longer_rejected(
    order: Orders, fake: Fakes, tmp_path: Path
) -> None:
    run(order("fake"), targets=(fake(answer=wrong),))
    found = run(order("fake"), targets=(fake(),))
    assert [artifact.name for artifact in found.artifacts] == ["fake"]
    assert found.exit_code == 0
    assert not (tmp_path / "out" / "rejected").exists()


def test_a_step_that_passes_in_the_next_run_is_no_failure(order: Orders, fake: Fakes) -> None:
    run(order("fake"), targets=(fake(on_convert=throw(REJECTED)),))
    assert run(order("fake"), targets=(fake(),)).failures == ()
