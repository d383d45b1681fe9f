"""Tasks of a cluster: what is sent, and what happens when a worker, a node or a label is lost.

A double of Ray does each task at once, in this process; benchmarks/fleet_faults.py has raylets.
"""

from __future__ import annotations

import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from modelc.core.children.messages import encode_message
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.events import Advanced, Entered, Event, Finished, Noted
from modelc.pipeline.cache.file_digests import FileDigests
from modelc.pipeline.cache.remote_files import open_remote_files
from modelc.pipeline.cache.reuse import ReuseSources
from modelc.pipeline.cache.step_cache import StepCache
from modelc.pipeline.order import Source
from modelc.projects.fleet_task import (
    EventFiles,
    FleetTask,
    find_last_entered,
    perform_task,
    read_events,
)
from modelc.projects.model_orders import plan_project
from modelc.projects.project_inputs import ProjectInputs
from modelc.projects.project_records import ModelOutcome
from modelc.projects.ray_cluster import ClusterOptions, parse_cluster, parse_labels
from modelc.projects.ray_executor import FleetProject, RayExecutor
from modelc.projects.run_models import ProjectLimits, run_models_on
from modelc.projects.setting_layers import Overrides, select_model_overrides
from modelc.reports.result_rows import Outcome

from ..hub_server import use_hub
from ..reasons import has_code

MODEL = """\
[models.{name}]
checkpoint = "{name}.safetensors"
model = "modelc.sample_models.gate:gate"
input = "x:float32[batch=1..4,16]"
to = {to}
"""


class LostWorkerError(Exception):
    """The double's error of a lost worker."""


class RayDouble(types.ModuleType):
    """A cluster of one node that does a task when it is given; `lose` says which workers die."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.lose: Callable[[str, str], bool] = lambda _url, _name: False
        self.labels: dict[str, str] = {}
        self.given: list[tuple[str, dict[str, Any]]] = []
        names = (
            "WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "ObjectLostError",
            "TaskUnschedulableError",
        )  # fmt: skip
        kinds = dict.fromkeys((*names, "RayError"), LostWorkerError)
        self.exceptions = types.SimpleNamespace(**kinds)

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0}, "Labels": self.labels}]

    def remote(self, function: Callable[[str, str], None]) -> Any:
        def options(**chosen: Any) -> Any:
            def give(url: str, name: str) -> Callable[[], None]:
                self.given.append((name, chosen))
                lost = self.lose(url, name)
                missing = chosen.get("label_selector", {}).items() - self.labels.items()
                if not lost and not missing:
                    function(url, name)

                def get() -> None:
                    if lost:
                        raise LostWorkerError("the worker died")

                return get

            return types.SimpleNamespace(remote=give)

        return types.SimpleNamespace(options=options)

    def wait(self, references: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return references, []

    def get(self, reference: Callable[[], None]) -> None:
        reference()

    def cancel(self, reference: object, *, force: bool) -> None:
        """Do nothing: tasks have ended."""


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> RayDouble:
    double = RayDouble()
    monkeypatch.setitem(sys.modules, "ray", double)
    return double


@pytest.fixture
def place(tmp_path: Path, gate_source: Source, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the current folder, and a folder of its own for caches of workers."""
    root = tmp_path / "project"
    (tmp_path / "temporary").mkdir()
    root.mkdir()
    shutil.copy(gate_source.checkpoint, root / "one.safetensors")
    monkeypatch.chdir(root)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return root


def run(
    place: Path, labels: dict[str, str] | None = None, tell: Callable[[Event], None] | None = None
) -> dict[str, ModelOutcome]:
    """Run the project on the double."""
    planned = plan_project(Path("modelc.toml"))
    cluster = ClusterOptions(
        address="auto", storage=f"file://{place.parent}/far", labels=labels or {}
    )
    with FileDigests(place.parent / "cache") as digests:
        steps = StepCache(place.parent / "cache")
        caching = ReuseSources(root=Path.cwd(), digests=digests, steps=steps)
        project = FleetProject(settings=planned.settings, given=Overrides())
        listen = tell or (lambda _: None)
        limits = ProjectLimits(keep_going=True)
        executor = RayExecutor(cluster, project, lambda _: listen, caching, limits)
        return {one.name: one for one in run_models_on(executor, planned.models)}


def states(ended: ModelOutcome) -> dict[str, Outcome]:
    from modelc.projects.run_record import make_record

    (model,) = make_record([ended], seconds=0.0).models
    return {one.name: one.state for one in model.artifacts}


@pytest.mark.parametrize("text", ["", "slurm", "ray://", "Ray"])
def test_another_cluster_is_refused(text: str) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, option="on")):
        parse_cluster(text)


def test_labels_are_pairs() -> None:
    assert parse_labels(["a=b", "ray.io/x=y=z"]) == {"a": "b", "ray.io/x": "y=z"}
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, option="node-label")):
        parse_labels(["a"])


def test_the_inputs_are_code_and_what_settings_name(place: Path) -> None:
    (place / "modelc.toml").write_text(
        MODEL.format(name="one", to='"torchscript"') + 'depends = ["data/*.bin"]\n'
    )
    names = ["nets.py", "pkg/more.py", "data/a.bin", "other.safetensors", "out/x.py", ".git/y.py"]
    for name in [*names, "venv/z.py", "venv/pyvenv.cfg", "big.json"]:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text("1" * (2**20 + 1) if name == "big.json" else "1")
    planned = plan_project(Path("modelc.toml"))
    files = open_remote_files(f"file://{place.parent}/far")
    inputs = ProjectInputs(place, place / "out", files, FileDigests(None))
    found = inputs.store(planned.models[0], planned.settings.models[0].said.values())
    sent = {one.name for one in found.files}
    assert sent == {"modelc.toml", "nets.py", "pkg/more.py", "data/a.bin", "one.safetensors"}


def test_a_file_outside_of_the_project_is_an_error(place: Path) -> None:
    shutil.copy("one.safetensors", place.parent / "two.safetensors")
    text = MODEL.format(name="one", to='"torchscript"')
    (place / "modelc.toml").write_text(text.replace("one.safe", "../two.safe"))
    planned = plan_project(Path("modelc.toml"))
    files = open_remote_files(f"file://{place.parent}/far")
    inputs = ProjectInputs(place, place / "out", files, FileDigests(None))
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSAFE_PATH)):
        inputs.store(planned.models[0], planned.settings.models[0].said.values())


@pytest.mark.slow
def test_a_model_is_built_by_a_worker_and_nothing_is_left_to_do(
    place: Path, ray: RayDouble
) -> None:
    (place / "modelc.toml").write_text(MODEL.format(name="one", to='"torchscript"'))
    first = run(place)["one"]
    assert states(first) == {"torchscript": Outcome.PASSED}
    (name, options) = ray.given[0]
    assert (options["max_retries"], "label_selector" in options) == (0, False)
    assert len(name) < 100  # a name is all that Ray carries
    again = run(place)["one"]
    assert again.kept == ("torchscript",)
    assert len(ray.given) == 1


@pytest.mark.slow
def test_a_step_on_which_two_workers_died_failed_and_the_others_go_on(
    place: Path, ray: RayDouble
) -> None:
    (place / "modelc.toml").write_text(MODEL.format(name="one", to='["torchscript", "pt2"]'))

    def lose(url: str, name: str) -> bool:
        files = open_remote_files(url)
        task = msgspec.json.decode(files.read(f"{name}.task") or b"", type=FleetTask)
        if task.failed:
            return False
        files.write(f"{name}.events/0", encode_message(Entered(artifact="torchscript")))
        return True

    ray.lose = lose
    told: list[Event] = []
    ended = run(place, tell=told.append)["one"]
    assert ended.manifest is not None
    (failure, *_) = [one for one in ended.manifest.failures if one.step == "torchscript"]
    assert failure.exit_code == 6
    assert len(ray.given) == 3
    assert states(ended)["torchscript"] is Outcome.FAILED
    assert "pt2" in states(ended)
    assert sum(isinstance(one, Noted) and one.warning for one in told) >= 2


@pytest.mark.slow
def test_a_model_whose_only_step_is_lost_twice_is_an_error(place: Path, ray: RayDouble) -> None:
    (place / "modelc.toml").write_text(MODEL.format(name="one", to='"torchscript"'))
    ray.lose = lambda _url, _name: len(ray.given) <= 2
    ended = run(place)["one"]
    assert ended.error is not None
    assert ended.exit_code == 6


@pytest.mark.slow
@pytest.mark.parametrize("found", [{}, {"gpu": "l4"}])
def test_a_pending_engine_goes_to_a_node_with_the_label_or_stays_pending(
    place: Path, ray: RayDouble, found: dict[str, str]
) -> None:
    (place / "modelc.toml").write_text(MODEL.format(name="one", to='["onnx", "tensorrt"]'))
    ray.labels = found
    ended = run(place, labels={"gpu": "l4"})["one"]
    assert states(ended)["tensorrt"] is Outcome.PENDING
    assert ended.manifest is not None
    (pending,) = ended.manifest.pending
    assert ("gpu=l4" in pending.reason) is not bool(found)
    selectors = [chosen.get("label_selector") for _, chosen in ray.given]
    assert selectors == [None, {"gpu": "l4"}][: 2 if found else 1]


def test_a_model_on_the_hub_goes_to_the_worker_at_the_commit_that_was_found(
    place: Path, ray: RayDouble
) -> None:
    pytest.importorskip("huggingface_hub")
    text = MODEL.format(name="one", to='"torchscript"')
    (place / "modelc.toml").write_text(text.replace("one.safetensors", "hf://org/gate@main"))
    sent: list[FleetTask] = []

    def lose(url: str, name: str) -> bool:
        raw = open_remote_files(url).read(f"{name}.task") or b""
        sent.append(msgspec.json.decode(raw, type=FleetTask))
        model.push({"model.safetensors": b"of another commit"})
        return len(sent) <= 2

    ray.lose = lose
    with use_hub(place.parent / "cache") as hub:
        model = hub.model("org/gate")
        commit = model.push({"model.safetensors": (place / "one.safetensors").read_bytes()})
        ended = run(place)["one"]
    assert {one.sets for one in sent} == {(f"one.checkpoint=hf://org/gate@{commit}",)}
    assert {file.name for one in sent for file in one.inputs.files} == {"modelc.toml"}
    assert ended.exit_code == 6  # its only step was lost twice


def test_an_error_of_a_worker_is_that_of_the_model(place: Path, ray: RayDouble) -> None:
    text = MODEL.format(name="one", to='"torchscript"')
    (place / "modelc.toml").write_text(text)

    def spoil(url: str, name: str) -> bool:
        files = open_remote_files(url)
        raw = (files.read(f"{name}.task") or b"").replace(
            b'"file":"modelc.toml"', b'"file":"no.toml"'
        )
        files.write(f"{name}.task", raw)
        return False

    ray.lose = spoil
    ended = run(place)["one"]
    assert ended.error is not None
    assert ended.exit_code == 2
    assert Path.cwd() == place


def test_events_are_written_once_each_and_progress_in_packs(tmp_path: Path) -> None:
    files = open_remote_files(f"file://{tmp_path}")
    tell, told = EventFiles(files, "x.events"), [Entered(artifact="onnx")] * 40
    for event in told:
        tell(event)
        tell(Advanced(step="s", done=1, total=2))
    tell(Finished(step="s", passed=True, seconds=1.0))
    packs = list(read_events(files, "x.events"))
    assert (packs[0], len(packs)) == (b"", 42)
    assert len(b"".join(packs).splitlines()) == 81
    assert find_last_entered(packs) == "onnx"
    assert list(read_events(files, "x.events", len(packs))) == []


def test_settings_of_this_host_are_not_sent_to_workers() -> None:
    names = ("CACHE_DIR", "PRELOAD", "ISOLATE", "JOBS", "OUT", "WORKER", "SEED", "GATES_MAX_DROP")
    given = Overrides(
        sets=("cache-dir=/x", "one.seed=3"),
        flags={"jobs": "2"},
        environment={f"MODELC_{name}": "1" for name in names} | {"HOME": "/root"},
    )
    kept = select_model_overrides(given)
    assert (kept.sets, kept.flags) == (("one.seed=3",), {})
    assert sorted(kept.environment) == ["MODELC_GATES_MAX_DROP", "MODELC_SEED"]


def test_a_task_that_is_not_there_is_named(tmp_path: Path) -> None:
    from modelc.core.errors import ModelcError

    with pytest.raises(ModelcError, match="tasks/x"):
        perform_task(f"file://{tmp_path}", "tasks/x")
