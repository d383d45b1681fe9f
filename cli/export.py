"""`modelc export`: a checkpoint in, proven artifacts out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import common_options as o
from . import conversion_options as c
from . import judging_options as a
from . import run_options as b
from .judging_options import Tolerances, read_limits
from .run_options import SignKey


def export(
    checkpoint: Annotated[
        Path, typer.Argument(help="state_dict, safetensors, TorchScript, .pt2 or a HF folder.")
    ],
    *,
    model: o.Model = None,
    model_arg: o.ModelArg = None,
    method: o.Method = None,
    weights_key: o.WeightsKey = None,
    inputs: o.Input = None,
    static: o.Static = None,
    drop_output: o.DropOutput = None,
    samples: o.Samples = None,
    preprocess: c.PreprocessText = None,
    allow_pickle: o.AllowPickle = False,
    trust: o.Trust = False,
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="TARGET",
            autocompletion=o.complete_targets,
            help="Format, or format:precision as openvino:fp16. Repeatable.",
            rich_help_panel=o.Panel.OUTPUT,
        ),
    ],
    out: o.Out = Path("out"),
    overwrite: o.Overwrite = False,
    dry_run: o.DryRun = False,
    report: a.Report = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    fp16: c.Fp16 = False,
    bf16: c.Bf16 = False,
    int8: c.Int8 = False,
    half_io: c.HalfIo = False,
    keep_fp: c.KeepFp = None,
    calib: c.Calib = None,
    calib_samples: c.CalibSamples = None,
    quantizer: c.Quantizer = None,
    feeds: o.Feeds = None,
    atol: o.Atol = None,
    rtol: o.Rtol = None,
    min_sqnr: o.MinSqnr = None,
    tolerance: Tolerances = None,
    search: o.Search = None,
    device: o.Device = None,
    data: a.Data = None,
    metric: a.Metric = None,
    max_drop: a.MaxDrop = None,
    capture: c.CaptureWay = o.CaptureChoice.AUTO,
    opset: c.Opset = None,
    patch: c.Patch = None,
    runtimes: c.For = None,
    narrow: c.Narrow = False,
    guard: c.Guard = False,
    no_cache: o.NoCache = False,
    isolate: b.Isolate = None,
    timeout: b.Timeout = None,
    memory: b.Memory = None,
    sign_key: SignKey = None,
    external_data: c.ExternalData = False,
    custom_op: c.CustomOp = None,
    capture_timeout: c.CaptureTimeout = 60.0,
    no_strict: o.NoStrict = False,
    seed: o.Seed = None,
    sensitivity: o.Sensitivity = None,
    accept_branch: o.AcceptBranch = None,
    label: a.Label = None,
    metric_output: a.MetricOutput = None,
    calib_select: c.CalibSelect = None,
    calib_seed: c.CalibSeed = None,
    calib_method: c.CalibMethod = None,
    max_trials: c.MaxTrials = None,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Convert a checkpoint and validate every artifact against eager."""
    from ..core.kinds import Capture
    from ..pipeline import make_order as asked
    from ..pipeline.order import Order, Wanted
    from .execute import execute

    precision = c.choose_precision(fp16=fp16, bf16=bf16, int8=int8)
    source = asked.make_source(
        checkpoint, model=model, model_args=model_arg, inputs=inputs, samples=samples,
        strict=not no_strict, allow_pickle=allow_pickle, method=method, static=static,
        drop_outputs=drop_output, weights_key=weights_key, trust=trust,
    )  # fmt: skip
    judging = asked.make_judging(
        feeds=feeds, seed=seed, atol=atol, rtol=rtol, min_sqnr=min_sqnr,
        limits=read_limits(tolerance), device=device, search=search, accept=accept_branch,
        sensitivity=sensitivity,
    )  # fmt: skip
    lowering = asked.make_lowering(
        calib, calib_samples=calib_samples, calib_select=calib_select, calib_seed=calib_seed,
        calib_method=calib_method, preprocess=asked.calibration_preprocess(preprocess, data, calib),
        quantizer=quantizer, keep_fp=keep_fp, half_io=half_io, max_trials=max_trials,
    )  # fmt: skip
    order = Order(
        source=source,
        wanted=tuple(Wanted.parse(text, precision) for text in to),
        out=out,
        judging=judging,
        measuring=asked.make_measuring(
            data, metric, max_drop, label=label, output=metric_output, preprocess=preprocess
        ),
        capture=None if capture is o.CaptureChoice.AUTO else Capture(capture.value),
        opset=opset,
        external_data=external_data,
        narrow=narrow,
        guard=guard,
        capture_timeout=capture_timeout,
        overwrite=overwrite,
        lowering=lowering,
        cache=o.cache_folder(no_cache=no_cache),
        patches=tuple(patch or ()),
        custom_ops=asked.parse_custom_ops(custom_op),
        runtimes=tuple(runtimes or ()),
    )
    bounds = b.process_bounds(isolate, timeout=timeout, memory=memory)
    reports = a.parse_formats(report)
    execute(order, dry_run=dry_run, json=json, quiet=quiet, reports=reports, bounds=bounds,
              sign_key=sign_key)  # fmt: skip
