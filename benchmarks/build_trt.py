"""Time and memory of preparing an INT8 engine: python benchmarks/build_trt.py.

The BERT-sized sample model, from its FP32 ONNX: `modelc build-trt --int8 --prepare-only`, which
quantizes, judges against eager on held-out samples and looks ahead, with all quantizers and with
ModelOpt alone, beside ModelOpt called by hand (plain_modelopt.py). Whole processes, in turn.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

INPUTS = ("ids:int64[batch=1..4,seq=2..128]{0..30521}", "mask:int64[batch=1..4,seq=2..128]{0..1}")
LENGTH = 64  # tokens of a calibration sample
WORDS = 30522


def main() -> int:
    """Read the options, write the material, run all three in turn, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1, help="turns of each")
    parser.add_argument("--samples", type=int, default=32, help="calibration samples")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        exported = _export(folder)
        calib = _write_samples(folder / "calib", args.samples)
        sides = {
            "ModelOpt by hand": _plain(exported, calib, folder),
            "modelc --quantizer modelopt": _ours(exported, calib, folder, "modelopt"),
            "modelc (auto)": _ours(exported, calib, folder, "auto"),
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(args.runs):
            for side, argv in sides.items():
                taken[side].append(_run(argv, folder))
    print(f"{'':<30} {'seconds':>9} {'peak RSS':>10}")
    for side, figures in taken.items():
        seconds, peak = (median(one) for one in zip(*figures, strict=True))
        print(f"{side:<30} {seconds:9.1f} {peak:7.2f} GB")
    return 0


def _export(folder: Path) -> Path:
    make = [sys.executable, "-m", "modelc.sample_models.make", "encoder", "-o", str(folder)]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    model = ["--model", "modelc.sample_models.encoder:bert"]
    inputs = [part for text in INPUTS for part in ("--input", text)]
    checkpoint, out = str(folder / "encoder.safetensors"), str(folder / "fp32")
    export = [sys.executable, "-m", "modelc", "export", checkpoint, *model, *inputs]
    subprocess.run([*export, "--to", "onnx", "-o", out, "-q"], check=True, capture_output=True)
    return folder / "fp32" / "model.onnx"


def _write_samples(folder: Path, count: int) -> Path:
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(count):
        ids = generator.integers(0, WORDS, (1, LENGTH))
        mask = (np.arange(LENGTH) < generator.integers(8, LENGTH + 1)).astype(np.int64)[None]
        np.savez(folder / f"{number:04}.npz", ids=ids, mask=mask)
    return folder


def _plain(model: Path, calib: Path, folder: Path) -> list[str]:
    script = str(Path(__file__).with_name("plain_modelopt.py"))
    return [sys.executable, script, str(model), str(calib), str(folder / "plain.onnx")]


def _ours(model: Path, calib: Path, folder: Path, quantizer: str) -> list[str]:
    out = str(folder / f"out-{quantizer}")
    build = [sys.executable, "-m", "modelc", "build-trt", str(model), "--int8", "--prepare-only"]
    options = ["--calib", str(calib), "--quantizer", quantizer, "--no-cache", "-q", "-o", out]
    return [*build, *options]


def _run(argv: list[str], folder: Path) -> tuple[float, float]:
    """Seconds and peak resident gigabytes of one process."""
    began = time.perf_counter()
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen(argv, stdout=said, stderr=said, cwd=folder)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(argv)} failed:\n{(folder / 'said.txt').read_text()[-2000:]}")
    return seconds, usage.ru_maxrss / 1e6


if __name__ == "__main__":
    sys.exit(main())
