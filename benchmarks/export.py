"""How long `modelc export` takes beside the plain script: python benchmarks/export.py.

The ResNet-50-sized sample model to ONNX, validated: modelc against plain_export.py, which exports,
opens the file and compares one feed. Whole processes, run in turn; exits 1 beyond --limit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from modelc.benchmarks.side_by_side import Contender, compare, verdict

INPUT = "image:float32[batch=1..4,3,224,224]"


def main() -> int:
    """Read the options, write a checkpoint, time both, print, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="turns of each")
    parser.add_argument("--limit", type=float, default=1.25, help="largest ratio that passes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = _write_checkpoint(Path(folder))
        ours = Contender(name="modelc export", argv=_ours(checkpoint))
        plain = Contender(name="plain script", argv=_plain(checkpoint))
        ratio = compare(ours, plain, runs=args.runs)
    return verdict(ratio, args.limit)


def _write_checkpoint(folder: Path) -> Path:
    make = [sys.executable, "-m", "modelc.sample_models.make", "resnet", "-o", str(folder)]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    return folder / "resnet.safetensors"


def _ours(checkpoint: Path) -> list[str]:
    model = ["--model", "modelc.sample_models.resnet:resnet50", "--input", INPUT]
    out = ["--to", "onnx", "-o", str(checkpoint.with_name("ours"))]
    return [sys.executable, "-m", "modelc", "export", str(checkpoint), *model, *out]


def _plain(checkpoint: Path) -> list[str]:
    script = Path(__file__).with_name("plain_export.py")
    return [sys.executable, str(script), str(checkpoint), str(checkpoint.with_name("plain.onnx"))]


if __name__ == "__main__":
    sys.exit(main())
