"""What `--guard` costs: ONNX Runtime with and without the check, by turns in one process.

`python benchmarks/guard.py` prints the ratio of medians for a small graph (where it weighs most)
and for ResNet-50 at 224 x 224.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import modelc
from modelc.sample_models import digits, resnet

_ROUNDS = 200


def exported(folder: Path, factory: str, net: torch.nn.Module, form: str, *, guard: bool) -> Path:
    """The model as ONNX, in a folder of its own."""
    weights, out = folder / "weights.pt", folder / ("guarded" if guard else "plain")
    torch.save(net.state_dict(), weights)
    manifest = modelc.export(
        weights, to=["onnx"], out=out, model=factory, inputs=[form], guard=guard
    ).manifest
    if not manifest.passed:
        raise SystemExit(f"{factory} was not exported: {manifest.failures}")
    return out / "model.onnx"


def ratio(plain: Path, guarded: Path, feed: np.ndarray, rounds: int) -> tuple[float, float]:
    """Median seconds with the guard over those without, runs by turns; and those without."""
    sessions = [
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        for path in (plain, guarded)
    ]
    name = sessions[0].get_inputs()[0].name
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for session, found in zip(sessions, seconds, strict=True):
            began = time.perf_counter()
            session.run(None, {name: feed})
            found.append(time.perf_counter() - began)
    plainly = statistics.median(seconds[0])
    return statistics.median(seconds[1]) / plainly, plainly


def main() -> None:
    """Measure both models."""
    cases = (
        ("modelc.sample_models.digits:build", digits.build(), "x:float32[batch=1..8,1,8,8]",
         (1, 1, 8, 8), 2000),
        ("modelc.sample_models.resnet:resnet50", resnet.resnet50(),
         "image:float32[batch=1..4,3,224,224]", (1, 3, 224, 224), 30),
    )  # fmt: skip
    for factory, net, form, shape, rounds in cases:
        with tempfile.TemporaryDirectory() as folder:
            plain, guarded = (
                exported(Path(folder), factory, net.eval(), form, guard=guard)
                for guard in (False, True)
            )
            times, seconds = ratio(plain, guarded, np.ones(shape, np.float32), rounds)
        print(f"{factory}: {times:.3f} of {seconds * 1000:.3f} ms without the guard")


if __name__ == "__main__":
    main()
