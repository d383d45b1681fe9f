"""`modelc build-ov`: OpenVINO IR from an ONNX file or a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as o
from . import options_accuracy as a
from . import options_bounds as b
from . import options_capture as c
from . import options_precision as p
from . import options_report as r
from .options_sign import SignKey
from .options_tolerance import Tolerances, read_limits


def build_ov(
    path: Annotated[Path, typer.Argument(help="An ONNX file, or a checkpoint.")],
    against: o.Against = None,
    model: o.Model = None,
    model_arg: o.ModelArg = None,
    method: o.Method = None,
    weights_key: o.WeightsKey = None,
    inputs: o.Input = None,
    static: o.Static = None,
    drop_output: o.DropOutput = None,
    samples: o.Samples = None,
    preprocess: p.PreprocessText = None,
    allow_pickle: o.AllowPickle = False,
    trust: o.Trust = False,
    out: o.Out = Path("out"),
    overwrite: o.Overwrite = False,
    dry_run: o.DryRun = False,
    report: r.Report = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    fp16: p.Fp16 = False,
    int8: p.Int8 = False,
    keep_fp: p.KeepFp = None,
    calib: p.Calib = None,
    calib_samples: p.CalibSamples = None,
    quantizer: p.Quantizer = None,
    feeds: o.Feeds = None,
    atol: o.Atol = None,
    rtol: o.Rtol = None,
    min_sqnr: o.MinSqnr = None,
    tolerance: Tolerances = None,
    search: o.Search = None,
    data: a.Data = None,
    metric: a.Metric = None,
    max_drop: a.MaxDrop = None,
    patch: c.Patch = None,
    no_cache: o.NoCache = False,
    isolate: b.Isolate = None,
    timeout: b.Timeout = None,
    memory: b.Memory = None,
    sign_key: SignKey = None,
    custom_op: c.CustomOp = None,
    no_strict: o.NoStrict = False,
    seed: o.Seed = None,
    sensitivity: o.Sensitivity = None,
    accept_branch: o.AcceptBranch = None,
    label: a.Label = None,
    metric_output: a.MetricOutput = None,
    calib_select: p.CalibSelect = None,
    calib_seed: p.CalibSeed = None,
    calib_method: p.CalibMethod = None,
    max_trials: p.MaxTrials = None,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Build OpenVINO IR and validate it against eager."""
    from ..pipeline import make_order as asked
    from ..pipeline.make_order import build_order
    from ..pipeline.order import Order, Wanted
    from .carry_out import execute

    source = asked.make_source(
        against or path, model=model, model_args=model_arg, inputs=inputs, samples=samples,
        strict=not no_strict, allow_pickle=allow_pickle, method=method, static=static,
        drop_outputs=drop_output, weights_key=weights_key, trust=trust,
    )  # fmt: skip
    judging = asked.make_judging(
        feeds=feeds, seed=seed, atol=atol, rtol=rtol, min_sqnr=min_sqnr, search=search,
        limits=read_limits(tolerance), accept=accept_branch, sensitivity=sensitivity)  # fmt: skip
    lowering = asked.make_lowering(
        calib, calib_samples=calib_samples, calib_select=calib_select, calib_seed=calib_seed,
        calib_method=calib_method, preprocess=asked.calibration_preprocess(preprocess, data, calib),
        quantizer=quantizer, keep_fp=keep_fp, max_trials=max_trials,
    )  # fmt: skip
    measuring = asked.make_measuring(
        data, metric, max_drop, label=label, output=metric_output, preprocess=preprocess
    )
    precision = p.choose_precision(fp16=fp16, int8=int8)
    order = Order(
        source=source, wanted=(Wanted(target="openvino", precision=precision),), out=out,
        judging=judging, overwrite=overwrite, lowering=lowering, measuring=measuring,
        patches=tuple(patch or ()), custom_ops=asked.parse_custom_ops(custom_op),
        cache=o.cache_folder(no_cache=no_cache),
    )  # fmt: skip
    bounds = b.process_bounds(isolate, timeout=timeout, memory=memory)
    reports = r.parse_formats(report)
    execute(build_order(path, order), dry_run=dry_run, json=json, quiet=quiet, reports=reports,
              bounds=bounds, sign_key=sign_key)  # fmt: skip
