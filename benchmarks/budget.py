"""What accuracy-aware INT8 costs and gives: python benchmarks/budget.py.

For each model and consumer: the plain INT8 artifact, then the one that holds a budget of a few dB
more (or `--min-sqnr`): layers kept, SQNR on held-out samples, latency beside FP32, quantizer calls,
seconds; and the same again, which takes all from the cache. Weights of the models are random, so
that only the shape of the table means something. Exits 1 where the budget is not met.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.torch import save_file
from torch import nn

from modelc.calibration.calibration_options import CalibrationOptions
from modelc.core.events import Event, Finished, ignore_events
from modelc.core.findings import TradeOff
from modelc.core.kinds import Precision
from modelc.core.records import Artifact
from modelc.pipeline.order import Judging, Lowering, Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.sample_models import encoder, resnet

CONSUMERS = ("onnx", "openvino", "tensorrt-onnx")
MORE = 3.0  # dB above plain INT8, where no budget is given
SAMPLES = 40


@dataclass(frozen=True, kw_only=True)
class Model:
    """A sample model by its factory, and its inputs."""

    factory: str
    build: nn.Module
    inputs: tuple[str, ...]
    arguments: dict[str, str]


def models(name: str) -> Model:
    """ResNet-50-sized, or BERT of two layers."""
    if name == "resnet":
        return Model(
            factory="modelc.sample_models.resnet:resnet50", build=resnet.resnet50(),
            inputs=resnet.SIGNATURE, arguments={},
        )  # fmt: skip
    return Model(
        factory="modelc.sample_models.encoder:bert",
        build=encoder.bert(2, 64, heads=4, vocab=100),
        inputs=("ids:int64[batch=1..4,seq=2..64]{0..99}", "mask:int64[batch=1..4,seq=2..64]{0..1}"),
        arguments={"layers": "2", "hidden": "64", "heads": "4", "vocab": "100"},
    )


def samples_of(name: str, folder: Path, count: int) -> Path:
    """Noise for the images, padded sentences for the words."""
    draw = np.random.default_rng(0)
    place = folder / f"calib-{name}"
    place.mkdir()
    for index in range(count):
        if name == "resnet":
            image = draw.standard_normal((3, 224, 224)).astype(np.float32)
            np.savez(place / f"{index:03}.npz", image=image)
            continue
        mask = np.ones(32, np.int64)
        mask[int(draw.integers(16, 33)) :] = 0
        np.savez(place / f"{index:03}.npz", ids=draw.integers(0, 100, 32), mask=mask)
    return place


def main() -> int:
    """Read the options, build everything, print the tables, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="resnet, tinybert")
    parser.add_argument("--consumer", action="append", choices=CONSUMERS, help="only this one")
    parser.add_argument("--min-sqnr", type=float, help=f"dB; default {MORE:g} more than plain INT8")
    parser.add_argument("--max-trials", type=int, help="of each search; default: modelc's own")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the frameworks' own
        for model in args.models or ("resnet", "tinybert"):
            folder = Path(name) / model
            folder.mkdir()
            for consumer in args.consumer or CONSUMERS:
                order = order_of(model, consumer, folder, args.samples, args.max_trials)
                failed += not report(model, consumer, order, args.min_sqnr)
    return 1 if failed else 0


def order_of(name: str, consumer: str, folder: Path, samples: int, trials: int | None) -> Order:
    """INT8 for one consumer, its cache in the folder."""
    model = models(name)
    checkpoint, calib = folder / "model.safetensors", folder / f"calib-{name}"
    if not checkpoint.exists():
        save_file(model.build.state_dict(), checkpoint)
        samples_of(name, folder, samples)
    return Order(
        source=Source(
            checkpoint=checkpoint, model=model.factory, model_args=model.arguments,
            inputs=model.inputs,
        ),
        wanted=(Wanted(target=consumer, precision=Precision.INT8),),
        out=folder / f"out-{consumer}",
        lowering=Lowering(
            calibration=CalibrationOptions(source=str(calib)), quantizer="onnxruntime",
            max_trials=trials,
        ),
        cache=folder / "cache",
    )  # fmt: skip


def report(name: str, consumer: str, order: Order, min_sqnr: float | None) -> bool:
    """Print what one model gives for one consumer; whether the budget was met."""
    plain = int8_of(
        run(
            replace(order, lowering=replace(order.lowering, max_trials=None)), ignore_events
        ).artifacts
    )
    base = next(a.sqnr for a in plain.attempts if a.sqnr is not None)
    wanted = round(base + MORE, 1) if min_sqnr is None else min_sqnr
    order = replace(order, judging=Judging(min_sqnr=wanted))
    told: list[Event] = []
    began = time.perf_counter()
    manifest = run(order, told.append)
    first = time.perf_counter() - began
    began = time.perf_counter()
    run(order, ignore_events)
    second = time.perf_counter() - began
    artifact = int8_of(manifest.artifacts)
    print(f"\n{name} for {consumer}: {wanted:g} dB wanted, plain INT8 has {base:.1f}")
    for point in artifact.tradeoffs:
        print(f"  {_row(point)}")
    calls = [e for e in told if isinstance(e, Finished) and e.step.startswith("quantize")]
    made = sum(event.detail != "from the cache" for event in calls)
    state = "met" if manifest.passed else "NOT MET"
    print(f"  -> {state}; {made} quantizer calls, {first:.0f} s; again {second:.0f} s", flush=True)
    return manifest.passed


def int8_of(artifacts: Sequence[Artifact]) -> Artifact:
    """The INT8 artifact of a manifest."""
    return next(a for a in artifacts if a.precision is Precision.INT8)


def _row(point: TradeOff) -> str:
    sqnr = "     -" if point.sqnr is None else f"{point.sqnr:6.1f}"
    ratio = "" if not point.latency or not point.parent else f"{point.latency / point.parent:5.2f}"
    share = "" if point.share is None else f"{point.share:5.0%}"
    mark = " <- kept" if point.chosen else ""
    return (
        f"{len(point.kept):3} kept {sqnr} dB  {ratio:>5} of fp32's time  {share:>4} int8 "
        f"{point.seconds:6.1f} s{mark}"
    )


if __name__ == "__main__":
    sys.exit(main())
