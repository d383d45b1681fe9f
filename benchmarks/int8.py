"""What modelc's INT8 is worth beside each library called by hand: python benchmarks/int8.py.

For each sample model and consumer: SQNR against eager on feeds held out from calibration (the worst
output), size, and batch-1 latency, medians of turns taken one after the other. Weights of the two
large models are random, so only the ranking means something. Exits 1 where modelc's best is more
than 0.5 dB or 5 % behind the best by hand.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from modelc.benchmarks.int8_by_hand import make, quiet, ways
from modelc.checkpoints.eager_model import Eager
from modelc.converters import onnx_model, openvino_ir
from modelc.converters.quantizers.quantizer_registry import quantizers_for
from modelc.core.call import bind_inputs, parameters_of
from modelc.core.contract import Feed, Job, Outputs, QuantizeJob
from modelc.core.grammar import parse_input
from modelc.core.kinds import Capture, Precision
from modelc.core.records import CalibrationRecord
from modelc.core.signature import Signature, merge_inputs
from modelc.sample_models import digits, encoder, resnet
from modelc.validators.feeds import draw_example_feed

Run: TypeAlias = Callable[[Feed], Outputs]
CONSUMERS = ("onnx", "openvino", "tensorrt-onnx")
BEHIND, SLOWER = 0.5, 1.05
TURNS, PAUSE = 9, 0.02  # the pause lets another runtime's threads stop spinning
TURN = 0.03  # seconds of one turn, three runs at least


class Samples:
    """Feeds in memory, as a quantizer asks for them."""

    def __init__(self, feeds: list[Feed]) -> None:
        self._feeds = feeds
        self.record = CalibrationRecord(
            source="benchmark", kind="random", found=len(feeds), used=len(feeds), held_out=0,
            selection="first", seed=0, digest="",
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._feeds)

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._feeds)


def digit(draw: np.random.Generator) -> Feed:
    """A real image."""
    from sklearn.datasets import load_digits

    images = load_digits().images.astype(np.float32) / 16
    return {"x": images[draw.integers(len(images))][None, None]}


def image(draw: np.random.Generator) -> Feed:
    """Noise: the weights are random as well."""
    return {"image": draw.standard_normal((1, 3, 224, 224)).astype(np.float32)}


def sentence(draw: np.random.Generator) -> Feed:
    """Ids of 128 tokens, some padded at the end."""
    mask = np.ones((1, 128), np.int64)
    mask[:, int(draw.integers(64, 129)) :] = 0
    return {"ids": draw.integers(0, 30522, (1, 128)), "mask": mask}


def load_digits() -> nn.Module:
    """The shipped checkpoint."""
    from safetensors.torch import load_file

    model = digits.build()
    root = Path(digits.__file__).parent
    model.load_state_dict(load_file(root / "digits.safetensors"))
    return model


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A sample model: how it is built, its inputs, and a draw of one feed."""

    build: Callable[[], nn.Module]
    inputs: tuple[str, ...]
    draw: Callable[[np.random.Generator], Feed]


MODELS = {
    "digits": Subject(build=load_digits, inputs=("x:float32[batch=1..8,1,8,8]",), draw=digit),
    "resnet": Subject(build=resnet.resnet50, inputs=resnet.SIGNATURE, draw=image),
    "encoder": Subject(build=encoder.bert, inputs=encoder.SIGNATURE, draw=sentence),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender: who made it, and what it is worth. Milliseconds are NaN where none count."""

    maker: str
    ours: bool
    path: Path
    seconds: float
    sqnr: float = float("nan")
    latency: float = float("nan")

    @property
    def size(self) -> float:
        """Megabytes, weights in files of their own included."""
        stem = self.path.name.removesuffix(".xml")
        return sum(p.stat().st_size for p in self.path.parent.glob(f"{stem}*")) / 1e6


class Bench:
    """One model exported, with what eager gives on the feeds held out."""

    def __init__(self, name: str, folder: Path, samples: int) -> None:
        subject = MODELS[name]
        draw = np.random.default_rng(0)
        self.name, self.folder = name, folder / name
        self.feeds = [subject.draw(draw) for _ in range(samples)]
        self.held_out = [subject.draw(draw) for _ in range(8)]
        module = subject.build().eval()
        patterns = [parse_input(text) for text in subject.inputs]
        names = tuple(pattern.name for pattern in patterns)
        with torch.no_grad():
            first = module(*(torch.tensor(self.held_out[0][n]) for n in names))
        outputs = tuple(first) if isinstance(first, dict) else ("output",)
        self.signature: Signature = merge_inputs(patterns, {}).with_outputs(outputs)
        self.eager: Run = _eager(module, names, outputs)
        self.expected = [self.eager(feed) for feed in self.held_out]
        self.folder.mkdir()
        self._job = Job(
            signature=self.signature, precision=Precision.FP32, folder=self.folder, stem="model",
            example=draw_example_feed(self.signature), capture=Capture.EXPORT,
            model=Eager(module, names, bind_inputs(names, parameters_of(module.forward))),
        )  # fmt: skip
        onnx_model.convert(self._job)
        self.parent = self.folder / "model.onnx"

    def open(self, path: Path, consumer: str) -> Run:
        """Run a model where its consumer runs it; what is for TensorRT runs in ONNX Runtime."""
        if consumer != "openvino":
            return onnx_model.open_runner(path, "cpu", self.signature).run
        folder = path.parent / "ir"
        folder.mkdir(exist_ok=True)
        job = replace(self._job, folder=folder, parent=path, model=None)
        made = openvino_ir.convert(job).files[0][0]
        return openvino_ir.open_runner(folder / made, "cpu", self.signature).run

    def sqnr(self, run: Run) -> float:
        """The worst output's, over all the feeds held out, in dB."""
        found = [run(feed) for feed in self.held_out]
        worst = np.inf
        for name in self.signature.outputs:
            pairs = [(e[name], f[name]) for e, f in zip(self.expected, found, strict=True)]
            signal = sum(float(np.square(e, dtype=np.float64).sum()) for e, _ in pairs)
            noise = sum(float(np.square(e - f, dtype=np.float64).sum()) for e, f in pairs)
            worst = min(worst, 10 * np.log10(signal / max(noise, 1e-30)))
        return float(worst)


def _eager(module: nn.Module, names: tuple[str, ...], outputs: tuple[str, ...]) -> Run:
    def run(feed: Feed) -> Outputs:
        with torch.no_grad():
            made: Any = module(*(torch.from_numpy(feed[name]) for name in names))
        values = made.values() if isinstance(made, Mapping) else (made,)
        return {name: value.numpy() for name, value in zip(outputs, values, strict=True)}

    return run


def main() -> int:
    """Read the options, make and measure everything, print the tables, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--samples", type=int, default=16, help="calibration feeds")
    parser.add_argument("--consumer", action="append", choices=CONSUMERS, help="only this one")
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the frameworks' own
        for name in args.models or MODELS:
            with quiet():
                bench = Bench(name, Path(folder), args.samples)
            for consumer in args.consumer or CONSUMERS:
                failed += not report(bench, consumer)
    return 1 if failed else 0


def report(bench: Bench, consumer: str) -> bool:
    """Print one table; whether modelc's best is no worse than the best by hand."""
    rows = [*ours(bench, consumer), *by_hand(bench, consumer)]
    float_row = Row(maker="fp32", ours=False, path=bench.parent, seconds=0.0)
    rows = measure(bench, consumer, [*rows, float_row])
    print(f"\n{bench.name} for {consumer}")
    for row in rows:
        latency = "" if np.isnan(row.latency) else f"{row.latency:8.2f} ms"
        print(
            f"  {row.maker:<32} {row.sqnr:7.1f} dB {row.size:8.1f} MB {latency:>11}"
            f"   made in {row.seconds:.0f} s"
        )
    mine = [row for row in rows if row.ours]
    others = [row for row in rows if not row.ours and row.seconds > 0]
    fast = min((row.latency for row in mine), default=np.nan)
    best = max((r for r in mine if not r.latency > fast * SLOWER), key=lambda r: r.sqnr)
    need = max(row.sqnr for row in others) - BEHIND
    limit = min(row.latency for row in others) * SLOWER
    good = best.sqnr >= need and not best.latency > limit
    limit_text = "" if np.isnan(limit) else f", {best.latency:.2f} ms of at most {limit:.2f}"
    state = "within" if good else "BEYOND"
    print(f"  -> {best.maker}: {best.sqnr:.1f} dB of at least {need:.1f}{limit_text}: {state}")
    return good


def ours(bench: Bench, consumer: str) -> Iterator[Row]:
    """Each of modelc's quantizers in its default method."""
    for quantizer in quantizers_for(consumer, Precision.INT8):
        folder = bench.folder / f"ours-{quantizer.NAME}-{consumer}"
        folder.mkdir()
        start = time.perf_counter()
        job = QuantizeJob(
            parent=bench.parent, consumer=consumer, signature=bench.signature,
            calibration=Samples(bench.feeds), folder=folder,
        )  # fmt: skip
        path = quantizer.quantize(job).path
        taken = time.perf_counter() - start
        yield Row(maker=f"modelc {quantizer.NAME}", ours=True, path=path, seconds=taken)


def by_hand(bench: Bench, consumer: str) -> Iterator[Row]:
    """Each library's own; one that breaks on the model is reported and left out."""
    spawn = multiprocessing.get_context("spawn")
    for name in ways(consumer):
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            made = pool.submit(make, consumer, name, bench.parent, bench.feeds)
            try:
                path, taken = made.result()
            except Exception as error:  # noqa: BLE001 - a library's breaking is a result here
                print(f"  {name} broke on {bench.name}: {type(error).__name__}: {error}")
                continue
        yield Row(maker=name, ours=False, path=path, seconds=taken)


def measure(bench: Bench, consumer: str, rows: list[Row]) -> list[Row]:
    """The rows with SQNR, and with latency where the consumer runs here; eager as the last."""
    runs = [bench.open(row.path, consumer) for row in rows]
    rows = [replace(row, sqnr=bench.sqnr(run)) for row, run in zip(rows, runs, strict=True)]
    if consumer == "tensorrt-onnx":
        return rows
    rows.append(replace(rows[-1], maker="eager", sqnr=float("inf")))
    times: list[list[float]] = [[] for _ in rows]
    for _ in range(TURNS):
        for run, taken in zip([*runs, bench.eager], times, strict=True):
            time.sleep(PAUSE)
            runs_now = max(3, int(TURN / _time(run, bench.held_out[0])))
            taken.extend(_time(run, bench.held_out[0]) for _ in range(runs_now))
    return [replace(row, latency=median(t) * 1e3) for row, t in zip(rows, times, strict=True)]


def _time(run: Run, feed: Feed) -> float:
    start = time.perf_counter()
    run(feed)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
