"""`modelc calibrate`: a look at calibration samples before they are used."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options as o
from . import options_precision as p


def calibrate(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of images or arrays, .tar shards, PKG.MOD:LOADER, or random."
        ),
    ],
    inputs: o.Input = None,
    samples: o.Samples = None,
    preprocess: p.PreprocessText = None,
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
    calib_select: p.CalibSelect = None,
    calib_seed: p.CalibSeed = None,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Show counts, ranges, histograms and problems of calibration samples."""
    from ..pipeline.make_order import make_calibration
    from ..pipeline.manifest_file import encode_json
    from ..pipeline.quantization import preview_calibration
    from .render_calibration import show_calibration
    from .screen import Screen
    from .tables import show_json

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
