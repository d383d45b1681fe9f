"""The option table: every option of the commands that make and judge artifacts, declared once.

A row is a field of a record below. From it come the flag and its help, the key in modelc.toml with
its JSON Schema and its MODELC_ variable, the field of the request, the entry of the manifest, the
part of the cache key, and the row in docs/commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..core.contract import CAPTURE_TIMEOUT
from ..core.kinds import Capture, Precision
from ..core.model_meta import ModelMeta
from . import option_values as val
from .call_options import (
    BenchmarkChoice,
    CallOptions,
    FileOptions,
    InspectChoice,
    PackChoice,
    PartsChoice,
    ServedChoice,
    TokenOptions,
)
from .option_spec import Commands, OptionSpec, Panel, ValueKind, option, specs_of, switch

# fmt: off
# A row takes three lines, not ten.
On = Commands
PRECISIONS = tuple(one.value for one in Precision)
_T, _W, _N, _P = ValueKind.TRUTH, ValueKind.WHOLE, ValueKind.NUMBER, ValueKind.PATH
MAX_FEEDS = 100_000
MAX_SEED = 2**63 - 1
MAX_SECONDS = 7 * 86_400.0  # seconds of a search: a week
MAX_FAULTS = 1000
_LEAST_FEEDS = 5  # that of validators.feeds, which a test compares: it would load numpy


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The eager side: how to build the module, and what goes into it."""

    model: str | None = option(
        None, "model",
        "Function or class that builds the module; the current folder is importable.",
        Panel.INPUT, commands=On.LOADING | On.INIT, check=val.check_spec, metavar="PKG.MOD:FACTORY")
    model_args: Mapping[str, str] = option(
        {}, "model-arg", "Argument of the factory, typed by its annotation. Repeatable.",
        Panel.INPUT, commands=On.LOADING | On.INIT, many=True, parse=val.parse_model_args,
        check=lambda text: val.parse_model_args([text]), metavar="KEY=VALUE")
    method: str | None = option(
        None, "method", "Method of the module to convert instead of forward.", Panel.INPUT,
        commands=On.LOADING, metavar="NAME")
    weights_key: str | None = option(
        None, "weights-key",
        "The set of weights to load from a checkpoint with several, as state_dict_ema.",
        Panel.INPUT, commands=On.LOADING, metavar="KEY")
    inputs: tuple[str, ...] = option(
        (), "input",
        'An input, as "x:float32[batch=1..8,3,224,224]" or "ids:int64[batch,seq]{0..99}". '
        "Repeatable.", Panel.INPUT, commands=On.LOADING | On.CALIBRATE, many=True,
        check=val.check_input_spec,
        metavar="SPEC")
    static: tuple[str, ...] = option(
        (), "static",
        "Fix this dim at its typical (opt) size. Repeatable.",
        Panel.INPUT, commands=On.LOADING, many=True, commas=True, metavar="DIM")
    drop_outputs: tuple[str, ...] = option(
        (), "drop-output",
        "Leave out this output and all below it: present also drops present.0.key. Repeatable.",
        Panel.INPUT, commands=On.LOADING, many=True, commas=True, metavar="NAME")
    samples: Path | None = option(
        None, "samples",
        "Real samples (.npz, .pt, .safetensors, PKG.MOD:LOADER): names, shapes and values.",
        Panel.INPUT, commands=On.LOADING | On.CALIBRATE, kind=ValueKind.SOURCE,
        parse=Path, metavar="FILE_OR_LOADER")
    allow_pickle: bool = switch(
        "allow-pickle", "Load full pickles, which can run code: only from sources you trust.",
        Panel.INPUT, commands=On.LOADING | On.FINISH)
    trust: bool = switch(
        "trust",
        "Open TorchScript, .pt2, compiled packages and engines, which run code: only from "
        "sources you trust.", Panel.INPUT, commands=On.LOADING | On.PACK | On.FINISH)
    include_preprocess: bool = switch(
        "include-preprocess",
        "Put the declared preprocessing into the artifact: its input is the uint8 image "
        "[N,height,width,C] in RGB.", Panel.INPUT, commands=On.MAKING, partial=True)
    postprocess: str = option(
        "", "postprocess",
        "Put steps after the model into the artifact: softmax, sigmoid, argmax, topk=5, "
        "softmax,topk=5, or sigmoid,nms; output=NAME selects the output.", Panel.INPUT,
        commands=On.MAKING, parse=val.parse_postprocess, check=val.parse_postprocess,
        metavar="STEPS")
    strict: bool = switch(
        "no-strict", "Accept missing, unexpected or misshapen weights, with a note.",
        commands=On.LOADING - On.BENCHMARK, negated=True)


@dataclass(frozen=True, kw_only=True)
class ArtifactOptions:
    """Which artifacts to make."""

    to: tuple[str, ...] = option(
        (), "to",
        "Formats, or format:precision as openvino:fp16, separated by commas. Repeatable.",
        Panel.OUTPUT, commands=On.EXPORT | On.BENCHMARK, many=True, commas=True,
        check=val.check_target, required=On.EXPORT, metavar="TARGET")
    precision: tuple[str, ...] = option(
        (), "precision",
        "Precisions to build in every format of `to` that supports them; formats with their own, "
        "as openvino:fp16, are unaffected.", many=True, commas=True, choices=PRECISIONS,
        default=("fp32",))
    fp16: bool = switch(
        "fp16", "Half precision; in OpenVINO, of the weights only.", Panel.PRECISION,
        commands=On.MAKING,
        key=False)
    bf16: bool = switch(
        "bf16", "bfloat16.", Panel.PRECISION, commands=On.EXPORT | On.TRT, key=False)
    rtx: bool = switch(
        "rtx", "Build an engine of TensorRT-RTX, which needs no GPU, for RTX GPUs.",
        Panel.TENSORRT, commands=On.TRT, key=False)
    partial: bool = switch(
        "partial", "Build a program for torch whose parts run in TensorRT, by torch-tensorrt: for "
        "a model that TensorRT does not take whole.", Panel.TENSORRT, commands=On.TRT, key=False)
    onnxruntime: bool = switch(
        "onnxruntime", "Build ONNX for ONNX Runtime's TensorRT provider, with the engines of its "
        "parts: for a model that TensorRT does not take whole.", Panel.TENSORRT, commands=On.TRT,
        key=False)
    int8: bool = switch(
        "int8", "8-bit integers; requires --calib.", Panel.PRECISION, commands=On.MAKING, key=False)
    fp8: bool = switch(
        "fp8", "8-bit floating point, for TensorRT; requires --calib.", Panel.PRECISION,
        commands=On.EXPORT | On.TRT, key=False)
    int8_weights: bool = switch(
        "int8-weights", "8-bit integer weights and float activations, without data.",
        Panel.PRECISION, commands=On.EXPORT | On.OV, key=False)
    int8_dynamic: bool = switch(
        "int8-dynamic", "8-bit integer weights, and activations rounded to 8 bits at run time, for "
        "ONNX, without data.", Panel.PRECISION, commands=On.EXPORT, key=False)
    int4: bool = switch(
        "int4", "4-bit integer weights and float activations; --calib makes them better for "
        "OpenVINO, and TensorRT requires it.", Panel.PRECISION, commands=On.MAKING, key=False)


@dataclass(frozen=True, kw_only=True)
class ConversionOptions:
    """How the module is captured and converted: these are fields of `Order`."""

    overwrite: bool = switch(
        "overwrite", "Move artifacts of another checkpoint from DIR to DIR/replaced/.",
        Panel.OUTPUT, commands=On.MAKING | On.BENCHMARK, key=False, rebuilds=False)
    capture: Capture | None = option(
        None, "capture",
        "How to capture the module as a graph: export, export-strict, script, mixed, trace, or "
        "auto, which tries those that the format supports.", Panel.CAPTURE, commands=On.EXPORT,
        choices=val.CAPTURES, lists_choices=True, default="auto", parse=val.parse_capture,
        metavar="CAPTURE")
    references: bool = switch(
        "no-references",
        "For a step that another host finishes, omit eager's outputs: that host then needs the "
        "checkpoint and the model's code.", Panel.OUTPUT, commands=On.EXPORT | On.TRT,
        negated=True, partial=True, rebuilds=False)
    opset: int | None = option(
        None, "opset", "ONNX opset; default 20.", Panel.CAPTURE, commands=On.EXPORT, kind=_W,
        least=1, most=99, metavar="N")
    external_data: bool = switch(
        "external-data", "Store ONNX weights in a separate file.", commands=On.EXPORT)
    narrow: bool = switch(
        "narrow", "Accept an artifact that is right in a part of the domain, and record that part.",
        Panel.CAPTURE, commands=On.EXPORT)
    guard: bool = switch(
        "guard",
        "Add a check of the domain to the ONNX graph: it fails on inputs outside of it.",
        Panel.CAPTURE, commands=On.EXPORT)
    stateful: bool = switch(
        "stateful", "For OpenVINO, keep a decoder's cache in states, as openvino-genai expects.",
        Panel.CAPTURE, commands=On.EXPORT | On.OV, partial=True)
    capture_timeout: float = option(
        CAPTURE_TIMEOUT, "capture-timeout", "Time limit of torch's symbolic solver per attempt.",
        commands=On.EXPORT, kind=_N, above=0, metavar="SECONDS")
    patches: tuple[str, ...] = option(
        (), "patch",
        "Function that changes the copy of the module that is captured; the eager reference is "
        "unchanged. Repeatable.",
        Panel.CAPTURE, commands=On.MAKING, many=True, check=val.check_spec,
        partial=True, metavar="PKG.MOD:FN")
    against_pipeline: str | None = option(
        None, "against-pipeline",
        "Your Python pipeline, a function that takes what the artifact takes and returns its "
        "outputs: the model must agree with it on all feeds before it is converted.",
        Panel.VALIDATION, commands=On.MAKING, check=val.check_spec, partial=True,
        metavar="PKG.MOD:FN")
    depends: tuple[str, ...] = option(
        (), "depends",
        "Dependencies of the model besides its modules and the files that its code opens in the "
        "project: files, globs, folders, env:NAME. A change rebuilds its artifacts.", many=True)
    custom_ops: Mapping[str, str] = option(
        {}, "custom-op", "Function that translates this operator to ONNX. Repeatable.",
        commands=On.MAKING, many=True, check=lambda text: val.parse_custom_ops([text]),
        parse=val.parse_custom_ops, partial=True, metavar="NS::OP=PKG.MOD:FN")
    runtimes: tuple[str, ...] = option(
        (), "for",
        "Experimental: a runtime that must load the artifact, as onnxruntime==1.20. Repeatable.",
        Panel.CAPTURE, commands=On.EXPORT, many=True, partial=True, metavar="RUNTIME==VERSION")
    meta: ModelMeta | None = option(
        None, "meta",
        "Metadata to put into artifacts: classes, preprocess, tokenizer, license or extra.NAME, or "
        "a TOML or JSON file of these keys. Repeatable.", Panel.OUTPUT, commands=On.MAKING,
        key=False, many=True, parse=val.parse_meta, metavar="FILE|KEY=VALUE")


@dataclass(frozen=True, kw_only=True)
class JudgingOptions(TokenOptions):
    """How artifacts are judged: these are fields of `Judging`."""

    feeds: int | None = option(
        None, "feeds", "Number of basic feeds, at least 5 (default); edge cases are added.",
        Panel.VALIDATION, commands=On.LOADING - On.BENCHMARK, kind=_W, least=_LEAST_FEEDS,
        most=MAX_FEEDS, default=_LEAST_FEEDS, recorded=True, metavar="N")
    seed: int | None = option(
        None, "seed", "Seed of the feeds; default 0.", commands=On.LOADING - On.BENCHMARK, kind=_W,
        least=0, most=MAX_SEED, default=0, recorded=True, metavar="N")
    atol: float | None = option(
        None, "atol", "Absolute tolerance.", Panel.VALIDATION, commands=On.JUDGING, kind=_N,
        least=0, metavar="NUMBER")
    rtol: float | None = option(
        None, "rtol", "Tolerance relative to the output's peak.", Panel.VALIDATION,
        commands=On.JUDGING, kind=_N, least=0, metavar="NUMBER")
    min_sqnr: float | None = option(
        None, "min-sqnr",
        "Minimum signal-to-noise ratio; where quantized, layers stay in float until it is met.",
        Panel.VALIDATION, commands=On.JUDGING, kind=_N, metavar="DB")
    search: float | None = option(
        None, "search", "Search this long for a feed on which a passed artifact is wrong.",
        Panel.VALIDATION, commands=On.JUDGING, kind=_N, above=0, most=MAX_SECONDS,
        metavar="SECONDS")
    device: str | None = option(
        None, "device",
        "Device to run artifacts on; default: cpu if the format supports it.",
        Panel.VALIDATION, commands=On.EXPORT | On.VALIDATE | On.DEBUG | On.BENCHMARK,
        choices=("cpu", "cuda"), lists_choices=True)
    sensitivity: int | None = option(
        None, "sensitivity",
        "Plant N faults in copies of passed artifacts and count those that are found; "
        "default: 8 if runs are fast.", commands=On.JUDGING, kind=_W, least=0,
        most=MAX_FAULTS, metavar="N")
    accept: tuple[str, ...] = option(
        (), "accept-branch",
        "Accept that a capture freezes this branch on tensor data, as gate.py:23, although no "
        "feed takes its other outcome. Repeatable.",
        commands=On.JUDGING, many=True, check=val.check_branch, metavar="FILE:LINE")


@dataclass(frozen=True, kw_only=True)
class AccuracyOptions:
    """Accuracy on labelled data."""

    data: str | None = option(
        None, "data",
        "Labelled samples: a folder per class, labels.csv, arrays with `label`, PKG.MOD:LOADER.",
        Panel.ACCURACY, commands=On.JUDGING, kind=ValueKind.SOURCE, metavar="DIR_OR_LOADER")
    metric: str | None = option(
        None, "metric", "top1 (default), top5, mse, or PKG.MOD:FN of predictions and labels.",
        Panel.ACCURACY, commands=On.JUDGING, partial=True, metavar="METRIC")
    max_drop: str | None = option(
        None, "max-drop",
        "Reject an artifact that loses more than this, as 0.5% or 0.005: points of top1 and top5, "
        "relative for mse.", Panel.ACCURACY, commands=On.JUDGING, kind=ValueKind.DROP,
        check=val.check_drop, metavar="DROP")
    label: str | None = option(
        None, "label", "Name of the array with the labels; default: label, labels, y, target ...",
        commands=On.JUDGING, partial=True, metavar="NAME")
    metric_output: str | None = option(
        None, "metric-output",
        "The output that the metric uses; default: the first floating-point one.",
        commands=On.JUDGING, partial=True, metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class CalibrationChoice:
    """Calibration data, and how images become inputs."""

    calib: str | None = option(
        None, "calib", "Calibration samples: a folder of images or arrays, .tar shards, "
        "PKG.MOD:LOADER; or random (with a warning).", Panel.CALIBRATION,
        commands=On.MAKING | On.BENCHMARK, kind=ValueKind.SOURCE, words=("random",), partial=True,
        metavar="SOURCE")
    calib_samples: int | None = option(
        None, "calib-samples", "Maximum number of calibration samples; default 256.",
        Panel.CALIBRATION, commands=On.MAKING, kind=_W, least=1, most=2**31, partial=True,
        metavar="N")
    calib_select: str | None = option(
        None, "calib-select",
        "Which samples: random (default for files) or first (default for loaders).",
        commands=On.MAKING | On.CALIBRATE, choices=("random", "first"), partial=True, metavar="HOW")
    calib_seed: int | None = option(
        None, "calib-seed", "Seed of a random choice.", commands=On.MAKING | On.CALIBRATE, kind=_W,
        least=0, most=MAX_SEED, partial=True, metavar="N")
    preprocess: str | None = option(
        None, "preprocess",
        "How to convert images to inputs: imagenet, or resize=256,crop=224,scale=1/255 ...",
        Panel.INPUT, commands=On.JUDGING | On.CALIBRATE, check=val.check_preprocess, partial=True,
        metavar="SPEC")


@dataclass(frozen=True, kw_only=True)
class LoweringOptions:
    """How precision is lowered: these are fields of `Lowering`."""

    quantizer: str | None = option(
        None, "quantizer",
        "One of onnxruntime, nncf, modelopt; default: the best of those that support the format.",
        Panel.CALIBRATION, commands=On.MAKING, check=val.check_quantizer,
        parse=lambda text: None if text == val.AUTO else text, partial=True, metavar="NAME")
    method: str | None = option(
        None, "calib-method",
        "minmax, entropy, percentile (onnxruntime); max, entropy, for --int4 awq, rtn (modelopt), "
        "gptq, rtn (nncf); mixed, performance (nncf) ...; default: that of each quantizer. "
        "Quantizers without it are skipped.",
        commands=On.MAKING, partial=True, metavar="METHOD")
    group_size: int | None = option(
        None, "group-size",
        "Weights with one scale, a power of 2; default 32 (--int4), 128 (--int8-weights in ONNX).",
        Panel.PRECISION, commands=On.EXPORT | On.OV, kind=_W, least=16, most=256, partial=True,
        metavar="N")
    half_io: bool = switch(
        "half-io", "With --fp16 or --bf16, or for TensorRT with --int8, convert inputs and outputs "
        "too.", Panel.PRECISION, commands=On.EXPORT | On.TRT, partial=True)
    rest: Precision | None = option(
        None, "rest", "Precision of the layers that a quantizer leaves in floating point, for "
        "TensorRT: fp16 (default), bf16 or fp32.", Panel.PRECISION, commands=On.EXPORT | On.TRT,
        choices=("fp16", "bf16", "fp32"), lists_choices=True, parse=Precision, partial=True,
        metavar="PRECISION")
    keep: tuple[str, ...] = option(
        (), "keep-fp", "Keep nodes in floating point: a node, a module path as encoder.layer.3.*, "
        "or an operator. Repeatable.", Panel.PRECISION, commands=On.MAKING, many=True, partial=True,
        metavar="PATTERN")
    max_trials: int | None = option(
        None, "max-trials",
        "With --min-sqnr or --max-drop: maximum number of quantized artifacts to build in the "
        "search for the layers to keep in floating point; default 32.", commands=On.MAKING,
        kind=_W, least=1, most=100_000, partial=True, metavar="N")


_engine = partial(OptionSpec, panel=Panel.TENSORRT, commands=On.TRT, partial=True)
ENGINE_OPTIONS = (  # `field` is the setting of the engine, which its format checks
    _engine(name="workspace", metavar="SIZE",
        help="Maximum scratch memory of a layer; default: all."),
    _engine(name="optimization-level", kind=_W, least=0, most=5, metavar="N",
        help="Optimization level of the builder, 0 to 5; default 3."),
    _engine(name="profile", field="profiles", many=True, metavar="SHAPES",
        help="An additional optimization profile, as x=1x3x224x224:4x3x224x224:8x3x224x224 "
        "(min:opt:max), inputs separated by commas. The first is that of the inputs. Repeatable."),
    _engine(name="timing-cache", kind=_P, words=("off",), metavar="FILE",
        help="File of kernel timings, or off; default: one per GPU and version."),
    _engine(name="version-compatible", kind=_T,
        help="Build an engine that later TensorRT versions can load; requires --trust-engine."),
    _engine(name="hardware-compatible", metavar="LEVEL",
        choices=("none", "ampere-plus", "same-compute-capability"),
        help="Other GPUs that the engine runs on: none (default; only this model of GPU), "
        "ampere-plus or same-compute-capability."),
    _engine(name="compute-capabilities", many=True, commas=True, metavar="CAPABILITY",
        help="Compute capabilities of the GPUs of a TensorRT-RTX engine: 7.5, 8.0, 8.6, 8.9, 12.0 "
        "or 12.1; default: all from 8.0 on. Repeatable."),
    _engine(name="refittable", kind=_T, help="Build an engine whose weights can be replaced."),
    _engine(name="strip-weights", kind=_T,
        help="Omit the weights; they are loaded from the ONNX file."),
    _engine(name="weight-streaming", kind=_T, help="Allow weights to stay in host memory."),
    _engine(name="no-tf32", field="tf32", kind=_T, negated=True,
        help="Disable TF32: compute FP32 in full precision."),
    _engine(name="plugins", kind=_P, many=True, metavar="FILE", commands=On.TRT | On.VALIDATE,
        help="Plugin library to load, which runs code. Repeatable."),
    _engine(name="trust-engine", kind=_T, commands=On.TRT | On.VALIDATE | On.FINISH,
        help="Allow code in the engine to run when it is loaded."),
    _engine(name="min-block-size", kind=_W, least=1, metavar="N", commands=On.TRT | On.INSPECT,
        help="Fewest operators of an engine that is a part of a model; default 5."),
    _engine(name="torch-ops", many=True, commas=True, metavar="OPERATOR",
        commands=On.TRT | On.INSPECT,
        help="An operator that stays in torch with torch-tensorrt, as aten.sin. Repeatable."),
    _engine(name="builder", choices=("auto", "python", "trtexec"), metavar="WHICH",
        help="python, trtexec or auto (default): the first that is installed."),
)


RECORDS = (FileOptions, ArtifactOptions, ConversionOptions, SourceOptions, JudgingOptions,
           AccuracyOptions, CalibrationChoice, LoweringOptions, BenchmarkChoice,
           PackChoice, InspectChoice, ServedChoice, PartsChoice, CallOptions)
OPTIONS = (*(row for one in RECORDS for row in specs_of(one)), *ENGINE_OPTIONS)
"""The table: every row, in the order of the help within a panel."""


def options_of(command: str) -> tuple[OptionSpec, ...]:
    """The flags of a command, panel by panel."""
    panels = list(Panel)
    found = (one for one in OPTIONS if command in one.commands)
    return tuple(sorted(found, key=lambda one: panels.index(one.panel)))
