"""Which architectures TensorRT-RTX builds: python -m modelc.benchmarks.tensorrt_rtx --out DIR.

The sample models and cases of tests/nets are exported as their user would, with
`--to tensorrt-rtx` in four precisions, once with dynamic dims and once with all of them fixed. No
GPU is needed, and nothing is run on one: an engine that is built stays pending. DIR/results.jsonl
holds the results, and a run goes on where the last one stopped; --write writes the table. Exits 1
where modelc ends with a bug.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelc.benchmarks.coverage_feeds import signature_of
from modelc.benchmarks.coverage_run import save
from modelc.converters.installed_packages import package_versions
from modelc.core.kinds import QUANTIZED
from modelc.sample_models import digits, encoder, gate, lstm, nested, resnet
from modelc.tests.nets.cases import FACTORY, Case, build, cases

if TYPE_CHECKING:
    from torch import nn

TARGET = "tensorrt-rtx"
PRECISIONS = ("fp32", "fp16", "bf16", "int8", "fp8", "int4")
SHAPES = ("dynamic", "static")
BUILT, BUG = "built", 70
_SECONDS = re.compile(rf"convert {TARGET}(?:-(\w+))? +([\d.]+) s")
# Architectures of all families: those that users convert to TensorRT most, and some hard ones.
CHOSEN = (
    "bert", "roberta", "distilbert", "electra", "albert", "deberta-v2", "modernbert", "t5", "bart",
    "gpt2", "llama", "qwen2", "mistral", "gemma", "phi", "vit", "deit", "swin", "dinov2", "beit",
    "mobilevit", "levit", "convnext", "resnet", "regnet", "mobilenet-v2", "efficientnet",
    "resnet-plain", "mobilenet-plain", "densenet", "inception", "unet", "detr", "yolos",
    "yolo-head", "ssd", "segformer", "dpt", "clip", "siglip", "wav2vec2", "whisper", "patchtst",
    "lstm-tagger", "gru-bidirectional", "tcn", "mlp-mixer", "dlrm", "vae-decoder",
)  # fmt: skip
_SHIPPED = Path(digits.__file__).with_name("digits.safetensors")
_IDS = ("ids:int64[batch=1..4,seq=2..32]{0..999}", "mask:int64[batch=1..4,seq=2..32]{0..1}")
_SAMPLE = "sample"  # their family


def _sample(
    factory: str, make: Callable[[], nn.Module], inputs: Sequence[str], *arguments: str
) -> Case:
    """A sample model as a case: `options` name its own factory."""
    given = [part for argument in arguments for part in ("--model-arg", argument)]
    return Case(
        name=f"sample-{factory.partition(':')[0]}",
        family=_SAMPLE,
        build=make,
        inputs=tuple(inputs),
        options=("--model", f"modelc.sample_models.{factory}", *given),
    )


# Small sizes: the engines of larger ones differ in nothing that is looked at here.
SAMPLES = (
    _sample("digits:build", digits.build, digits.SIGNATURE),
    _sample("gate:gate", gate.gate, gate.SIGNATURE),
    _sample("lstm:tagger", lstm.tagger, lstm.SIGNATURE),
    _sample("nested:detector", nested.detector, nested.SIGNATURE),
    _sample("resnet:resnet50", resnet.resnet50, ("image:float32[batch=1..2,3,64,64]",)),
    _sample("encoder:bert", lambda: encoder.bert(2, 64, heads=4, vocab=1000), _IDS,
            "layers=2", "hidden=64", "heads=4", "vocab=1000"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EngineResult:
    """What came of one engine: `built`, or the state of the step that stopped it, with the reason.

    `seconds` are those of the build, `size` is in bytes; `layers` counts the engine's compute
    layers by the dtype of their operands.
    """

    case: str
    shapes: str
    precision: str
    state: str
    reason: str = ""
    seconds: float = 0.0
    size: int = 0
    exit_code: int = 0
    layers: dict[str, int] = field(default_factory=dict)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what has no result yet and write the table; 1 where modelc ended with a bug."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="names, as 'bert*'; with commas between")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one export")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--write", type=Path, help="the table to write")
    args = parser.parse_args(argv)
    args.out = args.out.resolve()  # each export has a folder of its own
    args.out.mkdir(parents=True, exist_ok=True)
    log = args.out / "results.jsonl"
    known = {(one.case, one.shapes) for one in read_results(log)}
    patterns = args.only.split(",") if args.only else (*CHOSEN, "sample-*")
    work = [
        (case, shapes)
        for case in (*SAMPLES, *cases())
        if any(fnmatch(case.name, pattern) for pattern in patterns)
        for shapes in SHAPES
        if (case.name, shapes) not in known
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        runs = [
            pool.submit(build_engines, case, shapes, args.out / f"{case.name}-{shapes}",
                        args.timeout)
            for case, shapes in work
        ]  # fmt: skip
        for run in runs:
            with log.open("a") as stream:
                for one in run.result():
                    stream.write(json.dumps(asdict(one)) + "\n")
                    print(one.case, one.shapes, one.precision, one.state, one.reason[:100])
    results = read_results(log)
    if args.write is not None:
        args.write.write_text(make_table(results))
    return int(any(one.exit_code == BUG for one in results))


def read_results(log: Path) -> list[EngineResult]:
    """Read the results so far."""
    lines = log.read_text().splitlines() if log.is_file() else []
    return [EngineResult(**json.loads(line)) for line in lines]


def build_engines(
    case: Case, shapes: str, folder: Path, timeout: float, precisions: Sequence[str] = PRECISIONS
) -> list[EngineResult]:
    """Export one case in a process of its own, and remove its files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = _export_command(case, shapes, _save_checkpoint(case, folder), precisions)
    try:
        ran = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=timeout
        )
        code, said, printed = ran.returncode, ran.stderr, ran.stdout
    except subprocess.TimeoutExpired:
        code, said, printed = -1, f"no result after {timeout:g} s", ""
    results = list(_read_states(case.name, shapes, precisions, (code, said, printed)))
    results = [replace(one, layers=_count_layers(folder, one.precision)) for one in results]
    shutil.rmtree(folder)
    return results


def _save_checkpoint(case: Case, folder: Path) -> Path:
    if case.name == "sample-digits":
        return _SHIPPED
    return save(case.build() if case.family == _SAMPLE else build(case.name), folder)


def _count_layers(folder: Path, precision: str) -> dict[str, int]:
    """Count the compute layers in an engine's sidecar by dtype; empty where none is built."""
    stem = "model" if precision == "fp32" else f"model.{precision}"
    sidecar = folder / "out" / "pending" / f"{stem}.rtx.engine.json"
    layers = json.loads(sidecar.read_text())["layers"] if sidecar.is_file() else []
    return dict(Counter(one["dtype"] for one in layers if one["computes"]))


def _export_command(
    case: Case, shapes: str, checkpoint: Path, precisions: Sequence[str]
) -> list[str]:
    asked = [part for text in case.inputs for part in ("--input", text)]
    targets = [part for one in precisions for part in ("--to", f"{TARGET}:{one}")]
    fixed = sorted({
        dim.name for spec in signature_of(case).inputs for dim in spec.dims
        if dim.dynamic and dim.name and dim.name.isidentifier()
    })  # fmt: skip
    static = [part for name in fixed for part in ("--static", name)] if shapes == "static" else []
    samples = str(_SHIPPED.with_name("digits_calib")) if checkpoint == _SHIPPED else "random"
    calibrated = not QUANTIZED.isdisjoint(precisions)
    calib = ["--calib", samples, "--calib-samples", "16"] if calibrated else []
    factory = ["--model", FACTORY, "--model-arg", f"name={case.name}"]
    return [
        sys.executable, "-m", "modelc", "export", str(checkpoint), *asked, *case.options,
        *([] if case.family == _SAMPLE else factory), *targets, *static, *calib,
        "--sensitivity", "0", "--no-cache", "-o", "out", "--json",
    ]  # fmt: skip


def _read_states(
    case: str, shapes: str, precisions: Sequence[str], ran: tuple[int, str, str]
) -> Iterator[EngineResult]:
    """Yield the result of each precision, from the manifest and the lines of progress."""
    code, said, printed = ran
    times = {name or "fp32": float(text) for name, text in _SECONDS.findall(said)}
    try:
        manifest: dict[str, Any] = json.loads(printed)
    except json.JSONDecodeError:
        manifest = {}
    steps = {one["step"]: one for one in manifest.get("pending", [])}
    failures = {one["step"]: one["message"] for one in manifest.get("failures", [])}
    for precision in precisions:
        name = TARGET if precision == "fp32" else f"{TARGET}-{precision}"
        stopped = manifest.get("error", {}).get("message")  # of an export without a manifest
        state, reason, size = "failed", stopped or said.strip()[-300:], 0
        if files := steps.get(name, {}).get("files"):
            state, reason, size = BUILT, "", files[0]["size"]
        elif name in steps:
            state, reason = "pending", steps[name]["reason"]
        elif "verdicts" in manifest:
            state, reason = _find_stop(manifest, failures, name, precision)
        yield EngineResult(
            case=case, shapes=shapes, precision=precision, state=state, reason=reason,
            seconds=times.get(precision, 0.0), size=size, exit_code=code,
        )  # fmt: skip


def _find_stop(
    manifest: Mapping[str, Any], failures: Mapping[str, str], name: str, precision: str
) -> tuple[str, str]:
    """Return the state and the reason of the first step on the way to the engine that stopped."""
    prepared = name.replace(TARGET, "tensorrt-onnx")
    for step in ("onnx", prepared, name):
        rejected = next(
            (one for one in manifest["verdicts"] if one["artifact"] == f"rejected/{step}"), None
        )
        if rejected is not None:
            reasons = [one["text"] for one in rejected.get("reasons", [])]
            return f"{step} rejected", "; ".join(reasons)[:300]
        if step in failures:
            return f"{step} failed", failures[step][:300]
    return "failed", f"no result of {precision}"


def make_table(results: Sequence[EngineResult]) -> str:
    """Return the page: counts by precision, a row for each architecture, and what was stopped."""
    counts = Counter((one.precision, one.shapes) for one in results if one.state == BUILT)
    total = Counter((one.precision, one.shapes) for one in results)
    lines = [_describe_run(), "", "| precision | dynamic | static |", "| --- | --- | --- |"]
    for precision in PRECISIONS:
        cells = [f"{counts[precision, one]} of {total[precision, one]}" for one in SHAPES]
        lines.append(f"| {precision} | {' | '.join(cells)} |")
    lines += [
        "",
        f"| architecture | shapes | {' | '.join(PRECISIONS)} |",
        "| --- " * (len(PRECISIONS) + 2) + "|",
    ]
    rows: dict[tuple[str, str], dict[str, EngineResult]] = {}
    for one in results:
        rows.setdefault((one.case, one.shapes), {})[one.precision] = one
    for (case, shapes), row in sorted(rows.items()):
        lines.append(f"| {case} | {shapes} | {' | '.join(_cell(row.get(p)) for p in PRECISIONS)} |")
    stopped = sorted({
        f"- {one.case} {one.shapes} {one.precision}: {one.state}: {' '.join(one.reason.split())}"
        for one in results if one.state != BUILT
    })  # fmt: skip
    return "\n".join([*lines, "", *stopped]) + "\n"


def _describe_run() -> str:
    """Return the date, the versions and the machine of the table in one line."""
    packages = ("tensorrt-rtx-cu13", "torch", "transformers", "onnxruntime-gpu", "nvidia-modelopt")
    versions = ", ".join(f"{name} {one}" for name, one in package_versions(*packages).items())
    return f"{date.today()}, {versions}, {platform.machine()} with {os.cpu_count()} cores, no GPU."


def _cell(one: EngineResult | None) -> str:
    if one is None:
        return ""
    if one.state != BUILT:
        return one.state.rpartition(" ")[2]
    layers = ", ".join(f"{count} {dtype}" for dtype, count in sorted(one.layers.items()))
    return f"{one.seconds:.1f} s, {one.size / 1e6:.1f} MB" + (f", {layers}" if layers else "")


if __name__ == "__main__":
    raise SystemExit(main())
