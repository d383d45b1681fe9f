"""Asks released runtimes themselves: python benchmarks/runtimes.py 1.17.3 1.20.1 [--work DIR].

For each ONNX Runtime a virtual environment is made (pip, so PyPI must be reachable). There the
wheel is asked which opsets and IR versions it loads, next to what
`converters/onnx_compatibility.py` says; and it loads and runs what modelc makes with
`--for onnxruntime==VERSION`, in each precision, next to the ONNX Runtime here on the same feeds.
Exits with 1 where the table says more than the wheel does, or a model does not load or gives
something else.

With `--ask FOLDER` it is the other side: run by the environment's Python, it needs no modelc.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelc.pipeline.order import Order

ROOT = Path(__file__).resolve().parent.parent
PRECISIONS = ("fp32", "fp16", "int8")  # no wheel for the CPU has convolutions in bf16
ODD = 3  # a batch that is neither end of its range
# Both runtimes compute the same graph in the same types; kernels of other years sum otherwise.
# Relative to the peak; in half precision and INT8 one rounding that falls the other way is a step.
WITHIN = {"fp32": 1e-4, "fp16": 1e-2, "int8": 5e-2}


def main() -> int:
    """Ask every release that was named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=["1.17.3", "1.20.1"])
    parser.add_argument("--work", type=Path, help="keeps environments and models for another time")
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    answer_folder = parser.parse_args()
    if answer_folder.ask is not None:
        print(json.dumps(answer(answer_folder.ask)))
        return 0
    with tempfile.TemporaryDirectory() as passing:
        work = (answer_folder.work or Path(passing)).resolve()
        return max(compare(version, work) for version in answer_folder.versions)


def compare(version: str, work: Path) -> int:
    """Print what one release loads and runs; 1 where it is less than is promised."""
    from modelc.converters.onnx_compatibility import parse_runtime

    limits = parse_runtime(f"onnxruntime=={version}").limits
    python = environment(version, work / "env" / version)
    folder = work / "models" / version
    made = {name: make(name, version, folder) for name in MODELS}
    command = [str(python), __file__, "--ask", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    wheel, promised = said["limits"], [limits.opset, limits.ir, limits.ml]
    print(f"onnxruntime {said['version']}: loads opset, IR, ai.onnx.ml {wheel}; table {promised}")
    worse = any(got < want for got, want in zip(wheel, promised, strict=True))
    for name, refusals in made.items():
        for precision in PRECISIONS:
            key = f"{name} {precision}"
            text = refusals.get(precision) or format_row(said["models"].get(key), precision)
            worse = worse or text.startswith("WRONG")
            print(f"  {key:16} {text}")
    return int(worse)


def format_row(found: dict[str, Any] | None, precision: str) -> str:
    """One model's line."""
    if found is None:
        return "WRONG: not made, and nobody said why"
    if found["error"]:
        return f"WRONG: {found['error']}"
    state = "" if found["apart"] <= WITHIN[precision] else "WRONG: "
    return f"{state}opset {found['opset']}, IR {found['ir']}, apart by {found['apart']:.1e} of peak"


def environment(version: str, place: Path) -> Path:
    """The Python of a virtual environment with that ONNX Runtime."""
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        wanted = [f"onnxruntime=={version}", "numpy<2"]
        subprocess.run([python, "-m", "pip", "-q", "install", *wanted], check=True)
    return python


def make(name: str, version: str, folder: Path) -> dict[str, str]:
    """Export one model in all precisions, with feeds and what the runtime here gives.

    Returns:
        why a precision was rejected, by precision.
    """
    from modelc.core.errors import UsageError
    from modelc.pipeline.run_order import run

    rejected: dict[str, str] = {}
    for precision in PRECISIONS:
        out = folder / f"{name} {precision}"
        if (out / "expected.npz").exists():
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                manifest = run(order(name, precision, version, out))
        except UsageError as error:
            rejected[precision] = f"rejected before anything was made: {error.message}"
            continue
        if not manifest.passed:
            found = [f.message for f in manifest.failures] or [v.reason for v in manifest.verdicts]
            rejected[precision] = f"WRONG: not made: {next(filter(None, found), '?')}"
            continue
        expect(out, precision)
    return rejected


def order(name: str, precision: str, version: str, out: Path) -> Order:
    """What `modelc export --to onnx:PRECISION --for onnxruntime==VERSION` carries out."""
    from modelc.calibration.calibration_options import CalibrationOptions
    from modelc.core.kinds import Precision
    from modelc.pipeline.order import Lowering, Order, Source, Wanted

    int8 = CalibrationOptions(source="random" if name != "digits" else str(CALIBRATION))
    calibration = int8 if precision == "int8" else None
    return Order(
        source=Source(checkpoint=checkpoint(name, out.parent), **MODELS[name]),
        wanted=(Wanted(target="onnx", precision=Precision(precision)),),
        out=out,
        lowering=Lowering(
            calibration=calibration, quantizer="onnxruntime" if calibration else None
        ),
        runtimes=(f"onnxruntime=={version}",),
    )


CALIBRATION = ROOT / "sample_models" / "digits_calib"
MODELS: dict[str, dict[str, Any]] = {
    "digits": {
        "model": "modelc.sample_models.digits:build",
        "inputs": ("x:float32[batch=1..8,1,8,8]",),
    },
    "bert": {
        "model": "modelc.sample_models.encoder:bert",
        "model_args": {"layers": "2", "hidden": "64", "heads": "4", "vocab": "100"},
        "inputs": (
            "ids:int64[batch=1..4,seq=2..16]{0..99}",
            "mask:int64[batch=1..4,seq=2..16]{0..1}",
        ),
    },
}


def checkpoint(name: str, folder: Path) -> Path:
    """The model's weights: shipped, or drawn from a seed."""
    if name == "digits":
        return ROOT / "sample_models" / "digits.safetensors"
    import torch
    from safetensors.torch import save_file

    from modelc.sample_models import encoder

    path = folder / f"{name}.safetensors"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        save_file(encoder.bert(2, 64, heads=4, vocab=100).state_dict(), path)
    return path


def expect(out: Path, precision: str) -> None:
    """Draw a feed and write it with what the ONNX Runtime here gives on it."""
    import numpy as np
    import onnxruntime

    (path,) = [p for p in out.glob("*.onnx") if (precision in p.name) or precision == "fp32"]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    feed: dict[str, Any] = {}
    for value in session.get_inputs():
        shape = [dim if isinstance(dim, int) else ODD for dim in value.shape]
        feed[value.name] = (
            generator.standard_normal(shape).astype(np.float32)
            if "float" in value.type
            else generator.integers(0, 2, shape).astype(np.int64)
        )
    names = [value.name for value in session.get_outputs()]
    found = dict(zip(names, session.run(names, feed), strict=True))
    options = json.loads((out / "manifest.json").read_text("utf-8"))["artifacts"][-1]["options"]
    np.savez(
        out / "expected.npz",
        **{f"in:{name}": array for name, array in feed.items()},
        **{f"out:{name}": array for name, array in found.items()},
        model=path.name,
        opset=options["opset"],
        ir=options["ir"],
    )


def answer(folder: Path) -> dict[str, Any]:
    """In the environment: what this wheel loads, and how far apart each model's outputs are."""
    import onnxruntime

    models = {
        path.parent.name: answer_folder(path) for path in sorted(folder.glob("*/expected.npz"))
    }
    return {"version": onnxruntime.__version__, "limits": probe_limits(), "models": models}


def answer_folder(expected: Path) -> dict[str, Any]:
    """Load and run one model."""
    import numpy as np
    import onnxruntime

    stored = np.load(expected)
    form = {name: str(stored[name]) for name in ("opset", "ir")}
    try:
        session = onnxruntime.InferenceSession(
            str(expected.parent / str(stored["model"])), providers=["CPUExecutionProvider"]
        )
        feed = {name[3:]: stored[name] for name in stored.files if name.startswith("in:")}
        names = [value.name for value in session.get_outputs()]
        found = session.run(names, feed)
    except Exception as error:  # noqa: BLE001 - the runtime's edge: it raises anything
        return {**form, "error": str(error).splitlines()[0][:200], "apart": 0.0}
    apart = 0.0
    for name, array in zip(names, found):  # noqa: B905 - an older Python may run this
        want = stored[f"out:{name}"]
        if want.shape != array.shape or want.dtype != array.dtype:
            return {**form, "error": f"{name} is {array.dtype} {array.shape}", "apart": 0.0}
        peak = float(np.abs(want.astype(np.float64)).max()) or 1.0
        apart = max(apart, float(np.abs(want.astype(np.float64) - array).max()) / peak)
    return {**form, "error": "" if np.isfinite(apart) else "not finite", "apart": apart}


def probe_limits() -> list[int]:
    """The newest opset, IR version and opset of ai.onnx.ml of which a model of one Relu loads."""
    return [
        max(n for n in range(7, 40) if loads(min(n, 7), n)),
        max(n for n in range(3, 40) if loads(n, 13)),
        max(n for n in range(1, 20) if loads(7, 13, ml=n)),
    ]


def loads(ir: int, opset: int, *, ml: int = 0) -> bool:
    """Whether a model of one Relu, so stamped, loads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(set_versions(ir, opset, ml), options, ["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 - the runtime's edge: any refusal is the answer
        return False
    return True


def set_versions(ir: int, opset: int, ml: int) -> bytes:
    """The model in protobuf's own bytes: no onnx is in the environment."""

    def part(number: int, content: bytes | int) -> bytes:
        if isinstance(content, int):
            return bytes([number << 3, content])  # all numbers here are below 128
        return bytes([number << 3 | 2, len(content)]) + content

    def value(name: bytes) -> bytes:
        shape = part(1, part(1, 2))
        return part(1, name) + part(2, part(1, part(1, 1) + part(2, shape)))

    node = part(1, b"x") + part(2, b"y") + part(4, b"Relu")
    graph = part(1, node) + part(2, b"g") + part(11, value(b"x")) + part(12, value(b"y"))
    opsets = part(8, part(2, opset))
    if ml:
        opsets += part(8, part(1, b"ai.onnx.ml") + part(2, ml))
    return part(1, ir) + part(7, graph) + opsets


if __name__ == "__main__":
    sys.exit(main())
