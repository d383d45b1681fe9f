"""A project carried out: what is done is taken up, what changed is made, and no more."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from modelc.core.children.messages import ChildBugError
from modelc.core.errors import UsageError
from modelc.core.events import Advanced, Entered, Event, Finished, Started, ignore_events
from modelc.core.manifest import Manifest
from modelc.pipeline.cache.file_digests import FileDigests
from modelc.pipeline.cache.reuse import ReuseSources
from modelc.pipeline.cache.step_cache import StepCache
from modelc.pipeline.isolation import supervisor
from modelc.pipeline.order import Order, Source
from modelc.projects.model_orders import plan_project
from modelc.projects.project_records import ModelOutcome, combine_exit_codes
from modelc.projects.ready_models import ALL_STEPS, ReadyModel, StepCount
from modelc.projects.run_models import ProjectLimits, run_models
from modelc.projects.run_record import make_record

pytestmark = pytest.mark.slow

MODEL = """\
[models.{name}]
checkpoint = "{name}.safetensors"
model = "modelc.sample_models.gate:gate"
input = "x:float32[batch=1..4,16]"
to = "torchscript"
{more}
"""
GOES_ON, STOPS = ProjectLimits(keep_going=True), ProjectLimits()


@dataclass(frozen=True)
class Place:
    """A project in a folder of its own, with a cache."""

    folder: Path

    def write(self, *names: str, more: str = "") -> None:
        text = "".join(MODEL.format(name=name, more=more) for name in names)
        (self.folder / "modelc.toml").write_text(text)

    def run(
        self,
        limits: ProjectLimits = STOPS,
        tell: Callable[[Event], None] = ignore_events,
        *,
        cached: bool = True,
    ) -> dict[str, ModelOutcome]:
        planned = plan_project(self.folder / "modelc.toml")
        with FileDigests(self.folder / "cache") as digests:
            steps = StepCache(self.folder / "cache")
            caching = (
                ReuseSources(root=Path.cwd(), digests=digests, steps=steps) if cached else None
            )
            ended = run_models(planned.models, lambda _: tell, caching=caching, limits=limits)
        return {one.name: one for one in ended}


@pytest.fixture
def place(tmp_path: Path, gate_source: Source, nested_source: Source) -> Place:
    """Two models of one architecture; `wrong` has the weights of another."""
    for name in ("one", "two"):
        shutil.copy(gate_source.checkpoint, tmp_path / f"{name}.safetensors")
    shutil.copy(nested_source.checkpoint, tmp_path / "wrong.safetensors")
    return Place(tmp_path)


def made(ended: ModelOutcome) -> list[str]:
    manifest = ended.manifest
    steps = () if manifest is None else manifest.steps
    return [step for step in steps if step not in {*ended.kept, *ended.restored}]


def test_a_second_run_makes_nothing_and_a_changed_weight_makes_its_own_model_alone(
    place: Place,
) -> None:
    from safetensors.torch import load_file, save_file

    place.write("one", "two")
    first = place.run()
    assert [made(one) for one in first.values()] == [["torchscript"], ["torchscript"]]
    assert combine_exit_codes(tuple(first.values())) == 0
    again = place.run()
    assert [one.kept for one in again.values()] == [("torchscript",), ("torchscript",)]
    weights = load_file(place.folder / "two.safetensors")
    name = sorted(weights)[0]
    weights[name] = weights[name] + 0.5
    save_file(weights, place.folder / "two.safetensors")
    third = place.run()
    assert third["one"].kept == ("torchscript",)
    assert made(third["two"]) == ["torchscript"]
    digests = [one.manifest.artifacts[0].digest for one in third.values() if one.manifest]
    assert digests[0] != digests[1]


def test_a_conversion_that_fails_is_tried_once_and_reported_each_time(
    place: Place,
) -> None:
    """gate branches on tensor data: torch.export will not have it on another day either."""
    place.write("one", more='precision = "fp32"')
    text = (place.folder / "modelc.toml").read_text()
    (place.folder / "modelc.toml").write_text(text.replace('"torchscript"', '["pt2", "onnx"]'))
    first = place.run()["one"]
    assert first.kept == ()
    told: list[Event] = []
    again = place.run(tell=told.append)["one"]
    assert (again.kept, told) == (("onnx", "pt2"), [])
    assert first.manifest is not None
    assert again.manifest == first.manifest
    (failure,) = first.manifest.failures
    assert (failure.step, failure.exit_code, again.exit_code) == ("pt2", 5, 5)
    (model,) = make_record([again], seconds=0.0).models
    ends = {one.name: (one.state, one.source) for one in model.artifacts}
    assert ends == {"pt2": ("failed", "kept"), "onnx": ("passed", "kept")}
    source = place.folder / "modelc.toml"
    source.write_text(source.read_text() + "opset = 20\n")
    assert made(place.run()["one"]) == ["pt2", "onnx"]


def test_a_bug_ends_one_model_and_its_traceback_is_logged(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = supervisor.run_isolated

    def breaks(order: Order, *args: object, **options: object) -> Manifest:
        if order.out.name == "one":
            raise ChildBugError("KeyError('x')") from RuntimeError("line 7")
        return real(order, *args, **options)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(supervisor, "run_isolated", breaks)
    place.write("one", "two")
    ended = place.run(GOES_ON)
    assert ended["two"].exit_code == 0
    assert ended["one"].exit_code == combine_exit_codes(tuple(ended.values())) == 70
    error = ended["one"].error
    assert error is not None
    assert "KeyError('x')" in error.message
    log = Path(ended["one"].folder) / "logs" / "bug.log"
    assert str(log) in error.hint
    assert "line 7" in log.read_text()


def test_the_seconds_of_a_model_are_of_its_own_work(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(order: Order, *_: object, **__: object) -> Manifest:
        time.sleep(1.0 if order.out.name == "one" else 0.0)
        raise UsageError("it breaks", hint="mend it")

    monkeypatch.setattr(supervisor, "run_isolated", breaks)
    place.write("one", "two")
    ended = place.run(GOES_ON)
    assert ended["one"].seconds >= 1.0
    assert ended["two"].seconds < 1.0


def test_a_folder_that_is_gone_is_filled_from_the_cache_and_without_it_made_anew(
    place: Place,
) -> None:
    place.write("one")
    before = place.run()["one"].manifest
    shutil.rmtree(place.folder / "out")
    told: list[Event] = []
    restored = place.run(tell=told.append)["one"]
    assert restored.restored == ("torchscript",)
    assert not [event for event in told if isinstance(event, Finished)]
    assert before is not None
    assert restored.manifest is not None
    assert restored.manifest.artifacts == before.artifacts
    assert made(place.run(cached=False)["one"]) == ["torchscript"]


def test_a_model_that_is_stopped_keeps_the_next_from_beginning_unless_asked_to_go_on(
    place: Place,
) -> None:
    place.write("wrong", "one")
    ended = place.run(STOPS)
    assert ended["wrong"].error is not None
    assert str(ended["wrong"].error).startswith(f"{place.folder / 'modelc.toml'}:3 [models.wrong]")
    assert not ended["one"].started
    assert combine_exit_codes(tuple(ended.values())) == 3
    ended = place.run(GOES_ON)
    assert made(ended["one"]) == ["torchscript"]
    assert combine_exit_codes(tuple(ended.values())) == 3


def test_a_broken_gate_is_a_failure_though_all_is_proven(place: Place) -> None:
    place.write("one", more='gates = { max-size = "1 kB" }')
    ended = place.run()["one"]
    assert ended.manifest is not None
    assert ended.manifest.passed
    assert [breach.gate for breach in ended.breaches] == ["max-size"]
    assert ended.exit_code == 1


def test_models_side_by_side_end_as_one_after_the_other(place: Place) -> None:
    place.write("one", "two")
    ended = place.run(ProjectLimits(jobs=2, memory=8 << 30))
    assert [one.exit_code for one in ended.values()] == [0, 0]


def test_an_interrupt_while_two_run_leaves_no_work_and_the_next_run_goes_on(place: Place) -> None:
    place.write("one", "two")

    def interrupt(event: Event) -> None:
        if isinstance(event, Finished) and event.step == "load model":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.run(ProjectLimits(jobs=2), interrupt)
    left = {path.name for path in place.folder.rglob("*") if path.name.startswith(".")}
    assert not left
    assert [one.exit_code for one in place.run().values()] == [0, 0]


def test_steps_that_a_failed_model_did_not_come_to_are_no_pace() -> None:
    ready = [
        cast("ReadyModel", SimpleNamespace(model=SimpleNamespace(name=name), steps_left=steps))
        for name, steps in (("fails", ("onnx", "openvino")), ("works", ("onnx",)))
    ]
    events = list[Event]()
    count = StepCount(ready, events.append)
    count.end("fails")
    count.of("works", ignore_events)(Entered(artifact="onnx"))
    count.end("works")
    assert events == [
        Started(step=ALL_STEPS),
        Advanced(step=ALL_STEPS, done=0, total=1),
        Advanced(step=ALL_STEPS, done=1, total=1),
    ]


def test_the_run_counts_the_steps_of_all_models(place: Place) -> None:
    place.write("one", "two")
    planned, events = plan_project(place.folder / "modelc.toml"), list[Event]()
    run_models(
        planned.models, lambda _: ignore_events, caching=None, limits=GOES_ON,
        on_event=events.append,
    )  # fmt: skip
    assert events == [
        Started(step=ALL_STEPS),
        Advanced(step=ALL_STEPS, done=1, total=2),
        Advanced(step=ALL_STEPS, done=2, total=2),
    ]
