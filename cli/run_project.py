"""`modelc run`: plans a project, executes its models, and shows the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ..checkpoints.user_code import use_code_folder
from ..core.errors import ErrorCode, ModelcError, UsageError
from ..core.events import Entered, Event, Noted, Tell
from ..core.process import relax_gc
from ..pipeline.manifest_file import encode_json
from ..projects.artifact_selection import select_models
from ..projects.model_orders import PlannedProject, plan_project
from ..projects.project_records import ModelOrder, ModelOutcome
from ..projects.setting_keys import RunSettings
from ..projects.setting_layers import Overrides, read_run_settings
from ..projects.shards import Shard, ShardRun, digest_project, select_shard
from .ci_run import CiRun
from .console import Screen, show_json
from .fleet_options import FleetOptions, FleetRun, make_executor, refuse_parts
from .render_run import show_plans, show_run
from .render_setup import print_warnings
from .run_options import cache_folder, hold_signatures, load_private_key, preloads_libraries
from .streams import set_output_folder

if TYPE_CHECKING:
    from ..pipeline.cache.remote_files import RemoteFiles
    from ..pipeline.cache.reuse import ReuseSources
    from ..pipeline.provenance.signing import PrivateKey
    from ..projects.ready_models import TellOf
    from ..projects.run_record import RunRecord


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """The arguments of `modelc run` that are not settings."""

    file: Path
    models: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    use_cache: bool = True
    dry_run: bool = False
    prepare_only: bool = False
    sign_key: Path | None = None
    json: bool = False
    quiet: bool = False
    ci: CiRun | None = None
    base: Path | None = None
    latency: bool = False
    shard: Shard | None = None
    run_id: str = ""
    fleet: FleetOptions | None = None


def run_project(asked: RunArguments, given: Overrides) -> int:
    """Run the project and return the exit code.

    Raises:
        ModelcError: the project is invalid; nothing was started.
    """
    from ..projects.merge_runs import publish_part
    from ..projects.project_results import RunScope, find_regression, read_base
    from ..projects.run_record import make_record, with_regression

    began = time.perf_counter()
    cache = cache_folder() if asked.use_cache else None
    with _report_start_errors(asked, given), relax_gc():
        meeting = _open_meeting(asked, given)
        planned = plan_project(asked.file, given=given, names=asked.models, cache=cache)
        selected = select_models(planned.models, asked.only)
        part = _describe_part(asked, given, selected, planned.settings.run)
        models = selected if asked.shard is None else select_shard(selected, asked.shard)
        base = None if asked.base is None else read_base(asked.base)
    print_warnings(planned.settings.warnings)
    if asked.dry_run:
        show_plans(models, asked.file, planned.settings.run, json=asked.json)
        return 0
    with _report_start_errors(asked, given):
        key = load_private_key(asked.sign_key)
    ended = _execute_models(models, planned, asked, given, key)
    record = make_record(
        ended, seconds=round(time.perf_counter() - began, 3), prepare_only=asked.prepare_only
    )
    record = replace(record, shard=part)
    if base is not None:
        scope = RunScope.of(planned, models)
        found = find_regression(
            base, ended, scope, prepare_only=asked.prepare_only, latency=asked.latency
        )
        record = with_regression(record, found)
    code = _conclude(ended, record, planned, asked, key)
    if meeting is not None:
        publish_part(record, planned.settings.run.out, meeting)
    return code


def _open_meeting(asked: RunArguments, given: Overrides) -> RemoteFiles | None:
    """Remove earlier records of this part, and open where parts of a named run meet.

    This is done before the project is planned: a part that fails or is killed there has no record.

    Raises:
        ModelcError: it cannot be opened or written.
    """
    from ..pipeline.cache.remote_files import open_remote_files
    from ..projects.merge_runs import withdraw_part
    from ..projects.run_record import forget_record

    if asked.shard is None or asked.dry_run:
        return None
    run = read_run_settings(asked.file, given)
    forget_record(run.out, asked.shard.file)
    if not asked.run_id or run.remote_cache is None:
        return None
    files = open_remote_files(run.remote_cache)
    withdraw_part(asked.run_id, asked.shard, files)
    return files


def _describe_part(
    asked: RunArguments, given: Overrides, models: Sequence[ModelOrder], run: RunSettings
) -> ShardRun | None:
    """Return of which run this is a part; None for a whole run.

    Raises:
        UsageError: a name of the run is given that has no effect.
    """
    if asked.run_id and (asked.shard is None or run.remote_cache is None):
        needed = "--remote-cache" if run.remote_cache is None else "--shard"
        raise UsageError(
            f"--run-id has no effect without {needed}",
            hint=f"add {needed}, or remove it",
            option="run-id",
            code=ErrorCode.NO_EFFECT,
        )
    if asked.shard is None:
        return None
    return ShardRun(
        index=asked.shard.index,
        count=asked.shard.count,
        project=digest_project(asked.file, given, (asked.models, asked.only)),
        models=tuple(model.name for model in models),
        run=asked.run_id,
    )


@contextmanager
def _report_start_errors(asked: RunArguments, given: Overrides) -> Iterator[None]:
    """Report an error before the first step, and remove the success of an earlier run."""
    try:
        yield
    except ModelcError as error:
        out = None if asked.dry_run else read_run_settings(asked.file, given).out
        if out is not None:
            _remove_records(out, asked)
        if asked.ci is not None:
            asked.ci.report_start_error(error, asked.file, out)
        raise


def _remove_records(out: Path, asked: RunArguments) -> None:
    """Remove the run record and the index of an earlier run; failure is only reported."""
    from ..projects.index_page import clear_index
    from ..projects.run_record import RUN_FILE, forget_record

    names = [RUN_FILE, *([asked.shard.file] if asked.shard is not None else [])]
    try:
        for name in names:
            forget_record(out, name)
        clear_index(out, wanted=False)
    except UsageError as fault:
        if asked.ci is None:
            print_warnings([fault.text])
        else:
            asked.ci.report_warning(fault)


def _execute_models(
    models: Sequence[ModelOrder],
    planned: PlannedProject,
    asked: RunArguments,
    given: Overrides,
    key: PrivateKey | None,
) -> tuple[ModelOutcome, ...]:
    from ..pipeline.report_files import remove_stale_reports
    from ..projects.index_page import clear_index
    from ..projects.run_models import ProjectLimits, run_models, run_models_on
    from ..projects.run_record import clear_record
    from ..reports.report_formats import find_format, parse_formats

    run = planned.settings.run
    set_output_folder(run.out)
    limits = ProjectLimits(
        jobs=run.jobs,
        memory=run.memory,
        timeout=run.timeout,
        keep_going=run.keep_going,
        preloads=preloads_libraries(),
    )
    reports = parse_formats(run.report)
    with ExitStack() as held, use_code_folder(planned.settings.project.folder):
        with _report_start_errors(asked, given):
            for model in models:
                held.enter_context(remove_stale_reports(model.order.out, reports))
            screen, of = held.enter_context(_listen(models, run, asked))
            for model in models:
                parts = None if model.parts is None else model.parts.methods
                hold_signatures(held, model.order.out, key, screen, parts=parts)
            caching = held.enter_context(_open_caching(run, asked, screen))
            executor = None
            if asked.fleet is not None:
                refuse_parts(models)
                fleet = FleetRun(planned=planned, given=given, only=asked.only)
                executor = make_executor(asked.fleet, fleet, of, caching, limits)
            clear_index(run.out, wanted=find_format("html") in reports)
            clear_record(run.out, asked.shard)
        if executor is not None:
            return run_models_on(executor, models, screen)
        return run_models(models, of, caching=caching, limits=limits, on_event=screen)


@contextmanager
def _open_caching(
    run: RunSettings, asked: RunArguments, tell: Tell
) -> Iterator[ReuseSources | None]:
    """Open the sources of earlier results; None if reuse is disabled."""
    from ..pipeline.cache.file_digests import FileDigests
    from ..pipeline.cache.remote_store import open_remote
    from ..pipeline.cache.result_store import DEFAULT_CACHE_LIMIT
    from ..pipeline.cache.reuse import ReuseSources
    from ..pipeline.cache.step_cache import StepCache

    if not asked.use_cache:
        yield None
        return
    folder = run.cache_dir or cache_folder()
    remote = None if run.remote_cache is None else open_remote(run.remote_cache, tell)
    limit = DEFAULT_CACHE_LIMIT if run.cache_limit is None else run.cache_limit
    with FileDigests(folder) as digests:
        steps = StepCache(folder, limit, tell=tell, remote=remote)
        yield ReuseSources(root=Path.cwd(), digests=digests, steps=steps)


@contextmanager
def _listen(
    models: Sequence[ModelOrder], run: RunSettings, asked: RunArguments
) -> Iterator[tuple[Tell, TellOf]]:
    """Provide the listeners for the run and for each of its models."""
    if asked.ci is not None:
        with asked.ci.progress(run.out, jobs=min(run.jobs, len(models))) as lines:
            yield lines.note, lines.of
        return
    width = name_column_width(models)
    with Screen(quiet=asked.quiet, more=width) as screen:
        yield screen, make_model_listener(screen, width)


def _conclude(
    ended: Sequence[ModelOutcome],
    record: RunRecord,
    planned: PlannedProject,
    asked: RunArguments,
    key: PrivateKey | None,
) -> int:
    """Write and show the run record and the documents; return the exit code."""
    from ..pipeline.report_files import write_reports
    from ..projects.index_page import write_index
    from ..projects.project_results import read_results
    from ..projects.run_record import write_record
    from ..reports.report_formats import find_format, parse_formats

    run = planned.settings.run
    reports = parse_formats(run.report)
    for one in ended:
        if one.manifest is not None and reports:
            write_reports(one.manifest, Path(one.folder), reports)
    write_record(record, run.out, key)
    if find_format("html") in reports and record.shard is None:
        write_index(read_results(run.out))
    if asked.ci is not None:
        asked.ci.report_result(ended, record, planned.settings.project, run.out)
    elif not asked.json:
        show_run(ended, record, run.out)
    if asked.json:
        show_json(encode_json(record))
    return record.exit_code


def name_column_width(models: Sequence[ModelOrder]) -> int:
    """Return the columns for model names and their separator; 0 for a single model."""
    return max(len(model.name) for model in models) + 2 if len(models) > 1 else 0


def make_model_listener(screen: Screen, width: int) -> Callable[[str], Tell]:
    """Return a listener per model that prefixes its name to the steps if there is room."""
    lock = Lock()

    def of(name: str) -> Tell:
        before = f"{name:<{width}}" if width else ""

        def tell(event: Event) -> None:
            with lock:
                screen(_prefix_event(event, before))

        return tell

    return of


def _prefix_event(event: Event, before: str) -> Event:
    match event:
        case Noted():
            return replace(event, text=f"{before}{event.text}")
        case Entered():
            return event
        case _:
            return replace(event, step=f"{before}{event.step}")
