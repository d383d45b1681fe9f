"""The options of precision and calibration that several commands share, each said once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..calibration.options import CalibrationOptions
    from ..core.precision import Precision
    from ..pipeline.order import Lowering

_PRECISION, _CALIB = "Precision", "Calibration (INT8)"

Fp16 = Annotated[bool, typer.Option("--fp16", help="Half precision.", rich_help_panel=_PRECISION)]
Bf16 = Annotated[bool, typer.Option("--bf16", help="bfloat16.", rich_help_panel=_PRECISION)]
Int8 = Annotated[
    bool,
    typer.Option("--int8", help="8-bit integers; needs --calib.", rich_help_panel=_PRECISION),
]
KeepFp = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-fp",
        metavar="PATTERN",
        help="Keep nodes in floating point: a node, a module path as encoder.layer.3.*, "
        "or an operator. Repeatable.",
        rich_help_panel=_PRECISION,
    ),
]
HalfIo = Annotated[
    bool,
    typer.Option(
        "--half-io",
        help="With --fp16 or --bf16, inputs and outputs too.",
        rich_help_panel=_PRECISION,
    ),
]
Calib = Annotated[
    str | None,
    typer.Option(
        "--calib",
        metavar="SOURCE",
        help="Real samples: a folder of images or arrays, .tar shards, PKG.MOD:LOADER; "
        "or random, which is marked.",
        rich_help_panel=_CALIB,
    ),
]
CalibSamples = Annotated[
    int | None,
    typer.Option(
        "--calib-samples",
        metavar="N",
        help="The most samples to calibrate with; default 256.",
        rich_help_panel=_CALIB,
    ),
]
CalibSelect = Annotated[
    str | None,
    typer.Option(
        "--calib-select",
        metavar="HOW",
        help="Which: random (default for what is on disk) or first (default for loaders).",
        rich_help_panel=_CALIB,
    ),
]
CalibSeed = Annotated[
    int | None,
    typer.Option(
        "--calib-seed", metavar="N", help="Seed of a random choice.", rich_help_panel=_CALIB
    ),
]
CalibMethod = Annotated[
    str | None,
    typer.Option(
        "--calib-method",
        metavar="METHOD",
        help="minmax, entropy, percentile (onnxruntime); max, entropy (modelopt); mixed, "
        "performance (nncf) ...; default: the quantizer's own. Those without it are left out.",
        rich_help_panel=_CALIB,
    ),
]
PreprocessText = Annotated[
    str | None,
    typer.Option(
        "--preprocess",
        metavar="SPEC",
        help="How images become inputs: imagenet, or resize=256,crop=224,scale=1/255,mean=...",
        rich_help_panel=_CALIB,
    ),
]
Quantizer = Annotated[
    str | None,
    typer.Option(
        "--quantizer",
        metavar="NAME",
        help="One of onnxruntime, nncf, modelopt; default: all that suit, the best is kept.",
        rich_help_panel=_CALIB,
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="MINUTES",
        help="With --int8 and --min-sqnr or --max-drop: the most time to find the layers that go "
        "back to floating point; default 30.",
        rich_help_panel=_CALIB,
    ),
]
NoCache = Annotated[
    bool,
    typer.Option("--no-cache", help="Calibrate anew, and keep no result.", rich_help_panel=_CALIB),
]


def precision_of(*, fp16: bool = False, bf16: bool = False, int8: bool = False) -> Precision:
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


def lowering_of(
    calib: str | None,
    *,
    calib_samples: int | None = None,
    calib_select: str | None = None,
    calib_seed: int | None = None,
    calib_method: str | None = None,
    preprocess: str | None = None,
    quantizer: str | None = None,
    keep_fp: Sequence[str] | None = None,
    half_io: bool = False,
    budget: float | None = None,
) -> Lowering:
    """How precision is lowered, from options."""
    from ..core.errors import UsageError
    from ..pipeline.order import Lowering

    if quantizer == "auto":
        quantizer = None
    about = {
        "--calib-samples": calib_samples, "--calib-select": calib_select,
        "--calib-seed": calib_seed, "--calib-method": calib_method, "--preprocess": preprocess,
    }  # fmt: skip
    given = [name for name, value in about.items() if value is not None]
    if calib is None and given:
        raise UsageError(f"{given[0]} has no effect without --calib", hint="add --calib DIR")
    return Lowering(
        calibration=None
        if calib is None
        else calibration_of(calib, calib_samples, calib_select, calib_seed, preprocess),
        quantizer=quantizer,
        method=calib_method,
        keep=tuple(keep_fp or ()),
        half_io=half_io,
        budget=budget,
    )


def calibration_of(
    source: str,
    samples: int | None,
    select: str | None,
    seed: int | None,
    preprocess: str | None,
) -> CalibrationOptions:
    """What calibration data to use, from options; None is the default."""
    from ..calibration.options import SAMPLES, CalibrationOptions
    from ..calibration.preprocess import Preprocess

    return CalibrationOptions(
        source=source,
        samples=SAMPLES if samples is None else samples,
        selection=select or "",
        seed=0 if seed is None else seed,
        preprocess=None if preprocess is None else Preprocess.parse(preprocess),
    )
