"""Commands before an export: `doctor`, `targets`, `init`, `config` and `calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import common_options as o
from . import conversion_options as c
from .run_options import ProjectFile, Set, collect_overrides


def doctor(
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Look at driver, GPUs, libraries, versions and clashes, and say what can be built here.

    What is missing is no fault; only what is installed and cannot work ends with exit code 4.
    """
    from ..pipeline.diagnose import collect_surroundings, examine
    from ..pipeline.manifest_file import encode_json
    from .console import show_json
    from .render_setup import show_diagnosis

    folders = {"work": Path.cwd(), "cache": o.cache_folder()}
    diagnosis = examine(
        collect_surroundings({name: f for name, f in folders.items() if f is not None})
    )
    if json:
        show_json(encode_json(diagnosis))
    else:
        show_diagnosis(diagnosis, quiet=quiet)
    raise typer.Exit(diagnosis.exit_code)


def targets(
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """List every format: ready or not, why not, and the line that makes it so."""
    from ..converters.registry import plugin_faults
    from ..pipeline.api import targets as rows_of
    from ..pipeline.manifest_file import encode_json
    from .console import show_json
    from .render import show_targets
    from .render_setup import print_warnings

    rows = rows_of()
    if not quiet:
        print_warnings(plugin_faults())
    if json:
        show_json(encode_json({"targets": {target.NAME: readiness for target, readiness in rows}}))
        return
    show_targets(rows)


def init(
    checkpoints: Annotated[
        list[Path], typer.Argument(help="Checkpoints; each becomes a model of the project.")
    ],
    model: o.Model = None,
    model_arg: o.ModelArg = None,
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="Where it is written.",
            rich_help_panel=o.Panel.OUTPUT,
        ),
    ] = Path("modelc.toml"),
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace a file that is there.", rich_help_panel=o.Panel.OUTPUT
        ),
    ] = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Write a commented modelc.toml from what checkpoints say, and name the lines to edit.

    Weights are looked at and nothing of them is run; code is imported only where --model names it.
    """
    from ..projects.project_template import create_project
    from .console import show_json
    from .render_setup import project_document, show_new_project

    begun = create_project(checkpoints, out, model=model, model_args=model_arg or (), force=force)
    if json:
        show_json(project_document(begun))
    elif not quiet:
        show_new_project(begun)


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
            help="Plan every model and stop: exit 2 where anything is wrong.",
            rich_help_panel=o.Panel.PROJECT,
        ),
    ] = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            help="Print the JSON Schema of modelc.toml and stop.",
            rich_help_panel=o.Panel.OUTPUT,
        ),
    ] = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Show every setting of a project with where it comes from.

    A flag goes before a MODELC_ variable, that before the model's table, that before the table
    of defaults, that before what is built in.
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
    if check:
        show_check(file, collect_overrides(sets), model, json=json, quiet=quiet)
        return
    settings = resolve_settings(read_project(file), collect_overrides(sets))
    names = [one.name for one in settings.models]
    if model is not None and model not in names:
        raise unknown_name_error(f"model in {file}:", model, names or ["(none)"])
    if not quiet:
        print_warnings(settings.warnings)
    if json:
        show_json(settings_document(settings, model))
    else:
        show_settings(settings, model)


def calibrate(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of images or arrays, .tar shards, PKG.MOD:LOADER, or random."
        ),
    ],
    inputs: o.Input = None,
    samples: o.Samples = None,
    preprocess: c.PreprocessText = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    calib_samples: Annotated[
        int | None,
        typer.Option(
            "--calib-samples",
            metavar="N",
            help="Read only what a build with as many would read; default: all that are on disk.",
            rich_help_panel=o.Panel.CALIBRATION,
        ),
    ] = None,
    calib_select: c.CalibSelect = None,
    calib_seed: c.CalibSeed = None,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Show counts, ranges, histograms and problems of calibration samples."""
    from ..pipeline.make_order import make_calibration
    from ..pipeline.manifest_file import encode_json
    from ..pipeline.quantization import preview_calibration
    from .console import Screen, show_json
    from .render_calibration import show_calibration

    with Screen(quiet=quiet) as screen:
        report = preview_calibration(
            make_calibration(source, calib_samples, calib_select, calib_seed, preprocess),
            tuple(inputs or ()),
            samples,
            screen,
            thorough=calib_samples is None,
        )
    if json:
        show_json(encode_json(report))
    else:
        show_calibration(report)
    raise typer.Exit(report.exit_code)
