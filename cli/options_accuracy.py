"""The options of accuracy on labelled data that several commands share, each said once."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import Panel

Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR_OR_LOADER",
        help="Labelled samples: a folder a class, labels.csv, arrays with `label`, PKG.MOD:LOADER.",
        rich_help_panel=Panel.ACCURACY,
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="METRIC",
        help="top1 (default), top5, mse, or PKG.MOD:FN of predictions and labels.",
        rich_help_panel=Panel.ACCURACY,
    ),
]
MaxDrop = Annotated[
    str | None,
    typer.Option(
        "--max-drop",
        metavar="DROP",
        help="Refuse an artifact that loses more: 0.5% or 0.005; points of top1 and top5, "
        "relative for mse.",
        rich_help_panel=Panel.ACCURACY,
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="NAME",
        help="The array that holds the labels; default: label, labels, y, target ...",
        rich_help_panel=Panel.ADVANCED,
    ),
]
MetricOutput = Annotated[
    str | None,
    typer.Option(
        "--metric-output",
        metavar="NAME",
        help="The output that the metric reads; default: the first of floats.",
        rich_help_panel=Panel.ADVANCED,
    ),
]
