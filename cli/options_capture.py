"""The options of capture: what is done to a copy of the model, and for which runtimes."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import CaptureChoice, Panel

CaptureWay = Annotated[
    CaptureChoice,
    typer.Option(
        "--capture",
        metavar="WAY",
        help="How the module becomes a graph: export, export-strict, script, mixed, trace, or "
        "auto, which tries those that the format takes.",
        rich_help_panel=Panel.CAPTURE,
    ),
]
Opset = Annotated[
    int | None,
    typer.Option(
        "--opset", metavar="N", help="ONNX opset; default 20.", rich_help_panel=Panel.CAPTURE
    ),
]
ExternalData = Annotated[
    bool,
    typer.Option(
        "--external-data",
        help="Keep ONNX weights in a file of their own.",
        rich_help_panel=Panel.ADVANCED,
    ),
]
Patch = Annotated[
    list[str] | None,
    typer.Option(
        "--patch",
        metavar="PKG.MOD:FN",
        help="Function that changes the copy of the module to capture; eager stays as it is, and "
        "judges. Repeatable.",
        rich_help_panel=Panel.CAPTURE,
    ),
]
CustomOp = Annotated[
    list[str] | None,
    typer.Option(
        "--custom-op",
        metavar="NS::OP=PKG.MOD:FN",
        help="Function that writes this operator in ONNX. Repeatable.",
        rich_help_panel=Panel.ADVANCED,
    ),
]
Narrow = Annotated[
    bool,
    typer.Option(
        "--narrow",
        help="Accept an artifact that holds in a part of the domain; that part is recorded.",
        rich_help_panel=Panel.CAPTURE,
    ),
]
Guard = Annotated[
    bool,
    typer.Option(
        "--guard",
        help="Put a check of the domain into the ONNX: its runtime fails on inputs outside of it.",
        rich_help_panel=Panel.CAPTURE,
    ),
]
CaptureTimeout = Annotated[
    float,
    typer.Option(
        "--capture-timeout",
        metavar="SECONDS",
        help="What torch's symbolic solver may take in one attempt, before the next capture.",
        rich_help_panel=Panel.ADVANCED,
    ),
]
For = Annotated[
    list[str] | None,
    typer.Option(
        "--for",
        metavar="RUNTIME==VERSION",
        help="What the artifact must load in, as onnxruntime==1.20. Repeatable.",
        rich_help_panel=Panel.CAPTURE,
    ),
]
