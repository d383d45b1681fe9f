"""The options of accuracy on labelled data that several commands share, each said once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..pipeline.measuring import Measuring

_PANEL = "Accuracy on labelled data"

Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR_OR_LOADER",
        help="Labelled samples: a folder a class, labels.csv, arrays with `label`, PKG.MOD:LOADER.",
        rich_help_panel=_PANEL,
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="METRIC",
        help="top1 (default), top5, mse, or PKG.MOD:FN of predictions and labels.",
        rich_help_panel=_PANEL,
    ),
]
MaxDrop = Annotated[
    str | None,
    typer.Option(
        "--max-drop",
        metavar="DROP",
        help="Refuse an artifact that loses more: 0.5% or 0.005; points of top1 and top5, "
        "relative for mse.",
        rich_help_panel=_PANEL,
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="NAME",
        help="The array that holds the labels; default: label, labels, y, target ...",
        rich_help_panel=_PANEL,
    ),
]
MetricOutput = Annotated[
    str | None,
    typer.Option(
        "--metric-output",
        metavar="NAME",
        help="The output that the metric reads; default: the first of floats.",
        rich_help_panel=_PANEL,
    ),
]
PreprocessText = Annotated[
    str | None,
    typer.Option(
        "--preprocess",
        metavar="SPEC",
        help="How labelled images become inputs; default: as on record.",
        rich_help_panel=_PANEL,
    ),
]


def measuring_of(
    data: str | None,
    metric: str | None,
    max_drop: str | None,
    *,
    label: str | None = None,
    output: str | None = None,
    preprocess: str | None = None,
    calibrates: bool = True,
) -> Measuring | None:
    """What to measure, from options; None without `--data`.

    `--preprocess` may be of calibration as well where the command `calibrates`.

    Raises:
        UsageError: an option has no effect without `--data`, or is not what it has to be.
    """
    from ..calibration.label_options import LabelledOptions
    from ..calibration.preprocess import Preprocess
    from ..core.errors import UsageError
    from ..pipeline.measuring import DEFAULT_METRIC, Measuring, parse_drop

    about = {
        "--metric": metric, "--max-drop": max_drop, "--label": label, "--metric-output": output,
        "--preprocess": None if calibrates else preprocess,
    }  # fmt: skip
    given = [name for name, value in about.items() if value is not None]
    if data is None and given:
        raise UsageError(f"{given[0]} has no effect without --data", hint="add --data DIR")
    if data is None:
        return None
    return Measuring(
        data=LabelledOptions(
            source=data,
            label=label,
            preprocess=None if preprocess is None else Preprocess.parse(preprocess),
        ),
        metric=metric or DEFAULT_METRIC,
        output=output,
        max_drop=None if max_drop is None else parse_drop(max_drop),
    )


def of_calibration(preprocess: str | None, data: str | None, calib: str | None) -> str | None:
    """`--preprocess` as calibration has it: with labelled data alone it is of these."""
    return None if data is not None and calib is None else preprocess
