"""The rows of the option table that are of one call: which files it starts from, what it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import option_values as val
from .option_spec import Commands, Panel, ValueKind, option, switch

# fmt: off
On = Commands
_T, _W, _N, _P = ValueKind.TRUTH, ValueKind.WHOLE, ValueKind.NUMBER, ValueKind.PATH


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """How a decoder is judged on tokens: these are fields of `Judging`."""

    text: Path | None = option(
        None, "text",
        "Your text to judge a decoder on (UTF-8), or token ids (.npy, .npz); default: text that "
        "eager samples.", Panel.TOKENS, commands=On.JUDGING, kind=_P, metavar="FILE")
    max_kl: float | None = option(
        None, "max-kl", "Maximum mean KL divergence from eager's next tokens, in nats.",
        Panel.TOKENS, commands=On.JUDGING, kind=_N, least=0, metavar="NATS")
    min_agreement: float | None = option(
        None, "min-agreement",
        "Minimum share of rows of an output, or of tokens, whose largest element is eager's.",
        Panel.VALIDATION, commands=On.JUDGING, kind=_N, least=0, most=1,
        metavar="SHARE")
    max_ppl_increase: float | None = option(
        None, "max-ppl-increase",
        "Maximum increase of the perplexity of the text: 0.02 is 2 % of eager's.",
        Panel.TOKENS, commands=On.JUDGING, kind=_N, least=0, metavar="SHARE")


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Which files of an earlier run a command starts from, and what it does with them."""

    checkpoint: Path | None = option(
        None, "checkpoint",
        "New path of the checkpoint of an output folder, if it was moved, or hf://ORG/NAME@REVISION.",
        Panel.INPUT, commands=On.TRT | On.VALIDATE | On.BENCHMARK | On.PACK, key=False,
        kind=_P, metavar="CHECKPOINT")
    against: Path | None = option(
        None, "against",
        "Checkpoint of the eager reference, or hf://ORG/NAME@REVISION; in validate also another "
        "converted model; default: as in the manifest beside the file.",
        Panel.INPUT, commands=On.EAGER - On.EXPORT, key=False, kind=_P, metavar="CHECKPOINT")
    precision: str | None = option(
        None, "precision",
        "Precision of a model file; default: as in the manifest, or in the file.",
        Panel.PRECISION, commands=On.VALIDATE | On.DEBUG, key=False, metavar="PRECISION")
    feed: str | None = option(
        None, "feed", "Feed to compare layers on; default: the worst one.", Panel.VALIDATION,
        commands=On.DEBUG, key=False, metavar="NAME")
    rejudge: bool = switch(
        "rejudge", "Apply tolerances to the measurements in the manifest, without running a model.",
        Panel.VALIDATION, commands=On.VALIDATE, key=False)
    replay: Path | None = option(
        None, "replay",
        "Also judge a model file on this feed and show only its figures: DIR/worst/ARTIFACT.npz.",
        Panel.VALIDATION, commands=On.VALIDATE, key=False, kind=_P, metavar="NPZ")
    compiled: str | None = option(
        None, "compiled",
        "Judge the eager module under torch.compile in this mode instead of the artifacts, and "
        "record the verdict: default, reduce-overhead or max-autotune, each with +fullgraph or "
        "+dynamic.",
        Panel.VALIDATION, commands=On.VALIDATE, key=False, metavar="MODE")
    runtimes: tuple[str, ...] = option(
        (), "in",
        "Judge the artifacts as this release of a runtime runs them, in an environment of its own, "
        "and record the verdicts: onnxruntime==1.20.1, openvino~=2025.3.0, torch==2.11.0, "
        "onnxruntime-genai==0.18.0, openvino-genai==2026.4.1.0; with ,python=3.12 in another "
        "Python. Repeatable.",
        Panel.VALIDATION, commands=On.VALIDATE, key=False, many=True, metavar="RUNTIME==VERSION")
    outside: bool = switch(
        "outside",
        "Judge the artifacts as programs in C++ run them, built here against libtorch, ONNX "
        "Runtime and OpenVINO, and record the verdicts.",
        Panel.VALIDATION, commands=On.VALIDATE, key=False)
    activations: str = option(
        "2GiB", "activations", "Memory limit of activations, as 512MB or 2GiB.", commands=On.DEBUG,
        key=False, metavar="SIZE")
    debug_folder: Path | None = option(
        None, "out", "Folder for debug/<node>/; default: that of the manifest.", Panel.OUTPUT,
        commands=On.DEBUG, key=False, kind=_P, flags=("-o", "--out"), metavar="DIR")


@dataclass(frozen=True, kw_only=True)
class ServedChoice:
    """Which model on which server `modelc validate --served` judges."""

    served: str | None = option(
        None, "served",
        "Judge an artifact as a server with the V2 inference protocol serves it: http://HOST:PORT "
        "or grpc://HOST:PORT, or https, grpcs. --model names the model there.",
        Panel.VALIDATION, commands=On.VALIDATE, key=False, metavar="URL")
    model_version: str = option(
        "", "model-version", "Version of the model on the server; default: the newest.",
        Panel.VALIDATION, commands=On.VALIDATE, key=False, metavar="VERSION")
    header: tuple[str, ...] = option(
        (), "header",
        "Header of each request to the server, as 'Authorization: Bearer TOKEN'; never recorded. "
        "Repeatable.", Panel.VALIDATION, commands=On.VALIDATE, key=False, many=True,
        metavar="HEADER")
    request_timeout: float = option(
        60.0, "request-timeout", "Seconds that the server has for one request.",
        Panel.VALIDATION, commands=On.VALIDATE, key=False, kind=_N, least=0.1, most=86400.0,
        metavar="SECONDS")


@dataclass(frozen=True, kw_only=True)
class BenchmarkChoice:
    """What `modelc bench` measures, and what it writes."""

    batch: str | None = option(
        None, "batch", "Batch sizes to measure, as 1,8,32; default: the typical (opt) size.",
        Panel.INPUT, commands=On.BENCHMARK, key=False, metavar="SIZES")
    size: tuple[str, ...] = option(
        (), "size", "Sizes of another dim to measure, as seq=16,128. Repeatable.", Panel.INPUT,
        commands=On.BENCHMARK, key=False, many=True, metavar="DIM=SIZES")
    row: tuple[str, ...] = option(
        (), "row", "Measure these rows alone, as eager or 'onnx*'. Repeatable.", Panel.OUTPUT,
        commands=On.BENCHMARK, key=False, many=True, metavar="ROW")
    compiled: str = option(
        "default", "compile",
        "Modes of torch.compile: default, reduce-overhead, max-autotune, torch_tensorrt (on a "
        "GPU), each with +fullgraph or +dynamic; or none.", Panel.OUTPUT, commands=On.BENCHMARK,
        key=False, metavar="MODES")
    rejected: bool = switch(
        "rejected", "Measure rejected artifacts too.", Panel.OUTPUT, commands=On.BENCHMARK,
        key=False)
    csv: Path | None = option(
        None, "csv", "Write the rows to a CSV file.", Panel.OUTPUT, commands=On.BENCHMARK,
        key=False, kind=_P, metavar="FILE")
    html: Path | None = option(
        None, "html", "Write a page with tables and charts.", Panel.OUTPUT, commands=On.BENCHMARK,
        key=False, kind=_P, metavar="FILE")
    seconds: float = option(
        3.0, "seconds", "Seconds to measure each row at each size.", Panel.VALIDATION,
        commands=On.BENCHMARK, key=False, kind=_N, least=0.1, most=3600.0, metavar="SECONDS")
    threads: int | None = option(
        None, "threads", "Threads of each runtime; default: one for each core.", Panel.VALIDATION,
        commands=On.BENCHMARK, key=False, kind=_W, least=1, most=4096, metavar="N")
    strict: bool = switch(
        "strict", "Fail if other processes disturb the measurement.", Panel.VALIDATION,
        commands=On.BENCHMARK, key=False)
    compare: Path | None = option(
        None, "compare",
        "Compare the speed-ups with an earlier benchmark (--json); exit 1 if one is less.",
        Panel.VALIDATION, commands=On.BENCHMARK, key=False, kind=_P, metavar="JSON")


@dataclass(frozen=True, kw_only=True)
class PartsChoice:
    """The parts of a model that is converted in parts, and the function that composes them."""

    parts: Mapping[str, str] = option(
        {}, "part",
        "A part of a model of several parts: a submodule or a method, as decoder=vae.decode; it "
        "goes to the folder DIR/NAME. Requires --compose. Repeatable.",
        Panel.INPUT, commands=On.EXPORT, key=False, many=True, parse=val.parse_parts,
        metavar="NAME=METHOD")
    compose: str | None = option(
        None, "compose",
        "Your function of the parts and the inputs that returns the outputs: it shows what parts "
        "are called with, and the whole is judged end to end.",
        Panel.INPUT, commands=On.EXPORT, check=val.check_spec, metavar="PKG.MOD:FN", partial=True)


@dataclass(frozen=True, kw_only=True)
class InspectChoice:
    """What `modelc inspect` shows besides the contents of a file."""

    breaks: bool = switch(
        "breaks",
        "Compile the checkpoint's model with torch.compile over its domain; show graph breaks, "
        "guards and recompiles with their source lines.", Panel.CAPTURE, commands=On.INSPECT,
        key=False)
    segments: bool = switch(
        "segments", "Of a .pt2 or .onnx file: plan which operators torch-tensorrt or ONNX Runtime "
        "would run in TensorRT.", Panel.TENSORRT, commands=On.INSPECT, key=False)


@dataclass(frozen=True, kw_only=True)
class PackChoice:
    """What `modelc pack` writes or checks."""

    to: str | None = option(
        None, "to", "Kind of repository: triton, ovms, kserve, mlflow, onnx, onnxruntime-genai or "
        "openvino-genai; with --check, by default as its content says.",
        Panel.OUTPUT, commands=On.PACK, key=False, metavar="KIND")
    repository: Path | None = option(
        None, "out", "Folder of the repository, which may hold other models.", Panel.OUTPUT,
        commands=On.PACK, key=False, kind=_P, flags=("-o", "--out"), metavar="REPO")
    check: bool = switch(
        "check", "Compare an existing repository with its model files, and change nothing.",
        Panel.VALIDATION, commands=On.PACK, key=False)
    allow: tuple[str, ...] = option(
        (), "allow", "Pack this artifact although it has not passed. Repeatable.", Panel.INPUT,
        commands=On.PACK, key=False, many=True, metavar="NAME")
    name: str | None = option(
        None, "name", "Name of the served model; default: that of the output folder.",
        Panel.OUTPUT, commands=On.PACK, key=False, metavar="NAME")
    gpu: bool = switch(
        "gpu", "Serve on GPUs; default: the device of the verdict.", Panel.OUTPUT,
        commands=On.PACK, key=False)
    instances: int = option(
        1, "instances", "Copies of each model that the server runs.", Panel.OUTPUT,
        commands=On.PACK, key=False, kind=_W, least=1, most=1024, metavar="N")
    keep: int = option(
        1, "keep", "Number of newest versions that the server offers.", Panel.OUTPUT,
        commands=On.PACK, key=False, kind=_W, least=1, most=1024, metavar="N")
    storage_uri: str | None = option(
        None, "storage-uri", "Where the server finds the repository, as s3://bucket/models.",
        Panel.OUTPUT, commands=On.PACK, key=False, metavar="URI")


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """How one call works and what it shows; of these, only the cache is a setting of a model."""

    artifact: tuple[str, ...] = option(
        (), "artifact", "Use these artifacts alone, as onnx or 'onnx*'. Repeatable.", Panel.INPUT,
        commands=On.PACK | On.VALIDATE, key=False, many=True, metavar="NAME")
    out: Path = option(
        Path("out"), "out", "Output folder.", Panel.OUTPUT, commands=On.MAKING | On.BENCHMARK,
        key=False, kind=_P,
        flags=("-o", "--out"), metavar="DIR")
    dry_run: bool = switch(
        "dry-run", "Print the plan and stop.", Panel.OUTPUT, commands=On.MAKING | On.RUN, key=False)
    prepare_only: bool = switch(
        "prepare-only", "Exit 0 if steps are only pending on another host.",
        Panel.OUTPUT, commands=On.TRT | On.RUN | On.FINISH, key=False)
    report: tuple[str, ...] = option(
        (), "report", "Reports to write, separated by commas: html, md, junit, sarif, json.",
        Panel.OUTPUT, commands=On.JUDGING | On.RUN | On.REPORT, key=False, many=True,
        metavar="NAMES")
    json: bool = switch(
        "json", "Print one JSON document.", Panel.OUTPUT, commands=On.WITH_JSON, key=False)
    quiet: bool = switch(
        "quiet", "Print only the result and errors.", Panel.OUTPUT, commands=On.ALL, key=False,
        flags=("-q", "--quiet"))
    tolerance: tuple[str, ...] = option(
        (), "tolerance",
        "Limits by name: atol, rtol, min-sqnr, floor-factor, min-cosine, min-agreement, max-kl, "
        "max-ppl-increase; for one output, as logits:min-sqnr=60. Repeatable.", Panel.VALIDATION,
        commands=On.JUDGING, key=False, many=True, metavar="[OUTPUT:]KEY=VALUE,…")
    no_cache: bool = switch(
        "no-cache", "Do not reuse or store results.", Panel.CACHE,
        commands=On.MAKING | On.RUN | On.FINISH)
    isolate: bool | None = option(
        None, "isolate",
        "Run in a child process, so that a crash or a limit ends one step only (default).",
        Panel.ISOLATION, commands=On.EAGER | On.INSPECT | On.PACK, key=False, kind=_T,
        flags=("--isolate/--no-isolate",))
    timeout: str | None = option(
        None, "timeout",
        "Time limit of a step, as 600 or 10min; a step beyond it fails.",
        Panel.ISOLATION, key=False, metavar="TIME",
        commands=On.EAGER | On.INSPECT | On.RUN | On.FINISH | On.BENCHMARK | On.PACK)
    memory: str | None = option(
        None, "memory", "Memory limit of a step, as 8GB; a step beyond it fails.",
        Panel.ISOLATION, commands=On.EAGER | On.INSPECT | On.PACK, key=False, metavar="SIZE")
    sign_key: Path | None = option(
        None, "sign-key", "Sign the manifest with this Ed25519 key, to manifest.json.sig.",
        Panel.SIGNING, commands=On.JUDGING | On.RUN | On.MERGE | On.FINISH, key=False, kind=_P,
        env="MODELC_SIGN_KEY", metavar="PEM")
    latency: bool = switch(
        "latency", "In comparisons, count timings too, as ratios to FP32 beyond their noise.",
        commands=On.REPORT | On.RUN, key=False)
    debug: bool = switch(
        "debug", "Print tracebacks of errors.", commands=On.ALL, key=False)
