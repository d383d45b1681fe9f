"""What `modelc run` does: plan the whole project, carry it out, show how it ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ..core.events import Entered, Event, Noted, Tell
from ..pipeline.manifest_file import as_json
from ..projects.layers import Given
from ..projects.only import only
from ..projects.orders import Planned, plan_project
from ..projects.outcome import Ended
from ..projects.records import ModelOrder, RunSettings
from .options import cache_folder
from .render_config import warn
from .render_run import show_plans, show_run
from .screen import Screen
from .tables import show_json

if TYPE_CHECKING:
    from ..pipeline.caching.taking_up import Caching


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line of `modelc run` says beside settings."""

    file: Path
    models: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    use_cache: bool = True
    dry_run: bool = False
    prepare_only: bool = False
    json: bool = False
    quiet: bool = False


def run_project(asked: Asked, given: Given) -> int:
    """Carry out the project; the exit code.

    Raises:
        ModelcError: the project cannot be carried out; nothing was begun.
    """
    began = time.perf_counter()
    cache = cache_folder(no_cache=not asked.use_cache)
    planned = plan_project(asked.file, given=given, names=asked.models, cache=cache)
    warn(planned.settings.warnings)
    models = only(planned.models, asked.only)
    if asked.dry_run:
        show_plans(models, asked.file, planned.settings.run, json=asked.json)
        return 0
    ended = _carried_out(models, planned, asked)
    return _told(ended, planned, asked, since=began)


def _carried_out(models: Sequence[ModelOrder], planned: Planned, asked: Asked) -> tuple[Ended, ...]:
    from ..pipeline.reporting import fresh_reports
    from ..projects.running import Limits, run_models
    from ..reports.formats import formats_of

    run = planned.settings.run
    limits = Limits(
        jobs=run.jobs, memory=run.memory, timeout=run.timeout, keep_going=run.keep_going
    )
    reports = formats_of(run.report)
    with ExitStack() as held, _importable(planned.settings.project.folder):
        for model in models:
            held.enter_context(fresh_reports(model.order.out, reports))
        width = _width(models)
        screen = held.enter_context(Screen(quiet=asked.quiet, more=width))
        caching = held.enter_context(_caching(run, asked, screen))
        return run_models(models, _tell_of(screen, width), caching=caching, limits=limits)


@contextmanager
def _caching(run: RunSettings, asked: Asked, tell: Tell) -> Iterator[Caching | None]:
    """Where earlier results are looked for; None where they are not to be."""
    from ..pipeline.caching.digests import Digests
    from ..pipeline.caching.remote import open_remote
    from ..pipeline.caching.steps import StepCache
    from ..pipeline.caching.store import LIMIT
    from ..pipeline.caching.taking_up import Caching

    folder = run.cache_dir or cache_folder()
    if not asked.use_cache or folder is None:
        yield None
        return
    remote = None if run.remote_cache is None else open_remote(run.remote_cache, tell)
    limit = LIMIT if run.cache_limit is None else run.cache_limit
    with Digests(folder) as digests:
        steps = StepCache(folder, limit, tell=tell, remote=remote)
        yield Caching(root=Path.cwd(), digests=digests, steps=steps)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Have the project's folder on the way to modules: its factories lie beside the file."""
    place = str(folder.resolve())
    added = place not in sys.path
    if added:
        sys.path.insert(0, place)
    try:
        yield
    finally:
        if added:
            sys.path.remove(place)


def _width(models: Sequence[ModelOrder]) -> int:
    """Columns of the models' names and what parts them from the rest; none for one model."""
    return max(len(model.name) for model in models) + 2 if len(models) > 1 else 0


def _tell_of(screen: Screen, width: int) -> Callable[[str], Tell]:
    """The screen for each model, its name before what is told where there is room for it."""
    lock = Lock()

    def of(name: str) -> Tell:
        before = f"{name:<{width}}" if width else ""

        def tell(event: Event) -> None:
            with lock:
                screen(_named(event, before))

        return tell

    return of


def _named(event: Event, before: str) -> Event:
    match event:
        case Noted():
            return replace(event, text=f"{before}{event.text}")
        case Entered():
            return event
        case _:
            return replace(event, step=f"{before}{event.step}")


def _told(ended: Sequence[Ended], planned: Planned, asked: Asked, *, since: float) -> int:
    """Write the record and the documents, show them; the exit code."""
    from ..pipeline.reporting import write_reports
    from ..projects.run_record import record_of_run, write_record
    from ..reports.formats import formats_of

    run = planned.settings.run
    for one in ended:
        if one.manifest is not None and run.report:
            write_reports(one.manifest, Path(one.folder), formats_of(run.report))
    record = record_of_run(
        ended, seconds=round(time.perf_counter() - since, 3), prepare_only=asked.prepare_only
    )
    write_record(record, run.out)
    if asked.json:
        show_json(as_json(record))
    else:
        show_run(ended, record, run.out)
    return record.exit_code
