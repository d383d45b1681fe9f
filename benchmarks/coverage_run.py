"""One case of coverage.py in a process of its own: NAME FOLDER PART [PART].

Writes FOLDER/modelc.json or FOLDER/raw.json: what came of each target, by modelc or by raw calls.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelc.tests.nets.cases import FACTORY, Case, build, case_named

if TYPE_CHECKING:
    from torch import nn

    from modelc.benchmarks.coverage_check import Disagreement, Truth

PARTS = ("modelc", "raw", "unstated")
UNSTATED = "unstated"  # modelc on a sample, with names for dims and no ranges
RAW = ("onnx dynamo", "onnx legacy", "jit.trace", "jit.script", "torch.export")
TARGETS = ("torchscript", "onnx", "openvino", "pt2")
RIGHT, REJECTED, WRONG, CRASHED = "right", "rejected", "WRONG", "crashed"
BUG = 70  # modelc's exit code for a bug of its own
_LAST = 400  # characters of a process's last words
_LAST_OF_LOG = 300


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one case by one path; `capture` says how, with the rewrites that it took."""

    result: str
    reason: str = ""
    hint: str = ""
    capture: str = ""
    exit_code: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[[Sequence[str], Path], Ran]  # runs a command line in a folder


def run_fresh(argv: Sequence[str], folder: Path) -> Ran:
    """Run a command line in a process that is started afresh."""
    ran = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    return Ran(returncode=ran.returncode, stdout=ran.stdout, stderr=ran.stderr)


def main(name: str, folder: Path, parts: Sequence[str], command: Command = run_fresh) -> None:
    """Run the parts of one case; a part's file is written whole, the raw one path by path."""
    warnings.simplefilter("ignore")
    case = case_named(name)
    if "modelc" in parts:
        _write(folder / "modelc.json", _modelc(case, folder, command))
    if UNSTATED in parts:
        _write(folder / f"{UNSTATED}.json", _modelc(case, folder, command, stated=False))
    if "raw" in parts:
        _raw(case, folder)


def _modelc(case: Case, folder: Path, run: Command, *, stated: bool = True) -> dict[str, object]:
    """What modelc makes and says, beside eager; the module is not held while modelc runs."""
    checkpoint = save(build(case.name), folder)
    asked = (
        command(case, checkpoint) if stated else command_without_ranges(case, checkpoint, folder)
    )
    began = time.monotonic()
    ran = run(asked, folder)
    seconds = time.monotonic() - began
    (folder / "stderr.txt").write_text(ran.stderr)
    lost = unmade(ran.returncode, ran.stderr)
    wanted = reference(case, build(case.name))
    try:
        manifest: dict[str, Any] = json.loads(ran.stdout)
    except json.JSONDecodeError:  # no manifest: failed before the first target, or crashed
        found: dict[str, Result] = {}
    else:
        out = folder / ("out" if stated else UNSTATED)
        found = dict(judge_targets(manifest, out, wanted, case))
    return {
        "seconds": round(seconds, 1),
        "exit_code": ran.returncode,
        "feeds": len(wanted.feeds),
        "left_out": wanted.left_out,
        "not_taken": wanted.rejected,
        "results": {target: asdict(found.get(target, lost)) for target in TARGETS},
    }


def command(case: Case, checkpoint: Path) -> list[str]:
    """The command line of a user who wants every format of the case."""
    asked = [part for text in case.inputs for part in ("--input", text)]
    targets = [part for target in TARGETS for part in ("--to", target)]
    return [
        sys.executable, "-m", "modelc", "export", str(checkpoint), "--model", FACTORY,
        "--model-arg", f"name={case.name}", *asked, *case.options, *targets,
        "--sensitivity", "0", "-o", "out", "--json",
    ]  # fmt: skip


def command_without_ranges(case: Case, checkpoint: Path, folder: Path) -> list[str]:
    """The same from a sample, without ranges of dims: only which dims vary is said.

    Sizes that follow from others lose their relation too; integers keep the sample's values.
    """
    import numpy as np

    from modelc.benchmarks.coverage_feeds import example, signature_of

    np.savez(folder / "sample.npz", allow_pickle=False, **dict(example(case)))
    asked = ["--samples", str(folder / "sample.npz")]
    for spec in signature_of(case).inputs:
        names = [_plain_name(dim.name) if dim.dynamic and dim.name else "_" for dim in spec.dims]
        asked += ["--input", f"{spec.name}[{','.join(names)}]{spec.values or ''}"]
    plain = command(case, checkpoint)
    kept = [part for i, part in enumerate(plain) if "--input" not in (part, plain[i - 1])]
    kept[kept.index("-o") + 1] = UNSTATED
    return [*kept, *asked]


def _plain_name(name: str) -> str:
    """A dim that is called by its relation, as `2*seq`, by a word."""
    return "".join(sign if sign.isalnum() else "_" for sign in f"d_{name}")


def save(module: nn.Module, folder: Path) -> Path:
    """The state dict as safetensors; as .pt where tensors are shared, or none are there."""
    import torch
    from safetensors.torch import save_file

    state = module.state_dict()
    try:
        save_file(state, folder / "weights.safetensors")
    except (RuntimeError, ValueError):
        torch.save(state, folder / "weights.pt")
        return folder / "weights.pt"
    return folder / "weights.safetensors"


def reference(case: Case, module: nn.Module, *, caches: bool = True) -> Truth:
    """What eager gives on fresh feeds; the module's state moves on with them."""
    import torch

    from modelc.benchmarks.coverage_check import CLOSE, truth
    from modelc.benchmarks.coverage_feeds import fresh_feeds

    torch.set_num_threads(1)
    feeds, close = fresh_feeds(case), case.close or CLOSE
    return truth(in_float32(module), feeds, close=close, caches=caches)


def in_float32(module: nn.Module) -> nn.Module:
    """The module, in float32 where it was in half precision: modelc documents that it does so."""
    import torch

    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dtype in (torch.float16, torch.bfloat16):
            tensor.data = tensor.data.float()
    return module


def unmade(exit_code: int, stderr: str) -> Result:
    """Why a run gave no word on a target: an error with its hint, or a crash."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("error:")]
    hints = [line for line in lines if line.startswith("hint:")]
    crashed = exit_code < 0 or exit_code == BUG or "Traceback" in stderr or not said
    return Result(
        result=CRASHED if crashed else REJECTED,
        reason=(said or lines or ["nothing was said"])[-1].removeprefix("error:").strip()[:_LAST],
        hint=hints[-1].removeprefix("hint:").strip() if hints else "",
        exit_code=exit_code,
    )


def judge_targets(
    manifest: Mapping[str, Any], out: Path, wanted: Truth, case: Case
) -> Iterator[tuple[str, Result]]:
    """Each target of the manifest; what passed is opened and checked here."""
    verdicts = {one["artifact"]: one for one in manifest["verdicts"]}
    for artifact in manifest["artifacts"]:
        verdict = verdicts.get(artifact["name"], {})
        reason = verdict.get("reason", "it was not judged")
        result = RIGHT if verdict.get("state") == "passed" else REJECTED
        if result == RIGHT:
            path = out / artifact["files"][0]["name"]
            within = inside(wanted, artifact.get("domain"))
            said = "" if within.feeds else "no feed lies in its domain"
            reason = said or check_artifact(artifact["target"], path, within, case).said
            result = WRONG if reason else RIGHT
        yield (
            artifact["target"],
            Result(
                result=result,
                reason=reason,
                capture=_capture(artifact),
                exit_code=0 if result == RIGHT else 1,
                seconds=artifact["seconds"],
            ),
        )
    for failure in manifest["failures"]:
        reason = failure["message"]
        yield (
            failure["step"],
            Result(
                result=CRASHED if failure["exit_code"] == BUG else REJECTED,
                reason=reason,
                hint=failure["hint"],
                exit_code=failure["exit_code"],
            ),
        )


def inside(wanted: Truth, domain: Mapping[str, Any] | None) -> Truth:
    """What eager gives on the feeds that lie in an artifact's domain: it is held to no others."""
    from dataclasses import replace

    if domain is None:
        return wanted
    specs = {spec["name"]: spec["dims"] for spec in domain["inputs"]}
    kept = [
        number
        for number, feed in enumerate(wanted.feeds)
        if all(
            dim["low"] <= size <= dim["high"]
            for name, array in feed.items()
            for dim, size in zip(specs.get(name, ()), array.shape, strict=False)
        )
    ]
    return replace(
        wanted,
        feeds=[wanted.feeds[number] for number in kept],
        outputs=[wanted.outputs[number] for number in kept],
    )


def check_artifact(target: str, path: Path, wanted: Truth, case: Case) -> Disagreement:
    """How an artifact disagrees with eager on fresh feeds."""
    from modelc.benchmarks.coverage_check import Disagreement, disagreement
    from modelc.benchmarks.coverage_feeds import signature_of
    from modelc.benchmarks.open_artifacts import open_by_structure

    inputs = [spec.name for spec in signature_of(case).inputs]
    outputs = list(wanted.outputs[0]) if wanted.outputs else []
    try:
        run = open_by_structure(target, path, inputs, outputs)
    except Exception as error:  # noqa: BLE001 - whatever its runtime raises, it does not open
        return Disagreement(said=f"does not open: {type(error).__name__}: {str(error)[:200]}")
    return disagreement(run, wanted)


def _capture(artifact: Mapping[str, Any]) -> str:
    """`export`, or `trace + a rewrite, another`."""
    rewrites = [str(one) for one in artifact.get("rewrites") or ()]
    return " + ".join(filter(None, [artifact.get("capture") or "", ", ".join(rewrites)]))


def _raw(case: Case, folder: Path) -> None:
    """Path by path, each written down when it is done: one may take the process with it."""
    from modelc.benchmarks.coverage_against import capture_raw
    from modelc.benchmarks.coverage_check import Disagreement

    wanted = reference(case, build(case.name), caches=False)
    results: dict[str, object] = {}
    for name in RAW:
        _write(folder / "raw.json", {"results": {**results, name: asdict(_ENDED)}})
        began = time.monotonic()
        made = capture_raw(name, case, in_float32(build(case.name)), folder)
        wrong = (
            Disagreement(said=made.rejected)
            if made.rejected
            else check_artifact(made.target, made.path, wanted, case)
        )
        outcome = WRONG if wrong.silent else REJECTED if wrong.said else RIGHT
        seconds = round(time.monotonic() - began, 1)
        results[name] = asdict(Result(result=outcome, reason=wrong.said, seconds=seconds))
        _write(folder / "raw.json", {"results": results})


def read_results(folder: Path, parts: Sequence[str], ending: str) -> dict[str, dict[str, Any]]:
    """What a process that ended so left of each part, with its last words where it left nothing."""
    said = (folder / "log.txt").read_text(errors="replace").strip()[-_LAST_OF_LOG:]
    return {part: read_part(folder / f"{part}.json", f"{ending}: {said}") for part in parts}


def read_part(path: Path, ending: str) -> dict[str, Any]:
    """The record that a process left of a part; what it did not come to ended as it did."""
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    keys = RAW if path.stem == "raw" else TARGETS
    return {"results": dict.fromkeys(keys, asdict(Result(result=CRASHED, reason=ending)))}


_ENDED = Result(result=CRASHED, reason="the process ended here")


def _write(path: Path, record: Mapping[str, object]) -> None:
    path.with_suffix(".part").write_text(json.dumps(record))
    path.with_suffix(".part").replace(path)


if __name__ == "__main__":
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    main(sys.argv[1], Path(sys.argv[2]).resolve(), sys.argv[3:])
