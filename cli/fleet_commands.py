"""Commands for runs on several hosts: `merge` and `finish`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ErrorCode, UsageError
from ..core.events import Noted
from ..pipeline.call_options import CallOptions
from ..pipeline.option_spec import Given, Panel, read_record
from .command_options import with_options
from .run_options import (
    ProjectFile,
    RemoteCache,
    RunId,
    cache_folder,
    collect_overrides,
    file_move,
    hold_signatures,
    load_private_key,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..pipeline.provenance.signing import PrivateKey
    from ..pipeline.recorded_run import FinishRequest
    from ..projects.merge_runs import RunPart
    from ..projects.project_records import ModelOutcome
    from ..projects.run_record import RunRecord


@with_options("merge")
def merge(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="The `out` folders of the parts; default: that of --out."),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            metavar="DIR",
            help="Folder of all models.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = Path("out"),
    run_id: RunId = "",
    remote_cache: RemoteCache = None,
    ci: Annotated[
        bool,
        typer.Option(
            "--ci",
            help="For CI: plain lines, groups, annotations, summary.md, junit.xml, comment.md.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = False,
    *,
    given: Given,
) -> None:
    """Merge the parts of `modelc run --shard` into one record, with an index page.

    Exits as one run of all models would. A part that is missing, twice there or of another run is
    an error.
    """
    from ..projects.merge_runs import check_parts, merge_records, place_models
    from ..projects.run_record import clear_record
    from .ci_run import make_ci_run

    call = read_record(CallOptions, given)
    reporter = make_ci_run(quiet=call.quiet, json=call.json) if ci else None
    key = load_private_key(call.sign_key)
    parts = _find_parts(folders or [], out, run_id, remote_cache)
    check_parts(parts, run_id, remote_cache)
    place_models(parts, out)
    record = merge_records(parts, out)
    shared = parts[0].part.shard  # records of the parts may be in this folder, and stay there
    clear_record(out, replace(shared, index=0))
    ended = _outcomes_of(record, out)
    _write(record, out, key)
    if reporter is not None:
        from ..projects.project_records import Project

        reporter.report_result(ended, record, Project(file=Path("modelc.toml")), out)
    _show(ended, record, out, call)


def _find_parts(
    folders: Sequence[Path], out: Path, run_id: str, remote: str | None
) -> tuple[RunPart, ...]:
    from ..pipeline.cache.remote_files import open_remote_files
    from ..projects.merge_runs import find_parts, find_published_parts
    from ..projects.shards import check_run_id

    check_run_id(run_id)
    if remote is None:
        return find_parts(folders or [out])
    if folders or not run_id:
        raise UsageError(
            f"{folders[0]} has no effect with --remote-cache"
            if folders
            else "--remote-cache needs the name of the run",
            hint="remove one of them" if folders else "add --run-id, as for modelc run --shard",
            option="remote-cache" if folders else "run-id",
            code=ErrorCode.NO_EFFECT if folders else ErrorCode.NOTHING_TO_DO,
        )
    return find_published_parts(run_id, open_remote_files(remote))


def _outcomes_of(record: RunRecord, out: Path) -> tuple[ModelOutcome, ...]:
    """Return what the record says of each model, with the manifests in the folder."""
    from ..core.errors import ModelcError
    from ..pipeline.parts.joined_manifest import read_results_of
    from ..projects.project_records import ModelOutcome

    return tuple(
        ModelOutcome(
            name=one.name,
            folder=one.folder,
            manifest=read_results_of(out / one.name),
            error=ModelcError(one.error, hint=one.hint) if one.error else None,
            breaches=one.breaches,
            seconds=one.seconds,
        )
        for one in record.models
    )


def _write(record: RunRecord, out: Path, key: PrivateKey | None) -> None:
    """Write the record, and the index if the models have pages."""
    from ..projects.index_page import clear_index, write_index
    from ..projects.project_results import read_results
    from ..projects.run_record import write_record
    from ..reports.report_formats import find_format

    write_record(record, out, key)
    page = find_format("html").file
    wanted = any((out / one.name / page).is_file() for one in record.models)
    clear_index(out, wanted=wanted)
    if wanted:
        write_index(read_results(out))


def _show(ended: Sequence[ModelOutcome], record: RunRecord, out: Path, call: CallOptions) -> None:
    """Show the record, and exit with its code."""
    from ..pipeline.manifest_file import encode_json
    from .console import show_json
    from .render_run import show_run

    if call.json:
        show_json(encode_json(record))
    else:
        show_run(ended, record, out)
    raise typer.Exit(record.exit_code)


@with_options("finish")
def finish(
    folder: Annotated[
        Path | None, typer.Argument(help="The folder of one model with pending steps.")
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Finish the pending steps of all models of the project.",
            rich_help_panel=Panel.FLEET,
        ),
    ] = False,
    file: ProjectFile = Path("modelc.toml"),
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="DIR",
            help="Folder of all models; default: `out` of modelc.toml, else out.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = None,
    *,
    given: Given,
) -> None:
    """Build and judge the pending steps that another host prepared, as on a GPU host.

    Checkpoints need not be here if the folders have references.
    """
    call = read_record(CallOptions, given)
    if (folder is None) is not every:
        raise UsageError(
            "finish needs the folder of one model, or --all" if folder is None
            else f"--all has no effect with the folder {folder}",
            hint="modelc finish --all", option="all", code=ErrorCode.NOTHING_TO_DO,
        )  # fmt: skip
    if folder is not None:
        from ..pipeline.parts.parts_file import has_parts
        from .execute import execute_request
        from .parts import finish_folder

        if has_parts(folder):
            raise typer.Exit(finish_folder(folder, lambda one: _make_request(one, given), given))
        execute_request(_make_request(folder, given), call)
    _finish_all(file, out, given, call)


def _make_request(folder: Path, given: Given) -> FinishRequest:
    from ..pipeline.make_order import make_judging, make_settings
    from ..pipeline.plan import plan_pending
    from ..pipeline.recorded_run import FinishRequest, load_manifest
    from .judging_options import read_limits

    call = read_record(CallOptions, given)
    wanted = tuple(step.wanted for step in plan_pending(load_manifest(folder).pending))
    trusts_code = bool(given.get("trust") or given.get("trust-engine"))
    return FinishRequest(
        out=folder,
        moved=file_move(given),
        judging=make_judging(given, read_limits(())),
        settings=make_settings({"trust-engine": trusts_code}, wanted),
        cache=None if call.no_cache else cache_folder(),
    )


def _finish_all(file: Path, out: Path | None, given: Given, call: CallOptions) -> None:
    from ..core.children.limits import ProcessLimits
    from ..projects.finish_project import finish_project, read_project_gates, update_record
    from ..projects.project_results import is_project_folder, read_results
    from ..projects.setting_layers import read_run_settings
    from ..projects.setting_values import parse_seconds
    from .console import Screen
    from .render_setup import print_warnings
    from .streams import set_output_folder

    overrides = collect_overrides(None, {"out": None if out is None else str(out)})
    gates = {}
    if file.is_file():
        gates = read_project_gates(file, overrides)
    else:
        print_warnings([f"{file} does not exist: gates are not checked"])
    place = read_run_settings(file, overrides).out
    if not is_project_folder(place):
        raise UsageError(
            f"{place} has no results of modelc run",
            hint="give the folder of all models with -o",
            option="out",
            code=ErrorCode.NO_MANIFEST,
        )
    results, key = read_results(place), load_private_key(call.sign_key)
    limits = ProcessLimits(timeout=None if call.timeout is None else parse_seconds(call.timeout))
    set_output_folder(place)
    with Screen(quiet=call.quiet) as screen, ExitStack() as held:
        for name in results.manifests:
            hold_signatures(held, place / name, key, screen)
        ended = finish_project(
            results,
            lambda one: _make_request(one, given),
            lambda _: screen,
            gates=gates,
            limits=limits,
        )
        if not ended:
            screen(Noted(text=f"nothing is pending in {place}"))
    record = update_record(results.record, ended, prepare_only=call.prepare_only)
    _write(record, place, key)
    outcomes = [ended.get(one.name, one) for one in _outcomes_of(record, place)]
    _show(outcomes, record, place, call)
