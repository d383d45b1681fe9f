"""What a worker of a cluster does: one model of a project, from inputs that came by digest.

Task, inputs, events and result are files in the storage that all hosts share. The worker runs the
same code as a run on one host, in a copy of the project's folder.
"""

from __future__ import annotations

import os
import platform
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from ..checkpoints.user_code import use_code_folder
from ..core.children.limits import ProcessLimits
from ..core.children.messages import StoppedByError, describe_error, encode_message
from ..core.errors import ModelcError
from ..core.events import Advanced, Entered, Event, Tell
from ..core.manifest import Failure
from ..pipeline.cache.file_digests import FileDigests
from ..pipeline.cache.remote_files import RemoteFiles, open_remote_files
from ..pipeline.cache.remote_store import RemoteStore
from ..pipeline.cache.reuse import ReuseSources
from ..pipeline.cache.step_cache import StepCache
from ..pipeline.cache.stored_folder import StoredFolder, fetch_files, store_folder
from ..pipeline.recorded_run import FinishRequest, Moved
from .artifact_selection import select_models
from .model_orders import plan_project
from .project_records import ModelOrder, ModelOutcome
from .run_models import ProjectLimits, run_models
from .setting_layers import Overrides

_PLACE = "modelc-fleet"  # the cache of the workers of one host, in its temporary folder
_PACE = 0.5  # seconds between two files of progress


@dataclass(frozen=True, kw_only=True)
class FleetTask:
    """One model to run, or with `finish`, to finish its pending steps.

    `inputs` are the files of the project that it needs, `before` those of its output folder; `out`
    and `file` are relative to the project. `failed` are steps that are not tried again. `threads`
    are those of the model, `timeout` is in seconds for each step.
    """

    model: str
    inputs: StoredFolder
    before: StoredFolder
    file: str
    out: str
    sets: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    failed: tuple[Failure, ...] = ()
    finish: bool = False
    threads: int | None = None
    timeout: float | None = None


@dataclass(frozen=True, kw_only=True)
class FleetResult:
    """What came of a task: the output folder as it is now, or the error that stopped it."""

    folder: StoredFolder
    kept: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    seconds: float = 0.0
    host: str = ""
    error: StoppedByError | None = None


class EventFiles:
    """The events of a task in numbered files, which the driver reads one after the other.

    The first exists once work began. Progress that is soon followed by more has no file of its own.
    """

    def __init__(self, files: RemoteFiles, name: str) -> None:
        self._files, self._name = files, name
        self._lines: list[bytes] = []
        self._count, self._written = 0, 0.0
        self._lock = Lock()
        self._write()

    def __call__(self, event: Event) -> None:
        """Add an event; the beginning of a step is there before the step begins."""
        with self._lock:
            self._lines.append(encode_message(event))
            if not isinstance(event, Advanced) or time.monotonic() - self._written > _PACE:
                self._write()

    def _write(self) -> None:
        self._files.write(f"{self._name}/{self._count}", b"".join(self._lines))
        self._count, self._written = self._count + 1, time.monotonic()
        self._lines.clear()


def read_events(files: RemoteFiles, name: str, since: int = 0) -> Iterator[bytes]:
    """Yield the content of the numbered files of a task's events that are there."""
    while (raw := files.read(f"{name}/{since}")) is not None:
        yield raw
        since += 1


def perform_task(url: str, name: str) -> None:
    """Do the task of that name, and write its result.

    Raises:
        ModelcError: the storage cannot be used.
    """
    import msgspec

    files = open_remote_files(url, "storage")
    raw = files.read(f"{name}.task")
    if raw is None:
        raise ModelcError(f"{name} is not in the storage", hint=f"check --storage {url}")
    task = msgspec.json.decode(raw, type=FleetTask)
    tell = EventFiles(files, f"{name}.events")
    with tempfile.TemporaryDirectory(prefix="modelc-task-") as folder, _work_in(Path(folder)):
        result = _carry_out(task, files, tell, _host_cache() or Path(folder) / ".cache")
    files.write(f"{name}.result", msgspec.json.encode(result))


def _host_cache() -> Path | None:
    """Return the cache of this user's workers on this host; None if the folder is another's."""
    if os.name != "posix":
        return None
    place = Path(tempfile.gettempdir()) / f"{_PLACE}-{os.getuid()}"
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
    found = place.lstat()
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return place if own and not found.st_mode & 0o077 else None


@contextmanager
def _work_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _carry_out(task: FleetTask, files: RemoteFiles, tell: Tell, cache: Path) -> FleetResult:
    """Run the model in the current folder, and store what is in its output folder then."""
    out = Path(task.out) / task.model
    try:
        fetch_files(task.inputs, files, Path())
        fetch_files(task.before, files, out)
        ended = _finish(task, out, tell) if task.finish else _run(task, files, tell, cache)
    except Exception as error:  # noqa: BLE001 - the driver raises it again
        ended = FleetResult(folder=task.before, error=describe_error(error))
    stored = store_folder(out, task.model, files)
    return replace(ended, folder=stored, host=platform.node())


def _run(task: FleetTask, files: RemoteFiles, tell: Tell, cache: Path) -> FleetResult:
    given = Overrides(sets=task.sets, flags={"out": task.out}, environment=task.environment)
    planned = plan_project(Path(task.file), given=given, names=(task.model,), cache=cache)
    (model,) = select_models(planned.models, task.only)
    limits = ProjectLimits(timeout=task.timeout, threads=task.threads)
    with FileDigests(cache) as digests, use_code_folder(planned.settings.project.folder):
        steps = StepCache(cache, tell=tell, remote=RemoteStore(files, tell))
        caching = ReuseSources(root=Path.cwd(), digests=digests, steps=steps, failed=task.failed)
        (ended,) = run_models([model], lambda _: tell, caching=caching, limits=limits)
    return _result_of(ended, model)


def _result_of(ended: ModelOutcome, model: ModelOrder) -> FleetResult:
    return FleetResult(
        folder=StoredFolder(name=model.name, files=()),
        kept=ended.kept,
        restored=ended.restored,
        seconds=ended.seconds,
        error=None if ended.error is None else describe_error(ended.error),
    )


def _finish(task: FleetTask, out: Path, tell: Tell) -> FleetResult:
    """Finish the pending steps; the order of the model says which consent its user gave."""
    from ..pipeline.isolation.supervisor import run_isolated

    given = Overrides(sets=task.sets, flags={"out": task.out}, environment=task.environment)
    planned = plan_project(Path(task.file), given=given, names=(task.model,))
    source = planned.models[0].order.source
    moved = Moved(allow_pickle=source.allow_pickle, trust=source.trust)
    request = FinishRequest(out=out, moved=moved)
    bounds = ProcessLimits(timeout=task.timeout, threads=task.threads)
    with use_code_folder(planned.settings.project.folder):
        run_isolated(request, tell, bounds=bounds)
    return FleetResult(folder=task.before)


def find_last_entered(events: Iterable[bytes]) -> str:
    """Return the step that a task had entered last, by its events; empty if it had none."""
    import msgspec

    step = ""
    for line in b"".join(events).splitlines():
        name, content = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
        if name == Entered.__name__:
            step = msgspec.json.decode(content, type=Entered).artifact
    return step
