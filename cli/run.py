"""`modelc run`: convert and judge all models of a project, reusing earlier results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..pipeline.call_options import CallOptions
from ..pipeline.option_spec import Given, Panel, read_record
from .command_options import with_options
from .run_options import CACHE_DIR, ProjectFile, RemoteCache, RunId, Set


@with_options("run")
def run(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Models; default: all.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="NAMES",
            help="Build these formats, precisions or artifacts only: onnx,int8 is ONNX in INT8.",
            rich_help_panel=Panel.PROJECT,
        ),
    ] = None,
    file: ProjectFile = Path("modelc.toml"),
    sets: Set = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="I/N",
            help="Run part I of N of the models: hosts share them, modelc merge joins the records.",
            rich_help_panel=Panel.FLEET,
        ),
    ] = None,
    run_id: RunId = "",
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="CLUSTER",
            help="Run the models as tasks of a Ray cluster: ray, or ray://HOST:10001.",
            rich_help_panel=Panel.FLEET,
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            metavar="URL",
            help="With --on: where inputs and results meet (fsspec); default: --remote-cache.",
            rich_help_panel=Panel.FLEET,
        ),
    ] = None,
    node_label: Annotated[
        list[str] | None,
        typer.Option(
            "--node-label",
            metavar="KEY=VALUE",
            help="With --on: label of the nodes that finish pending engines, as "
            "ray.io/accelerator-type=L4. Repeatable.",
            rich_help_panel=Panel.FLEET,
        ),
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option(
            "-j",
            "--jobs",
            metavar="N",
            help="Number of models to build in parallel.",
            rich_help_panel=Panel.PROJECT,
        ),
    ] = None,
    keep_going: Annotated[
        bool,
        typer.Option(
            "-k",
            "--keep-going",
            help="Continue with the other models after a failure.",
            rich_help_panel=Panel.PROJECT,
        ),
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--out",
            metavar="DIR",
            help="Folder of all models; default: `out` of modelc.toml, else out.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = None,
    ci: Annotated[
        bool,
        typer.Option(
            "--ci",
            help="For CI: plain lines, groups, annotations, summary.md, junit.xml, comment.md.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = False,
    fail_on_regression: Annotated[
        Path | None,
        typer.Option(
            "--fail-on-regression",
            metavar="BASE",
            help="Exit 1 if a measure is worse than in the earlier run of this `out` folder.",
            rich_help_panel=Panel.VALIDATION,
        ),
    ] = None,
    cache_dir: Annotated[
        str | None,
        typer.Option("--cache-dir", metavar="DIR", help=CACHE_DIR, rich_help_panel=Panel.CACHE),
    ] = None,
    remote_cache: RemoteCache = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Memory limit of all models together, as 16GB; a step beyond its share fails.",
            rich_help_panel=Panel.ISOLATION,
        ),
    ] = None,
    *,
    given: Given,
) -> None:
    """Convert all models of a modelc.toml and validate every artifact against the eager model."""
    from ..projects.shards import check_run_id, parse_shard
    from .ci_run import make_ci_run
    from .fleet_options import read_fleet
    from .run_options import collect_overrides
    from .run_project import RunArguments, run_project

    call = read_record(CallOptions, given)
    flags = {
        "out": out,
        "jobs": jobs,
        "memory": memory,
        "timeout": call.timeout,
        "keep-going": "true" if keep_going else None,
        "cache-dir": cache_dir,
        "remote-cache": remote_cache,
        "report": ",".join(call.report) if call.report else None,
    }
    asked = RunArguments(
        file=file,
        models=tuple(models or ()),
        only=tuple(filter(None, (word.strip() for word in (only or "").split(",")))),
        use_cache=not call.no_cache,
        dry_run=call.dry_run,
        prepare_only=call.prepare_only,
        sign_key=call.sign_key,
        json=call.json,
        quiet=call.quiet,
        ci=make_ci_run(quiet=call.quiet, json=call.json) if ci else None,
        base=fail_on_regression,
        latency=call.latency,
        shard=None if shard is None else parse_shard(shard),
        run_id=check_run_id(run_id),
        fleet=read_fleet(on, storage, node_label or ()),
    )
    raise typer.Exit(run_project(asked, collect_overrides(sets, flags)))
