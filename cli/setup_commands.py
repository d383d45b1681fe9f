"""Commands before an export: `doctor`, `targets`, `init`, `config` and `calibrate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import ErrorCode, UsageError
from ..core.hub_ids import find_hub_id
from ..pipeline.call_options import CallOptions
from ..pipeline.option_spec import Given, Panel, read_record
from ..pipeline.option_table import CalibrationChoice, SourceOptions
from .command_options import with_options
from .run_options import ProjectFile, Set, cache_folder, collect_overrides


@with_options("doctor")
def doctor(
    folder: Annotated[
        Path | None, typer.Argument(help="An output folder for --gpu-report.")
    ] = None,
    gpu_report: Annotated[
        Path | None,
        typer.Option(
            "--gpu-report",
            metavar="FILE",
            help="Write what to send back when an engine fails here: driver, GPUs, versions, and "
            "of FOLDER its steps, sidecars and logs. The file says what it contains.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = None,
    *,
    given: Given,
) -> None:
    """Check the driver, GPUs and libraries of this host, and list the formats it can build.

    A missing library is not an error; one that is installed and broken is (exit 4).
    """
    from ..pipeline.diagnose import collect_surroundings, examine
    from ..pipeline.manifest_file import encode_json
    from .console import show_json
    from .render_setup import show_diagnosis

    call = read_record(CallOptions, given)
    if folder is not None and gpu_report is None:
        raise UsageError(
            f"{folder} is of use with --gpu-report alone",
            hint=f"modelc doctor {folder} --gpu-report report.json",
            option="gpu-report",
            code=ErrorCode.NO_EFFECT,
        )
    found = collect_surroundings({"work": Path.cwd(), "cache": cache_folder()})
    diagnosis = examine(found)
    if gpu_report is not None:
        from .render_setup import write_gpu_report

        write_gpu_report(found.host, diagnosis, folder, gpu_report, call)
        return
    if call.json:
        show_json(encode_json(diagnosis))
    else:
        show_diagnosis(diagnosis, quiet=call.quiet)
    raise typer.Exit(diagnosis.exit_code)


@with_options("targets")
def targets(*, given: Given) -> None:
    """List the formats: whether this host can build them, or what to install."""
    from ..converters.registry import plugin_faults
    from ..pipeline.api import targets as rows_of
    from ..pipeline.manifest_file import encode_json
    from .console import show_json
    from .render import show_targets
    from .render_setup import print_warnings

    call, rows = read_record(CallOptions, given), rows_of()
    if not call.quiet:
        print_warnings(plugin_faults())
    if call.json:
        show_json(encode_json({"targets": {target.NAME: readiness for target, readiness in rows}}))
        return
    show_targets(rows)


@with_options("init")
def init(
    checkpoints: Annotated[
        list[Path], typer.Argument(help="Checkpoints; each becomes a model of the project.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="File to write.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = Path("modelc.toml"),
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace an existing file.", rich_help_panel=Panel.OUTPUT),
    ] = False,
    *,
    given: Given,
) -> None:
    """Write a commented modelc.toml for checkpoints, and list the lines to edit.

    No code of a checkpoint is run; the factory is imported only with --model.
    """
    from ..pipeline.hub_source import locate_path
    from ..projects.project_template import create_project
    from .console import Screen, show_json
    from .render_setup import project_document, show_new_project

    call, source = read_record(CallOptions, given), read_record(SourceOptions, given)
    arguments = [f"{name}={value}" for name, value in source.model_args.items()]
    for path in filter(find_hub_id, checkpoints):
        with Screen(quiet=call.quiet) as screen:
            locate_path(path, screen)
    begun = create_project(checkpoints, out, model=source.model, model_args=arguments, force=force)
    if call.json:
        show_json(project_document(begun))
    elif not call.quiet:
        show_new_project(begun)


@with_options("config")
def config(
    model: Annotated[
        str | None, typer.Argument(help="One model of the project; default: all.")
    ] = None,
    file: ProjectFile = Path("modelc.toml"),
    sets: Set = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Plan every model and stop; exit 2 if there are errors.",
            rich_help_panel=Panel.PROJECT,
        ),
    ] = False,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            help="Print the JSON Schema of modelc.toml and stop.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = False,
    *,
    given: Given,
) -> None:
    """Show every setting of a project and its origin.

    A flag takes precedence over a MODELC_ variable, then the table of the model, the table
    `defaults` and the built-in value.
    """
    from ..core.errors import unknown_name_error
    from ..projects.project_reader import read_project
    from ..projects.schema import SCHEMA_FILE
    from ..projects.setting_layers import resolve_settings
    from .console import show_document, show_json
    from .render_setup import print_warnings, settings_document, show_check, show_settings

    if schema:
        show_document(SCHEMA_FILE.read_bytes())
        return
    call = read_record(CallOptions, given)
    if check:
        show_check(file, collect_overrides(sets), model, json=call.json, quiet=call.quiet)
        return
    settings = resolve_settings(read_project(file), collect_overrides(sets))
    names = [one.name for one in settings.models]
    if model is not None and model not in names:
        raise unknown_name_error(f"model in {file}:", model, names or ["(none)"])
    if not call.quiet:
        print_warnings(settings.warnings)
    if call.json:
        show_json(settings_document(settings, model))
    else:
        show_settings(settings, model)


@with_options("calibrate")
def calibrate(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of images or arrays, .tar shards, PKG.MOD:LOADER, or random."
        ),
    ],
    calib_samples: Annotated[
        int | None,
        typer.Option(
            "--calib-samples",
            metavar="N",
            help="Read only the samples that a build with this number reads; default: all on disk.",
            rich_help_panel=Panel.CALIBRATION,
        ),
    ] = None,
    *,
    given: Given,
) -> None:
    """Show the counts, ranges, histograms and problems of calibration samples."""
    from ..pipeline.make_order import make_calibration
    from ..pipeline.manifest_file import encode_json
    from ..pipeline.quantization import preview_calibration
    from .console import Screen, show_json
    from .render_calibration import show_calibration

    call, eager = read_record(CallOptions, given), read_record(SourceOptions, given)
    choice = replace(read_record(CalibrationChoice, given), calib_samples=calib_samples)
    with Screen(quiet=call.quiet) as screen:
        report = preview_calibration(
            make_calibration(source, choice),
            eager.inputs,
            eager.samples,
            screen,
            thorough=calib_samples is None,
        )
    if call.json:
        show_json(encode_json(report))
    else:
        show_calibration(report)
    raise typer.Exit(report.exit_code)
