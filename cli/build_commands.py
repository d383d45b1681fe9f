"""`modelc build-ov` and `modelc build-trt`: one format from an ONNX file or a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import UsageError
from ..pipeline.manifest_file import MANIFEST_FILE
from . import common_options as o
from . import conversion_options as c
from . import judging_options as a
from . import run_options as b
from .judging_options import Tolerances, read_limits
from .run_options import SignKey


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
    preprocess: c.PreprocessText = None,
    allow_pickle: o.AllowPickle = False,
    trust: o.Trust = False,
    out: o.Out = Path("out"),
    overwrite: o.Overwrite = False,
    dry_run: o.DryRun = False,
    report: a.Report = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    fp16: c.Fp16 = False,
    int8: c.Int8 = False,
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
    calib_select: c.CalibSelect = None,
    calib_seed: c.CalibSeed = None,
    calib_method: c.CalibMethod = None,
    max_trials: c.MaxTrials = None,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Build OpenVINO IR and validate it against eager."""
    from ..pipeline import make_order as asked
    from ..pipeline.make_order import build_order
    from ..pipeline.order import Order, Wanted
    from .execute import execute

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
    precision = c.choose_precision(fp16=fp16, int8=int8)
    order = Order(
        source=source, wanted=(Wanted(target="openvino", precision=precision),), out=out,
        judging=judging, overwrite=overwrite, lowering=lowering, measuring=measuring,
        patches=tuple(patch or ()), custom_ops=asked.parse_custom_ops(custom_op),
        cache=o.cache_folder(no_cache=no_cache),
    )  # fmt: skip
    bounds = b.process_bounds(isolate, timeout=timeout, memory=memory)
    reports = a.parse_formats(report)
    execute(build_order(path, order), dry_run=dry_run, json=json, quiet=quiet, reports=reports,
              bounds=bounds, sign_key=sign_key)  # fmt: skip


# What may be said when a folder is finished: the rest is on record.
_FINISH_OPTIONS = {
    "path", "prepare_only", "checkpoint", "workspace", "optimization_level", "profile",
    "timing_cache", "version_compatible", "hardware_compatible", "refittable", "strip_weights",
    "weight_streaming", "no_tf32", "plugins", "trust_engine", "builder", "timeout", "samples",
    "allow_pickle", "trust", "feeds", "seed", "atol", "rtol", "min_sqnr", "tolerance", "search",
    "sensitivity",
    "no_cache", "accept_branch", "isolate", "memory",
    "data", "metric", "max_drop", "label", "metric_output", "preprocess",
    "report", "sign_key", "json", "quiet", "debug",
}  # fmt: skip


def build_trt(
    context: typer.Context,
    path: Annotated[
        Path, typer.Argument(help="An ONNX file, a checkpoint, or an output folder to finish.")
    ],
    checkpoint: o.Checkpoint = None,
    against: o.Against = None,
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
    out: o.Out = Path("out"),
    overwrite: o.Overwrite = False,
    dry_run: o.DryRun = False,
    prepare_only: o.PrepareOnly = False,
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
    data: a.Data = None,
    metric: a.Metric = None,
    max_drop: a.MaxDrop = None,
    patch: c.Patch = None,
    workspace: c.Workspace = None,
    optimization_level: c.OptimizationLevel = None,
    profile: c.ProfileText = None,
    timing_cache: c.TimingCache = None,
    version_compatible: c.VersionCompatible = False,
    hardware_compatible: c.HardwareCompatible = None,
    refittable: c.Refittable = False,
    strip_weights: c.StripWeights = False,
    weight_streaming: c.WeightStreaming = False,
    no_tf32: c.NoTf32 = False,
    plugins: c.Plugins = None,
    trust_engine: c.TrustEngine = False,
    builder: c.Builder = None,
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
    calib_select: c.CalibSelect = None,
    calib_seed: c.CalibSeed = None,
    calib_method: c.CalibMethod = None,
    max_trials: c.MaxTrials = None,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Build a TensorRT engine and validate it against eager.

    Without a GPU or TensorRT it makes and validates the engine-ready ONNX, checks what TensorRT
    will take, leaves the engine pending (exit 4), and prints the command that finishes it.
    """
    from ..pipeline import make_order as asked
    from ..pipeline.order import Order, Wanted
    from ..pipeline.recorded_run import FinishRequest
    from .execute import execute, execute_request

    settings = asked.make_settings(
        tf32=not no_tf32, profiles=profile, plugins=plugins, workspace=workspace,
        optimization_level=optimization_level, timing_cache=timing_cache,
        version_compatible=version_compatible, hardware_compatible=hardware_compatible,
        refittable=refittable, strip_weights=strip_weights, weight_streaming=weight_streaming,
        trust_engine=trust_engine, builder=builder,
    )  # fmt: skip
    judging = asked.make_judging(
        feeds=feeds, seed=seed, atol=atol, rtol=rtol, min_sqnr=min_sqnr, search=search,
        limits=read_limits(tolerance), accept=accept_branch, sensitivity=sensitivity)  # fmt: skip
    precision = c.choose_precision(fp16=fp16, bf16=bf16, int8=int8)
    reports, cache = a.parse_formats(report), o.cache_folder(no_cache=no_cache)
    bounds = b.process_bounds(isolate, timeout=timeout, memory=memory)
    measuring = asked.make_measuring(data, metric, max_drop, label=label, output=metric_output,
        preprocess=preprocess, calibrates=not (path / MANIFEST_FILE).is_file())  # fmt: skip
    if (path / MANIFEST_FILE).is_file():
        o.refuse_other_options(
            context, _FINISH_OPTIONS, f"with the folder {path}: its steps are on record",
            f"finish it: modelc build-trt {path}; or give a checkpoint",
        )  # fmt: skip
        moved = o.file_move(checkpoint, samples, allow_pickle=allow_pickle, trust=trust)
        prepared = FinishRequest(out=path, judging=judging, settings=settings, moved=moved,
                                 measuring=measuring, cache=cache)  # fmt: skip
        execute_request(prepared, json=json, quiet=quiet, reports=reports, bounds=bounds,
                        prepare_only=prepare_only, sign_key=sign_key)  # fmt: skip
    if checkpoint is not None:
        text, hint = "--checkpoint is for a folder to finish", f"give {checkpoint} alone"
        raise UsageError(text, hint=hint, option="checkpoint")
    source = asked.make_source(
        against or path, model=model, model_args=model_arg, inputs=inputs, samples=samples,
        strict=not no_strict, allow_pickle=allow_pickle, method=method, static=static,
        drop_outputs=drop_output, weights_key=weights_key, trust=trust)  # fmt: skip
    lowering = asked.make_lowering(
        calib, calib_samples=calib_samples, calib_select=calib_select, calib_seed=calib_seed,
        calib_method=calib_method, preprocess=asked.calibration_preprocess(preprocess, data, calib),
        quantizer=quantizer, keep_fp=keep_fp, half_io=half_io, max_trials=max_trials,
    )  # fmt: skip
    order = Order(
        source=source, wanted=(Wanted(target="tensorrt", precision=precision),), out=out,
        judging=judging, overwrite=overwrite, lowering=lowering, settings=settings, cache=cache,
        patches=tuple(patch or ()), custom_ops=asked.parse_custom_ops(custom_op),
        measuring=measuring,
    )  # fmt: skip
    execute(asked.build_order(path, order), dry_run=dry_run, json=json, quiet=quiet, bounds=bounds,
            reports=reports, prepare_only=prepare_only, sign_key=sign_key)  # fmt: skip
