"""Which architectures TensorRT-RTX builds: python -m modelc.benchmarks.tensorrt_rtx --out DIR.

Each case of tests/nets is exported as its user would, with `--to tensorrt-rtx` in four precisions,
once with its dynamic dims and once with all of them fixed. No GPU is needed, and nothing is run on
one: an engine that is built stays pending. DIR/results.jsonl holds the results, and a run goes on
where the last one stopped; --write writes the table. Exits 1 where modelc ends with a bug.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from modelc.benchmarks.coverage_feeds import signature_of
from modelc.benchmarks.coverage_run import save
from modelc.tests.nets.cases import FACTORY, Case, build, cases

TARGET = "tensorrt-rtx"
PRECISIONS = ("fp32", "fp16", "bf16", "int8")
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


@dataclass(frozen=True, kw_only=True)
class EngineResult:
    """What came of one engine: `built`, or the state of the step that stopped it, with the reason.

    `seconds` are those of the build, `size` is in bytes.
    """

    case: str
    shapes: str
    precision: str
    state: str
    reason: str = ""
    seconds: float = 0.0
    size: int = 0
    exit_code: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run what has no result yet and write the table; 1 where modelc ended with a bug."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="names, as 'bert*'; with commas between")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one export")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--write", type=Path, help="the table to write")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    log = args.out / "results.jsonl"
    known = {(one.case, one.shapes) for one in read_results(log)}
    patterns = args.only.split(",") if args.only else CHOSEN
    work = [
        (case, shapes)
        for case in cases()
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
    checkpoint = save(build(case.name), folder)
    command = _export_command(case, shapes, checkpoint, precisions)
    try:
        ran = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=timeout
        )
        code, said, printed = ran.returncode, ran.stderr, ran.stdout
    except subprocess.TimeoutExpired:
        code, said, printed = -1, f"no result after {timeout:g} s", ""
    results = list(_read_states(case.name, shapes, precisions, (code, said, printed)))
    shutil.rmtree(folder)
    return results


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
    int8 = ["--calib", "random", "--calib-samples", "16"] if "int8" in precisions else []
    return [
        sys.executable, "-m", "modelc", "export", str(checkpoint), "--model", FACTORY,
        "--model-arg", f"name={case.name}", *asked, *case.options, *targets, *static, *int8,
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
        state, reason, size = "failed", said.strip()[-300:], 0
        if files := steps.get(name, {}).get("files"):
            state, reason, size = BUILT, "", files[0]["size"]
        elif name in steps:
            state, reason = "pending", steps[name]["reason"]
        elif manifest:
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
    lines = ["| precision | dynamic | static |", "| --- | --- | --- |"]
    for precision in PRECISIONS:
        cells = [f"{counts[precision, one]} of {total[precision, one]}" for one in SHAPES]
        lines.append(f"| {precision} | {' | '.join(cells)} |")
    lines += ["", f"| architecture | shapes | {' | '.join(PRECISIONS)} |", "| --- " * 6 + "|"]
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


def _cell(one: EngineResult | None) -> str:
    if one is None:
        return ""
    if one.state != BUILT:
        return one.state.rpartition(" ")[2]
    return f"{one.seconds:.1f} s, {one.size / 1e6:.1f} MB"


if __name__ == "__main__":
    raise SystemExit(main())
