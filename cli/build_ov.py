"""`modelc build-ov`: OpenVINO IR from an ONNX file or a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as o


def build_ov(
    path: Annotated[Path, typer.Argument(help="An ONNX file, or a checkpoint.")],
    fp16: Annotated[bool, typer.Option("--fp16", help="Store the weights in FP16.")] = False,
    out: o.Out = Path("out"),
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="CHECKPOINT",
            help="The eager reference, for an ONNX without a manifest beside it.",
        ),
    ] = None,
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
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Build OpenVINO IR and validate it against eager."""
    from ..core.precision import Precision
    from ..pipeline.building import build_order
    from ..pipeline.order import Wanted
    from .carry_out import carry_out

    precision = Precision.FP16 if fp16 else Precision.FP32
    order = build_order(
        path,
        Wanted(target="openvino", precision=precision),
        out,
        given=o.source_of(
            against or path,
            model=model,
            model_args=model_arg,
            inputs=inputs,
            samples=samples,
            strict=not no_strict,
            allow_pickle=allow_pickle,
        ),
        judging=o.judging_of(
            feeds=feeds,
            seed=seed,
            atol=atol,
            rtol=rtol,
            min_sqnr=min_sqnr,
            device=o.DeviceChoice.CPU,
        ),
        overwrite=overwrite,
    )
    carry_out(order, dry_run=dry_run, json=json, quiet=quiet)
