"""Options that most commands share, each declared once, with the panels of the help."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ErrorCode, UsageError

if TYPE_CHECKING:
    from ..pipeline.recorded_run import Moved


class Panel(StrEnum):
    """The groups of options in every command's help, in this order; rare ones are in the last."""

    PROJECT = "Project"
    INPUT = "Input"
    OUTPUT = "Output"
    PRECISION = "Precision"
    CALIBRATION = "Calibration"
    VALIDATION = "Validation"
    ACCURACY = "Accuracy on labelled data"
    CAPTURE = "Capture"
    TENSORRT = "TensorRT"
    CACHE = "Cache"
    ISOLATION = "Isolation"
    SIGNING = "Signing"
    ADVANCED = "Advanced"


class CaptureChoice(StrEnum):
    """`--capture`: one way, or auto."""

    AUTO = "auto"
    EXPORT = "export"
    EXPORT_STRICT = "export-strict"
    SCRIPT = "script"
    MIXED = "mixed"
    TRACE = "trace"


class DeviceChoice(StrEnum):
    """`--device`: where artifacts run while they are judged; the reference is always the CPU's."""

    CPU = "cpu"
    CUDA = "cuda"


def complete_targets(incomplete: str) -> list[str]:
    """Names of targets for shell completion."""
    from ..converters.registry import TARGETS

    return [target.NAME for target in TARGETS if target.NAME.startswith(incomplete)]


Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="PKG.MOD:FACTORY",
        help="Callable that builds the module; the current folder is importable.",
        rich_help_panel=Panel.INPUT,
    ),
]
ModelArg = Annotated[
    list[str] | None,
    typer.Option(
        "--model-arg",
        metavar="KEY=VALUE",
        help="Argument of the factory, typed by its annotation. Repeatable.",
        rich_help_panel=Panel.INPUT,
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="Method of the module to convert instead of forward.",
        rich_help_panel=Panel.INPUT,
    ),
]
WeightsKey = Annotated[
    str | None,
    typer.Option(
        "--weights-key",
        metavar="KEY",
        help="The weights to take where a checkpoint holds several sets, as state_dict_ema.",
        rich_help_panel=Panel.INPUT,
    ),
]
Static = Annotated[
    list[str] | None,
    typer.Option(
        "--static",
        metavar="DIM",
        help="Fix this dim at its opt size, as for a model that only takes that one. Repeatable.",
        rich_help_panel=Panel.INPUT,
    ),
]
DropOutput = Annotated[
    list[str] | None,
    typer.Option(
        "--drop-output",
        metavar="NAME",
        help="Leave this output out, or all below it: present drops present.0.key. Repeatable.",
        rich_help_panel=Panel.INPUT,
    ),
]
Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="SPEC",
        help=r'An input, as "x:float32\[batch=1..8,3,224,224]"; "ids:int64\[batch,seq]{0..99}". '
        "Repeatable.",
        rich_help_panel=Panel.INPUT,
    ),
]
Samples = Annotated[
    Path | None,
    typer.Option(
        "--samples",
        metavar="FILE_OR_LOADER",
        help="Real samples (.npz, .pt, .safetensors, PKG.MOD:LOADER): names, shapes and values.",
        rich_help_panel=Panel.INPUT,
    ),
]
NoStrict = Annotated[
    bool,
    typer.Option(
        "--no-strict",
        help="Accept missing, unexpected or misshapen weights, and say so.",
        rich_help_panel=Panel.ADVANCED,
    ),
]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Read full pickles, which can run code. Only for makers you trust.",
        rich_help_panel=Panel.INPUT,
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Open TorchScript, .pt2, compiled packages and engines: they are code. Only of makers "
        "you trust.",
        rich_help_panel=Panel.INPUT,
    ),
]
Feeds = Annotated[
    int | None,
    typer.Option(
        "--feeds",
        metavar="N",
        help="Feeds to judge on, 5 (the default) or more.",
        rich_help_panel=Panel.VALIDATION,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        help="Seed of the feeds, 0 by default.",
        rich_help_panel=Panel.ADVANCED,
    ),
]
Atol = Annotated[
    float | None,
    typer.Option(
        "--atol", metavar="NUMBER", help="Absolute tolerance.", rich_help_panel=Panel.VALIDATION
    ),
]
Rtol = Annotated[
    float | None,
    typer.Option(
        "--rtol",
        metavar="NUMBER",
        help="Tolerance relative to the output's peak.",
        rich_help_panel=Panel.VALIDATION,
    ),
]
MinSqnr = Annotated[
    float | None,
    typer.Option(
        "--min-sqnr",
        metavar="DB",
        help="Least signal-to-noise ratio; with --int8 layers return to float until it holds.",
        rich_help_panel=Panel.VALIDATION,
    ),
]
Search = Annotated[
    float | None,
    typer.Option(
        "--search",
        metavar="SECONDS",
        help="Once an artifact passed, look this long for a feed on which it is worse.",
        rich_help_panel=Panel.VALIDATION,
    ),
]
Sensitivity = Annotated[
    int | None,
    typer.Option(
        "--sensitivity",
        metavar="N",
        help="Plant N faults in copies of what passed and count those that the feeds and limits "
        "find; default: 8 where a run is cheap.",
        rich_help_panel=Panel.ADVANCED,
    ),
]
AcceptBranch = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-branch",
        metavar="FILE:LINE",
        help="Let a capture freeze this branch on tensor data, as gate.py:23, though no feed takes "
        "its other arm. Repeatable.",
        rich_help_panel=Panel.ADVANCED,
    ),
]
Device = Annotated[
    DeviceChoice | None,
    typer.Option(
        "--device",
        help="Where artifacts run while judged; default: cpu, or all that the format has.",
        rich_help_panel=Panel.VALIDATION,
    ),
]
Against = Annotated[
    Path | None,
    typer.Option(
        "--against",
        metavar="CHECKPOINT",
        help="The eager reference of a model file; default: as the manifest beside it records.",
        rich_help_panel=Panel.INPUT,
    ),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="CHECKPOINT",
        help="With an output folder: where its checkpoint is now, if it moved.",
        rich_help_panel=Panel.INPUT,
    ),
]
ArtifactPrecision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="PRECISION",
        help="What a model file computes in; default: as recorded, or as the file says.",
        rich_help_panel=Panel.PRECISION,
    ),
]
CACHE_DIR = "Folder of the cache; default: the user's own, as the system has it."  # in two types
Out = Annotated[
    Path,
    typer.Option("-o", "--out", metavar="DIR", help="Output folder.", rich_help_panel=Panel.OUTPUT),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Move artifacts of another checkpoint in DIR to DIR/replaced/.",
        rich_help_panel=Panel.OUTPUT,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan and stop.", rich_help_panel=Panel.OUTPUT)
]
PrepareOnly = Annotated[
    bool,
    typer.Option(
        "--prepare-only",
        help="Exit 0 where all is prepared and only steps for another host are pending.",
        rich_help_panel=Panel.OUTPUT,
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Reuse no result of an earlier run, and keep none.",
        rich_help_panel=Panel.CACHE,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="One JSON document on stdout.", rich_help_panel=Panel.OUTPUT),
]
Quiet = Annotated[
    bool,
    typer.Option("-q", "--quiet", help="Only the result and errors.", rich_help_panel=Panel.OUTPUT),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Tracebacks of errors.", rich_help_panel=Panel.ADVANCED),
]


def refuse_other_options(
    context: typer.Context, allowed: Collection[str], where: str, hint: str
) -> None:
    """No option that was given stays without effect in silence.

    Raises:
        UsageError: an option was given that is not among the allowed parameters.
    """
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is None or source.name == "DEFAULT" or name in allowed:
            continue
        raise UsageError(
            f"{parameter.opts[0]} has no effect {where}",
            hint=hint,
            code=ErrorCode.NO_EFFECT,
            option=parameter.opts[0].removeprefix("--"),
        )


def file_move(
    checkpoint: Path | None, samples: Path | None, *, allow_pickle: bool, trust: bool = False
) -> Moved:
    """Where the files of an earlier run are now, from options."""
    from ..pipeline.recorded_run import Moved

    return Moved(checkpoint=checkpoint, samples=samples, allow_pickle=allow_pickle, trust=trust)


def cache_folder(*, no_cache: bool = False) -> Path | None:
    """The user's cache folder, as the system has it; None where it is not to be used."""
    from platformdirs import user_cache_path

    return None if no_cache else user_cache_path("modelc", appauthor=False)
