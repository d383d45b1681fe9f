"""Options of conversion: precision and calibration, capture, and TensorRT engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .common_options import CaptureChoice, Panel

if TYPE_CHECKING:
    from ..core.kinds import Precision

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
    from ..core.kinds import Precision

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


def _trt_option(name: str, told: str, metavar: str | None = None) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(
        name, help=told, metavar=metavar, rich_help_panel=Panel.TENSORRT
    )
    return found


Workspace = Annotated[
    str | None,
    _trt_option("--workspace", "Most scratch memory that a layer may use; default: all.", "SIZE"),
]
OptimizationLevel = Annotated[
    int | None,
    _trt_option("--optimization-level", "Builder's effort, 0 to 5; default 3.", "N"),
]
ProfileText = Annotated[
    list[str] | None,
    _trt_option(
        "--profile",
        "One more optimization profile, as x=1x3x224x224:4x3x224x224:8x3x224x224 (min:opt:max), "
        "inputs parted by commas. The first is the signature's. Repeatable.",
        "SHAPES",
    ),
]
TimingCache = Annotated[
    str | None,
    _trt_option(
        "--timing-cache", "File of kernel timings, or off; default: one per GPU and version.",
        "FILE",
    ),
]  # fmt: skip
VersionCompatible = Annotated[
    bool,
    _trt_option("--version-compatible", "Run on later TensorRT too; needs --trust-engine."),
]
HardwareCompatible = Annotated[
    str | None,
    _trt_option(
        "--hardware-compatible", "none (default), ampere-plus or same-compute-capability GPUs.",
        "LEVEL",
    ),
]  # fmt: skip
Refittable = Annotated[bool, _trt_option("--refittable", "Weights can be replaced later.")]
StripWeights = Annotated[
    bool,
    _trt_option("--strip-weights", "Leave the weights out; they come from the ONNX on loading."),
]
WeightStreaming = Annotated[
    bool, _trt_option("--weight-streaming", "Weights may stay in host memory.")
]
NoTf32 = Annotated[bool, _trt_option("--no-tf32", "Compute FP32 in full FP32.")]
Plugins = Annotated[
    list[str] | None,
    _trt_option("--plugins", "A plugin library to load: it is code. Repeatable.", "FILE"),
]
TrustEngine = Annotated[
    bool, _trt_option("--trust-engine", "Allow code inside the engine to run when it is loaded.")
]
Builder = Annotated[
    str | None,
    _trt_option("--builder", "python, trtexec or auto (default): the first that is here.", "WHICH"),
]
