"""`modelc run`: all models of a project, each proven or refused, what is done already taken up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as o
from . import options_report as r
from .options_project import ProjectFile, Set
from .options_sign import SignKey

_RUN = "Run"
_CI = "In CI"


def run(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="Models; default: all.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="NAMES",
            help="Formats, precisions or artifacts, as onnx,int8: what has one of each kind.",
        ),
    ] = None,
    file: ProjectFile = Path("modelc.toml"),
    sets: Set = None,
    out: Annotated[
        str | None, typer.Option("-o", "--out", help="Folder of all models.", rich_help_panel=_RUN)
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option("-j", "--jobs", help="Models side by side.", rich_help_panel=_RUN),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Memory of all of them together, as 16GB; a step beyond its part fails.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="TIME",
            help="The most that one step may take, as 10min; beyond it, it fails.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    keep_going: Annotated[
        bool,
        typer.Option(
            "-k",
            "--keep-going",
            help="Begin further models when one has failed.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    cache_dir: Annotated[
        str | None,
        typer.Option("--cache-dir", help="Folder of the cache.", rich_help_panel=_RUN),
    ] = None,
    remote_cache: Annotated[
        str | None,
        typer.Option(
            "--remote-cache",
            metavar="URL",
            help="Another cache to share with, as s3://bucket/path (fsspec).",
            rich_help_panel=_RUN,
        ),
    ] = None,
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache",
            help="Neither look for earlier results nor keep any: make all anew.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    dry_run: o.DryRun = False,
    prepare_only: Annotated[
        bool,
        typer.Option(
            "--prepare-only", help="What only waits for another host is no failure (exit 0)."
        ),
    ] = False,
    report: Annotated[
        str | None,
        typer.Option(
            "--report", metavar="FORMATS", help="Documents of each model: html,md,junit,sarif,json."
        ),
    ] = None,
    ci: Annotated[
        bool,
        typer.Option(
            "--ci",
            help="In a job: plain lines, groups, annotations, summary.md, junit.xml, comment.md.",
            rich_help_panel=_CI,
        ),
    ] = False,
    fail_on_regression: Annotated[
        Path | None,
        typer.Option(
            "--fail-on-regression",
            metavar="BASE",
            help="Exit 1 if anything is worse than in this `out` folder of another run.",
            rich_help_panel=_CI,
        ),
    ] = None,
    latency: r.Latency = False,
    sign_key: SignKey = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Carry out a modelc.toml: every model, every artifact proven against eager or refused."""
    from .ci_run import ci_of
    from .options_project import given_of
    from .run_project import Asked, run_project

    flags = {
        "out": out,
        "jobs": jobs,
        "memory": memory,
        "timeout": timeout,
        "keep-going": "true" if keep_going else None,
        "cache-dir": cache_dir,
        "remote-cache": remote_cache,
        "report": report,
    }
    asked = Asked(
        file=file,
        models=tuple(models or ()),
        only=tuple(filter(None, (word.strip() for word in (only or "").split(",")))),
        use_cache=not no_cache,
        dry_run=dry_run,
        prepare_only=prepare_only,
        sign_key=sign_key,
        json=json,
        quiet=quiet,
        ci=ci_of(quiet=quiet, json=json) if ci else None,
        base=fail_on_regression,
        latency=latency,
    )
    raise typer.Exit(run_project(asked, given_of(sets, flags)))
