"""`modelc export`: a checkpoint in, proven artifacts out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as o


def export(
    checkpoint: Annotated[
        Path, typer.Argument(help="state_dict, safetensors, TorchScript, .pt2 or a HF folder.")
    ],
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="TARGET",
            autocompletion=o.complete_targets,
            help="Format, or format:precision as openvino:fp16. Repeatable.",
        ),
    ],
    out: o.Out = Path("out"),
    capture: Annotated[
        o.CaptureChoice, typer.Option("--capture", help="How the program is taken down.")
    ] = o.CaptureChoice.AUTO,
    opset: Annotated[int | None, typer.Option("--opset", help="ONNX opset; default 20.")] = None,
    external_data: Annotated[
        bool, typer.Option("--external-data", help="Keep ONNX weights in a file of their own.")
    ] = False,
    overwrite: o.Overwrite = False,
    dry_run: o.DryRun = False,
    model: o.Model = None,
    model_arg: o.ModelArg = None,
    inputs: o.Input = None,
    samples: o.Samples = None,
    no_strict: o.NoStrict = False,
    allow_pickle: o.AllowPickle = False,
    feeds: o.Feeds = None,
    seed: o.Seed = None,
    atol: o.Atol = None,
    rtol: o.Rtol = None,
    min_sqnr: o.MinSqnr = None,
    device: o.Device = o.DeviceChoice.CPU,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Convert a checkpoint and validate every artifact against eager."""
    from ..core.capture import Capture
    from ..pipeline.order import Order, Wanted
    from .carry_out import carry_out

    order = Order(
        source=o.source_of(
            checkpoint,
            model=model,
            model_args=model_arg,
            inputs=inputs,
            samples=samples,
            strict=not no_strict,
            allow_pickle=allow_pickle,
        ),
        wanted=tuple(Wanted.parse(text) for text in to),
        out=out,
        judging=o.judging_of(
            feeds=feeds, seed=seed, atol=atol, rtol=rtol, min_sqnr=min_sqnr, device=device
        ),
        capture=None if capture is o.CaptureChoice.AUTO else Capture(capture.value),
        opset=opset,
        external_data=external_data,
        overwrite=overwrite,
    )
    carry_out(order, dry_run=dry_run, json=json, quiet=quiet)
