"""The options of precision and calibration that several commands share, each said once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .options import Panel

if TYPE_CHECKING:
    from ..core.precision import Precision

Fp16 = Annotated[
    bool,
    typer.Option(
        "--fp16",
        help="Half precision; in OpenVINO, of the weights.",
        rich_help_panel=Panel.PRECISION,
    ),
]
Bf16 = Annotated[bool, typer.Option("--bf16", help="bfloat16.", rich_help_panel=Panel.PRECISION)]
Int8 = Annotated[
    bool,
    typer.Option("--int8", help="8-bit integers; needs --calib.", rich_help_panel=Panel.PRECISION),
]
KeepFp = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-fp",
        metavar="PATTERN",
        help="Keep nodes in floating point: a node, a module path as encoder.layer.3.*, "
        "or an operator. Repeatable.",
        rich_help_panel=Panel.PRECISION,
    ),
]
HalfIo = Annotated[
    bool,
    typer.Option(
        "--half-io",
        help="With --fp16 or --bf16, inputs and outputs too.",
        rich_help_panel=Panel.PRECISION,
    ),
]
Calib = Annotated[
    str | None,
    typer.Option(
        "--calib",
        metavar="SOURCE",
        help="Real samples: a folder of images or arrays, .tar shards, PKG.MOD:LOADER; "
        "or random, which is marked.",
        rich_help_panel=Panel.CALIBRATION,
    ),
]
CalibSamples = Annotated[
    int | None,
    typer.Option(
        "--calib-samples",
        metavar="N",
        help="The most samples to calibrate with; default 256.",
        rich_help_panel=Panel.CALIBRATION,
    ),
]
CalibSelect = Annotated[
    str | None,
    typer.Option(
        "--calib-select",
        metavar="HOW",
        help="Which: random (default for what is on disk) or first (default for loaders).",
        rich_help_panel=Panel.ADVANCED,
    ),
]
CalibSeed = Annotated[
    int | None,
    typer.Option(
        "--calib-seed", metavar="N", help="Seed of a random choice.", rich_help_panel=Panel.ADVANCED
    ),
]
CalibMethod = Annotated[
    str | None,
    typer.Option(
        "--calib-method",
        metavar="METHOD",
        help="minmax, entropy, percentile (onnxruntime); max, entropy (modelopt); mixed, "
        "performance (nncf) ...; default: the quantizer's own. Those without it are left out.",
        rich_help_panel=Panel.ADVANCED,
    ),
]
PreprocessText = Annotated[
    str | None,
    typer.Option(
        "--preprocess",
        metavar="SPEC",
        help="How images become inputs: imagenet, or steps as resize=256,crop=224,scale=1/255",
        rich_help_panel=Panel.INPUT,
    ),
]
Quantizer = Annotated[
    str | None,
    typer.Option(
        "--quantizer",
        metavar="NAME",
        help="One of onnxruntime, nncf, modelopt; default: all that suit, the best is kept.",
        rich_help_panel=Panel.CALIBRATION,
    ),
]
MaxTrials = Annotated[
    int | None,
    typer.Option(
        "--max-trials",
        metavar="N",
        help="With --int8 and --min-sqnr or --max-drop: the most artifacts that are made and "
        "judged to find the layers that go back to floating point; default 32.",
        rich_help_panel=Panel.ADVANCED,
    ),
]


def choose_precision(*, fp16: bool = False, bf16: bool = False, int8: bool = False) -> Precision:
    """The one precision that was asked for; FP32 without any."""
    from ..core.errors import UsageError
    from ..core.precision import Precision

    asked = [
        precision
        for precision, given in (
            (Precision.FP16, fp16), (Precision.BF16, bf16), (Precision.INT8, int8),
        )
        if given
    ]  # fmt: skip
    if len(asked) > 1:
        flags = " and ".join(f"--{precision}" for precision in asked)
        raise UsageError(f"{flags} ask for two precisions", hint="give one, and run twice for both")
    return asked[0] if asked else Precision.FP32
