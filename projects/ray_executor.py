"""Run the models of a project as tasks on a Ray cluster.

Ray carries the names of tasks alone. Inputs and results travel by digest through the storage, where
workers also claim steps; what a lost worker had stored is found by the next one. This process alone
writes and signs the records.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.children.messages import (
    ChildBugError,
    decode_message,
    message_types,
    rebuild_error,
)
from ..core.errors import ErrorCode, MissingError, ModelcError, RunnerError, UsageError, first_line
from ..core.events import Noted, ignore_events
from ..core.manifest import Failure, Manifest
from ..pipeline.cache.remote_files import RemoteFiles, open_remote_files
from ..pipeline.cache.reuse import ReuseSources
from ..pipeline.cache.stored_folder import replace_results, store_folder
from ..pipeline.manifest_file import write_manifest
from ..pipeline.output_folder import LOGS_FOLDER
from .fleet_task import FleetResult, FleetTask, find_last_entered, perform_task, read_events
from .project_faults import place_error
from .project_inputs import ProjectInputs
from .project_records import ModelOutcome, Settings
from .ray_cluster import ClusterOptions, connect
from .ready_models import ReadyModel, StepCount, TellOf, end_with_error, report_bug
from .run_models import ProjectLimits, may_continue
from .setting_layers import Overrides, select_model_overrides

_POLL = 0.5  # seconds between looks at the tasks
_MAX_DEATHS = 2  # of workers on one step, after which it failed
_MAX_IDLE = 120.0  # seconds that a cluster may have no node for a task
_TASKS = "tasks"


@dataclass(frozen=True, kw_only=True)
class FleetProject:
    """The project as workers plan it: its settings, what overrides them, and what is selected."""

    settings: Settings
    given: Overrides
    only: tuple[str, ...] = ()


@dataclass
class _Running:
    """A task in the cluster: the model, its name in the storage, and the files of events read."""

    ready: ReadyModel
    name: str
    reference: Any
    finish: bool
    seen: int = 0


class RayExecutor:
    """Runs models in a cluster; connects to it when it is made.

    Raises:
        MissingError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(
        self,
        options: ClusterOptions,
        project: FleetProject,
        tell_of: TellOf,
        caching: ReuseSources,
        limits: ProjectLimits,
    ) -> None:
        self.tell_of = tell_of
        self.caching: ReuseSources | None = caching
        self.limits = limits
        self._options = options
        self._project = project
        self._files: RemoteFiles = open_remote_files(options.storage, "storage")
        self._inputs = ProjectInputs(
            project.settings.project.folder, project.settings.run.out, self._files, caching.digests
        )
        self._run = secrets.token_hex(8)
        self._deaths: Counter[tuple[str, str]] = Counter()
        self._failed: dict[str, tuple[Failure, ...]] = {}
        self._attempts: Counter[str] = Counter()
        self._count = StepCount((), ignore_events)
        self._running: dict[str, _Running] = {}
        self._prepared: dict[str, ModelOutcome] = {}  # models whose pending steps are finished now
        self._idle_since = time.monotonic()
        self._ray = connect(options.address)
        self._perform = self._ray.remote(perform_task)

    def execute(self, ready: Sequence[ReadyModel], count: StepCount) -> dict[str, ModelOutcome]:
        """Return the outcomes by name; models that were not started are missing."""
        self._count = count
        found: dict[str, ModelOutcome] = {}
        waiting = list(ready)
        try:
            while waiting or self._running:
                room = self._room() - len(self._running)
                if waiting and room > 0:
                    self._submit(waiting.pop(0), found)
                    continue
                self._check_idle(room)
                for one in self._wait_for_tasks():
                    self._settle(one, found)
                if not may_continue(found.values(), self.limits):
                    waiting.clear()
        except BaseException:
            for left in self._running.values():
                self._ray.cancel(left.reference, force=True)
            raise
        return found

    def _check_idle(self, room: int) -> None:
        """Check that the cluster was not without nodes for too long.

        Raises:
            MissingError: it was.
        """
        if self._running or room > 0:
            self._idle_since = time.monotonic()
        elif time.monotonic() - self._idle_since > _MAX_IDLE:
            text = "the Ray cluster has no node with a CPU"
            raise MissingError(text, hint="ray status shows its nodes")

    def _room(self) -> int:
        """Return how many tasks the cluster runs at once; with --jobs, not more."""
        cores = int(sum(one["Resources"].get("CPU", 0) for one in self._nodes()))
        return min(cores, self.limits.jobs) if self.limits.jobs > 1 else cores

    def _nodes(self) -> list[dict[str, Any]]:
        return [one for one in self._ray.nodes() if one["Alive"]]

    def _has_label(self) -> bool:
        labels = self._options.labels.items()
        return any(labels <= one.get("Labels", {}).items() for one in self._nodes())

    def _submit(
        self, ready: ReadyModel, found: dict[str, ModelOutcome], *, finish: bool = False
    ) -> None:
        """Store a task with its inputs, and give it to Ray."""
        import msgspec

        model, since = ready.model, time.perf_counter()
        settings, given = self._project.settings, select_model_overrides(self._project.given)
        hub = model.order.source.hub  # a branch may move until the worker reads it
        pinned = () if hub is None else (f"{model.name}.checkpoint={hub.id}",)
        said = next(one.said for one in settings.models if one.name == model.name)
        try:
            task = FleetTask(
                model=model.name,
                inputs=self._inputs.store(model, said.values()),
                before=store_folder(model.order.out, model.name, self._files),
                file=settings.project.file.name,
                out=_inside(settings.run.out, settings.project.folder),
                sets=(*given.sets, *pinned),
                environment=given.environment,
                only=self._project.only,
                failed=self._failed.get(model.name, ()),
                finish=finish,
                threads=self.limits.threads or 1,
                timeout=self.limits.timeout,
            )
        except ModelcError as error:
            found[model.name] = end_with_error(model, place_error(error, model.places), since)
            return
        self._attempts[model.name] += 1
        name = f"{_TASKS}/{self._run}/{model.name}-{self._attempts[model.name]}"
        self._files.write(f"{name}.task", msgspec.json.encode(task))
        options: dict[str, Any] = {"num_cpus": 1, "max_retries": 0, "name": f"modelc {model.name}"}
        options |= {"label_selector": dict(self._options.labels)} if finish else {}
        reference = self._perform.options(**options).remote(self._options.storage, name)
        self._running[model.name] = _Running(
            ready=ready, name=name, reference=reference, finish=finish
        )

    def _wait_for_tasks(self) -> list[_Running]:
        """Wait a moment, pass events on, and return the tasks that have ended or cannot start."""
        running = self._running
        references = [one.reference for one in running.values()]
        if not references:
            time.sleep(_POLL)
            return []
        done, _ = self._ray.wait(references, num_returns=len(references), timeout=_POLL)
        for one in running.values():
            self._pass_events(one)
        return [
            one
            for one in running.values()
            if one.reference in done or (one.finish and not one.seen and not self._has_label())
        ]

    def _pass_events(self, one: _Running) -> None:
        tell = self._count.of(one.ready.model.name, self.tell_of(one.ready.model.name))
        for raw in read_events(self._files, f"{one.name}.events", one.seen):
            one.seen += 1
            for line in raw.splitlines():
                tell(decode_message(line, message_types()))  # type: ignore[arg-type]  # an event

    def _settle(self, one: _Running, found: dict[str, ModelOutcome]) -> None:
        """Take the result of a task, or run it again if its worker was lost."""
        model = one.ready.model
        del self._running[model.name]
        errors = self._ray.exceptions
        lost = (
            errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError,
            errors.ObjectLostError, errors.TaskUnschedulableError,
        )  # fmt: skip
        try:
            if one.finish and not one.seen and not self._has_label():
                self._ray.cancel(one.reference, force=True)
                found[model.name] = self._keep_pending(self._prepared.pop(model.name))
            else:
                self._ray.get(one.reference)
                self._take(one, found)
        except lost as error:
            self._report_death(one, error)
            self._submit(one.ready, found, finish=one.finish)
            return
        except errors.RayError as error:
            text = f"the worker failed: {first_line(error)}"
            hint = "workers need the same modelc, and access to the storage"
            since = time.perf_counter() - one.ready.seconds
            found[model.name] = end_with_error(model, RunnerError(text, hint=hint), since)
        if model.name not in self._running:
            self._count.end(model.name)

    def _take(self, one: _Running, found: dict[str, ModelOutcome]) -> None:
        """Take the result of a task; finish pending steps where a node has the labels."""
        ended = self._take_result(one)
        name, manifest = one.ready.model.name, ended.manifest
        if one.finish:
            before = self._prepared.pop(name)
            ended = replace(ended, kept=before.kept, restored=before.restored)
        elif self._options.labels and manifest is not None and manifest.pending:
            if self._has_label():
                self._prepared[name] = ended
                self._submit(one.ready, found, finish=True)
                return
            ended = self._keep_pending(ended)
        found[name] = ended

    def _report_death(self, one: _Running, error: Exception) -> None:
        """Count the death of a worker; a step on which two died is not tried again."""
        model = one.ready.model
        events = read_events(self._files, f"{one.name}.events")
        step = find_last_entered(events) or one.ready.steps_left[0]
        self._deaths[model.name, step] += 1
        text = f"{step}: its worker was lost ({first_line(error, limit=80)})"
        self.tell_of(model.name)(Noted(text=text, warning=True))
        if self._deaths[model.name, step] >= _MAX_DEATHS:
            failure = Failure(
                step=step,
                message=f"{_MAX_DEATHS} workers were lost while they built it",
                hint="it may need more memory than a node has; ray logs has the reason",
                exit_code=RunnerError.exit_code,
            )
            self._failed[model.name] = (*self._failed.get(model.name, ()), failure)

    def _take_result(self, one: _Running) -> ModelOutcome:
        """Bring the output folder to the state that the worker left, and make the outcome."""
        import msgspec

        model, since = one.ready.model, time.perf_counter()
        try:
            raw = self._files.read(f"{one.name}.result")
            result = msgspec.json.decode(raw or b"", type=FleetResult)
            manifest = replace_results(result.folder, self._files, model.order.out)
        except (ModelcError, msgspec.MsgspecError) as error:
            own = error if isinstance(error, ModelcError) else _result_error(one.name)
            return end_with_error(model, own, since)
        if result.error is not None:
            fault = rebuild_error(result.error)
            if isinstance(fault, ChildBugError):
                fault = report_bug(fault, model.order.out / LOGS_FOLDER)
            if not isinstance(fault, ModelcError):
                raise fault
            return end_with_error(model, place_error(fault, model.places), since)
        if manifest is None:
            return end_with_error(model, _result_error(one.name), since)
        return self._make_outcome(one.ready, manifest, result)

    def _make_outcome(
        self, ready: ReadyModel, manifest: Manifest, result: FleetResult
    ) -> ModelOutcome:
        steps = tuple(step.name for step in ready.model.plan)
        whole = replace(manifest, steps=steps)
        made = ready.make_outcome(whole, time.perf_counter())
        return replace(
            made, kept=result.kept, restored=result.restored, seconds=round(result.seconds, 3)
        )

    def _keep_pending(self, ended: ModelOutcome) -> ModelOutcome:
        """Record why the pending steps were not finished."""
        if ended.manifest is None:
            return ended
        labels = ", ".join(f"{key}={value}" for key, value in self._options.labels.items())
        reason = f"no node of the cluster has the label {labels}"
        pending = tuple(replace(one, reason=reason) for one in ended.manifest.pending)
        manifest = replace(ended.manifest, pending=pending)
        write_manifest(manifest, Path(ended.folder))
        return replace(ended, manifest=manifest)


def _result_error(name: str) -> RunnerError:
    return RunnerError(
        f"the result {name} is not in the storage", hint="check --storage, and run it again"
    )


def _inside(out: Path, folder: Path) -> str:
    """Return the output folder relative to the project.

    Raises:
        UsageError: it is elsewhere.
    """
    if not out.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"with --on, the output folder has to be inside of the project: {out}",
            hint="give another -o",
            option="out",
            code=ErrorCode.UNSUPPORTED,
        )
    return out.resolve().relative_to(folder.resolve()).as_posix()
