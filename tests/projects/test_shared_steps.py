"""Runs that share a remote cache build a step once, and lose no more than one to a kill."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from modelc.core.events import Entered, Event, Noted, Tell, ignore_events
from modelc.core.manifest import Manifest
from modelc.pipeline.cache.file_digests import FileDigests
from modelc.pipeline.cache.remote_store import open_remote
from modelc.pipeline.cache.reuse import ReuseSources
from modelc.pipeline.cache.step_cache import StepCache
from modelc.pipeline.isolation import supervisor
from modelc.pipeline.order import Order, Source
from modelc.projects.model_orders import plan_project
from modelc.projects.project_records import ModelOutcome
from modelc.projects.run_models import ProjectLimits, run_models
from modelc.projects.setting_layers import Overrides

pytestmark = pytest.mark.slow
PROJECT = """\
[models.one]
checkpoint = "one.safetensors"
model = "modelc.sample_models.gate:gate"
input = "x:float32[batch=1..4,16]"
to = ["torchscript", "onnx"]
capture = "script"
"""
Host = Callable[..., ModelOutcome]


@pytest.fixture
def host(tmp_path: Path, gate_source: Source) -> Host:
    """`host("a")`: a run on that host, with an output folder and a cache of its own."""
    shutil.copy(gate_source.checkpoint, tmp_path / "one.safetensors")
    (tmp_path / "modelc.toml").write_text(PROJECT)

    def run(name: str, tell: Tell = ignore_events) -> ModelOutcome:
        given = Overrides(flags={"out": str(tmp_path / name / "out")})
        planned = plan_project(tmp_path / "modelc.toml", given=given)
        with FileDigests(tmp_path / name / "cache") as digests:
            remote = open_remote(f"file://{tmp_path}/far")
            steps = StepCache(tmp_path / name / "cache", remote=remote)
            caching = ReuseSources(root=Path.cwd(), digests=digests, steps=steps)
            (ended,) = run_models(
                planned.models, lambda _: tell, caching=caching, limits=ProjectLimits()
            )
        return ended

    return run


def test_two_hosts_at_once_build_a_step_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    real, built = supervisor.run_isolated, []

    def count(order: Order, *args: object, **options: object) -> Manifest:
        built.append(order.out)
        return real(order, *args, **options)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(supervisor, "run_isolated", count)
    found: dict[str, ModelOutcome] = {}
    told: list[Event] = []

    def run(name: str) -> None:
        found[name] = host(name, told.append)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
        time.sleep(0.3)
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert sorted(len(one.restored) for one in found.values()) == [0, 2]
    assert any(isinstance(one, Noted) and "waiting" in one.text for one in told)


def test_a_kill_loses_the_step_that_was_at_work_alone(host: Host, tmp_path: Path) -> None:
    entered: list[str] = []

    def interrupt(event: Event) -> None:
        if isinstance(event, Entered):
            entered.append(event.artifact)
            if len(entered) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        host("a", interrupt)
    shutil.rmtree(tmp_path / "a")
    other = host("b")
    assert other.restored == (entered[0],)
    assert other.exit_code == 0
