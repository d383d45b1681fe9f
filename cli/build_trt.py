"""`modelc build-trt`: TensorRT engines, or all of the way to them that this host can go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import UsageError
from ..pipeline.manifest_file import MANIFEST_FILE
from . import options as o
from . import options_accuracy as a
from . import options_bounds as b
from . import options_capture as c
from . import options_precision as p
from . import options_report as r
from . import options_trt as t
from .options_sign import SignKey
from .options_tolerance import Tolerances, read_limits

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
    preprocess: p.PreprocessText = None,
    allow_pickle: o.AllowPickle = False,
    trust: o.Trust = False,
    out: o.Out = Path("out"),
    overwrite: o.Overwrite = False,
    dry_run: o.DryRun = False,
    prepare_only: o.PrepareOnly = False,
    report: r.Report = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    fp16: p.Fp16 = False,
    bf16: p.Bf16 = False,
    int8: p.Int8 = False,
    half_io: p.HalfIo = False,
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
    workspace: t.Workspace = None,
    optimization_level: t.OptimizationLevel = None,
    profile: t.ProfileText = None,
    timing_cache: t.TimingCache = None,
    version_compatible: t.VersionCompatible = False,
    hardware_compatible: t.HardwareCompatible = None,
    refittable: t.Refittable = False,
    strip_weights: t.StripWeights = False,
    weight_streaming: t.WeightStreaming = False,
    no_tf32: t.NoTf32 = False,
    plugins: t.Plugins = None,
    trust_engine: t.TrustEngine = False,
    builder: t.Builder = None,
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
    """Build a TensorRT engine and validate it against eager.

    Without a GPU or TensorRT it makes and validates the engine-ready ONNX, checks what TensorRT
    will take, leaves the engine pending (exit 4), and prints the command that finishes it.
    """
    from ..pipeline import make_order as asked
    from ..pipeline.make_order import build_order
    from ..pipeline.order import Order, Wanted
    from ..pipeline.recorded_run import FinishRequest
    from .carry_out import execute, execute_finish

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
    precision = p.choose_precision(fp16=fp16, bf16=bf16, int8=int8)
    reports, cache = r.parse_formats(report), o.cache_folder(no_cache=no_cache)
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
        execute_finish(prepared, json=json, quiet=quiet, reports=reports, prepare_only=prepare_only,
                   sign_key=sign_key, bounds=bounds)  # fmt: skip
    if checkpoint is not None:
        raise UsageError(
            "--checkpoint is for a folder to finish",
            hint=f"give {checkpoint} alone",
            option="checkpoint",
        )
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
        source=source, wanted=(Wanted(target="tensorrt", precision=precision),),
        out=out, judging=judging, overwrite=overwrite, lowering=lowering,
        patches=tuple(patch or ()), custom_ops=asked.parse_custom_ops(custom_op),
        settings=settings, cache=cache, measuring=measuring,
    )  # fmt: skip
    execute(build_order(path, order), dry_run=dry_run, json=json, quiet=quiet, reports=reports,
              prepare_only=prepare_only, sign_key=sign_key, bounds=bounds)  # fmt: skip
