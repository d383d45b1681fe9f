"""What an export costs: wall time, CPU time and peak memory; writes build/benchmarks/cost.md.

python benchmarks/cost.py [--only nets|depth|targets|memory] [--layers 6 12 24 48] [--runs 3]

Whole processes, run in turn; the least of the runs counts. `depth` is the sample encoder with more
and more layers, in two widths, beside a plain script that exports and compares one feed. `targets`
is one run for three formats beside a run for each. `nets` are those of cost_nets.py beside a plain
script each; with `--before FOLDER` beside modelc as it is there (with cost_nets.py copied in).
`memory` exports a model of 2.2 GiB. Results are kept in the JSON file by what was measured, so that
a part can be measured again alone; the page is written from all of it. Linux only. Exits 1 where a
target is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from modelc.benchmarks.cost_page import LIMITS, find_misses, page
from modelc.benchmarks.process_cost import costs_in_turn
from modelc.tests.nets.cost_nets import NETS, write

ROOT = Path(__file__).parents[1]
FACTORY = "modelc.sample_models.encoder:bert"
DEPTHS = (6, 12, 24, 48)
WIDTHS = (64, 128)
FORMATS = ("torchscript", "onnx", "openvino")
LARGE = {"layers": 7, "hidden": 2560, "heads": 16, "vocab": 16000}  # 2.2 GiB of float32
_MAKE = (
    "import json, sys; from safetensors.torch import save_file; "
    "from modelc.sample_models.encoder import bert; "
    "save_file(bert(**json.loads(sys.argv[1])).state_dict(), sys.argv[2])"
)


def least(argvs: Mapping[str, Sequence[str]], runs: int) -> dict[str, dict[str, float]]:
    """The least of each measure over `runs` turns."""
    return {
        name: {key: min(asdict(cost)[key] for cost in costs) for key in ("wall", "cpu", "peak")}
        for name, costs in costs_in_turn(argvs, runs).items()
    }


def checkpoint(arguments: dict[str, int], folder: Path) -> Path:
    """Write the encoder's weights; they lie there from the last time, or are made."""
    path = folder / f"{'-'.join(f'{key}{value}' for key, value in arguments.items())}.safetensors"
    if not path.exists():
        argv = [sys.executable, "-c", _MAKE, json.dumps(arguments), str(path)]
        subprocess.run(argv, check=True)
    return path


def ours(path: Path, arguments: dict[str, int], formats: Sequence[str], out: Path) -> list[str]:
    """The command line of modelc."""
    dims = "batch=1..4,seq=2..16"
    argv = [sys.executable, "-m", "modelc", "export", str(path), "--model", FACTORY, "--overwrite"]
    for key, value in arguments.items():
        argv += ["--model-arg", f"{key}={value}"]
    argv += ["--input", f"ids:int64[{dims}]{{0..999}}", "--input", f"mask:int64[{dims}]{{0..1}}"]
    for name in formats:
        argv += ["--to", name]
    return [*argv, "-q", "-o", str(out)]


def _plain(path: Path, arguments: dict[str, int], out: Path) -> list[str]:
    script = str(Path(__file__).with_name("cost_plain.py"))
    return [sys.executable, script, "onnx", str(path), str(out), json.dumps(arguments)]


def depth(folder: Path, layers: Sequence[int], runs: int) -> dict[str, Any]:
    """By `LAYERSxHIDDEN`: modelc to ONNX, and the plain script."""
    found: dict[str, Any] = {}
    for hidden in WIDTHS:
        for count in layers:
            arguments = {"layers": count, "hidden": hidden, "heads": 4, "vocab": 1000}
            path = checkpoint(arguments, folder)
            argvs = {
                "plain": _plain(path, arguments, folder / "plain.onnx"),
                "modelc": ours(path, arguments, ["onnx"], folder / "depth"),
            }
            found[f"{count}x{hidden}"] = least(argvs, runs)
    return found


def targets(folder: Path, runs: int) -> dict[str, Any]:
    """One, two and three formats in one run, and each in a run of its own."""
    arguments = {"layers": 6, "hidden": 64, "heads": 4, "vocab": 1000}
    path = checkpoint(arguments, folder)
    asked = [*((name,) for name in FORMATS), FORMATS[:2], FORMATS]
    argvs = {
        "+".join(one): ours(path, arguments, one, folder / f"to-{'-'.join(one)}") for one in asked
    }
    return least(argvs, runs)


def nets(folder: Path, runs: int, before: Path | None) -> dict[str, Any]:
    """Nets of usual size to ONNX: the plain script, modelc as it was before, and modelc."""
    found: dict[str, Any] = {}
    for name, net in NETS.items():
        path = write(name, folder)
        argv = [sys.executable, "-m", "modelc", "export", str(path), "--model", net.factory]
        argv += [part for text in net.arguments for part in ("--model-arg", text)]
        argv += [part for text in net.inputs for part in ("--input", text)]
        argv += ["--to", "onnx", "--overwrite", "-q", "-o", str(folder / name)]
        plain = str(Path(__file__).with_name("cost_nets.py"))
        argvs = {"plain": [sys.executable, plain, name, str(path), str(folder / "plain.onnx")]}
        if before is not None:
            argvs["before"] = ["env", f"PYTHONPATH={before}", *argv]
        found[name] = least({**argvs, "modelc": argv}, runs)
    return found


def memory(folder: Path) -> dict[str, Any]:
    """The large model to ONNX, step by step."""
    path = checkpoint(LARGE, folder)
    dims = "batch=1..2,seq=2..8"
    asked = {
        "checkpoint": str(path),
        "to": ["onnx"],
        "out": str(folder / "large"),
        "model": FACTORY,
        "model_args": {key: str(value) for key, value in LARGE.items()},
        "inputs": [f"ids:int64[{dims}]{{0..999}}", f"mask:int64[{dims}]{{0..1}}"],
        "overwrite": True,
    }
    script = str(Path(__file__).with_name("cost_steps.py"))
    argv = [sys.executable, script, json.dumps(asked)]
    ran = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    return {"weights": path.stat().st_size, "steps": lines[:-1], "end": lines[-1]}


def main() -> int:
    """Measure what is asked, keep it, write the page; the exit code says whether limits hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["nets", "depth", "targets", "memory"])
    parser.add_argument("--layers", type=int, nargs="+", default=list(DEPTHS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "modelc-cost"))
    parser.add_argument("--page", type=Path, default=ROOT / "build" / "benchmarks" / "cost.md")
    parser.add_argument("--before", type=Path, help="a folder that holds another modelc")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    store = args.folder / "cost.json"
    results: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
    if args.only in (None, "nets"):
        results["nets"] = nets(args.folder, args.runs, args.before)
    if args.only in (None, "depth"):
        results.setdefault("depth", {}).update(depth(args.folder, args.layers, args.runs))
    if args.only in (None, "targets"):
        results["targets"] = targets(args.folder, args.runs)
    if args.only in (None, "memory"):
        results["memory"] = memory(args.folder)
    store.write_text(json.dumps(results, indent=1))
    args.page.parent.mkdir(parents=True, exist_ok=True)
    args.page.write_text(page(results), encoding="utf-8")
    beyond = find_misses(results)
    print("\n".join(beyond) or f"within all limits: {LIMITS}")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
