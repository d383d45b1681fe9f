"""The options of `modelc build-trt` that only TensorRT has."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import Panel


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
