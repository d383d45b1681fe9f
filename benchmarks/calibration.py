"""Which samples to calibrate with, and how many: python benchmarks/calibration.py.

The digits net is quantized to INT8 by ONNX Runtime (`quantize_static`, Q/DQ, per channel, min-max)
from 4 to 128 PNG images of the training digits and judged on the 450 held-out digits against the
FP32 net. The images are selected as modelc does (first, random), or by greedy k-center over their
pixels (coreset). Prints a table; exits 1 where coreset would earn a place in modelc: where it comes
as near to what all training digits give with at most three quarters of the samples of random
selection. With less to gain it is not worth its price, which is to read the whole set first.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import onnxruntime as ort
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from modelc.calibration.calibration_options import EVERY, CalibrationOptions
from modelc.calibration.calibration_set import open_calibration
from modelc.calibration.preprocess import Preprocess
from modelc.calibration.sample_reader import LoaderHooks
from modelc.core.contract import Feed
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs
from modelc.sample_models import digits

CHECKPOINT = Path(digits.__file__).with_name("digits.safetensors")
COUNTS = (4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 128)
NEAR = 1.0  # dB below all training digits that counts as reaching them
WORTH = 0.75  # of random selection's samples
Select = Callable[[int, int], list[Feed]]  # number of samples, seed -> samples


@dataclass(frozen=True, kw_only=True)
class Score:
    """One quantized net on the held-out digits: the logits' SQNR in dB, share of right answers."""

    sqnr: float
    accuracy: float


def main() -> int:
    """Read the options, quantize for every selection and count, print, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=32, help="draws of random and of coreset")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="samples")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # torch misses torchvision, quantize_static pre-processing
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        whole = bench.score(bench.flat(EVERY, 0))
        print(f"fp32 accuracy {bench.accuracy:.2%} of {len(bench.held_y)} held-out digits")
        print(f"all {len(bench.pool)} training digits: {_text([whole])}")
        reached = {
            name: _compare(name, select, bench, args, whole.sqnr)
            for name, select in bench.selections().items()
        }
    for name, count in reached.items():
        print(f"{name}: within {NEAR:g} dB of all training digits from {count or 'no'} samples on")
    random, coreset = reached["random"], reached["coreset"]
    return int(coreset is not None and (random is None or coreset <= WORTH * random))


def _compare(
    name: str, select: Select, bench: Bench, args: argparse.Namespace, whole: float
) -> int | None:
    """Print a row a count; the first count from which the mean SQNR stays near the whole's."""
    near: int | None = None
    for count in args.counts:
        seeds = range(args.seeds if name in ("random", "coreset") else 1)
        scores = [bench.score(select(count, seed)) for seed in seeds]
        print(f"{name:<22} {count:>4} samples  {_text(scores)}", flush=True)
        if mean(score.sqnr for score in scores) < whole - NEAR:
            near = None
        elif near is None:
            near = count
    return near


def _text(scores: Sequence[Score]) -> str:
    sqnr = [score.sqnr for score in scores]
    right = [score.accuracy for score in scores]
    spread = f" ({min(sqnr):.1f}..{max(sqnr):.1f})" if len(sqnr) > 1 else ""
    least = f" (least {min(right):.2%})" if len(right) > 1 else ""
    return f"SQNR {mean(sqnr):5.2f} dB{spread}  accuracy {mean(right):.2%}{least}"


class Bench:
    """The FP32 net as ONNX, the training digits as PNG files, the held-out ones as arrays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = load_digits()
        images = (found.images[:, None] / 16).astype(np.float32)
        parts = train_test_split(  # as sample_models/train_digits.py
            images, found.target, test_size=0.25, stratify=found.target, random_state=0
        )
        train_x, self.held_x, labels, self.held_y = parts
        self.pool = ((train_x * 255).round() / 255).astype(np.float32)  # as PNG files keep them
        _write_images(folder / "flat", self.pool, (f"{i:04}" for i in range(len(self.pool))))
        by_class = (f"{label}/{i:04}" for i, label in enumerate(labels))
        _write_images(folder / "classes", self.pool, by_class)
        self.model = _export(folder)
        self.fp32 = _run(self.model, self.held_x)
        self.accuracy = float((self.fp32.argmax(1) == self.held_y).mean())

    def selections(self) -> dict[str, Select]:
        """Each way to select samples."""
        return {
            "first of a mixed folder": self.flat,
            "first of class folders": lambda count, _: self._opened("classes", count),
            "random": lambda count, seed: self._opened("flat", count, seed),
            "coreset": self._coreset,
        }

    def flat(self, count: int, _: int) -> list[Feed]:
        """The first images of a folder without an order."""
        return self._opened("flat", count)

    def _opened(self, name: str, count: int, seed: int | None = None) -> list[Feed]:
        options = CalibrationOptions(
            source=str(self.folder / name),
            samples=count,
            selection="first" if seed is None else "random",
            seed=seed or 0,
            hold_out=0,
            preprocess=Preprocess.parse("unit"),
        )
        signature = merge_inputs([parse_input(text) for text in digits.SIGNATURE], {})
        return list(open_calibration(options, signature, LoaderHooks(load=_nothing, draw=_nothing)))

    def _coreset(self, count: int, seed: int) -> list[Feed]:
        """Greedy k-center (Gonzalez 1985) over the pixels: each next one is farthest from all."""
        features = self.pool.reshape(len(self.pool), -1)
        chosen = [int(np.random.default_rng(seed).integers(len(features)))]
        apart = np.full(len(features), np.inf)
        while len(chosen) < count:
            last = features[chosen[-1]]
            apart = np.minimum(apart, np.square(features - last).sum(axis=1))
            chosen.append(int(apart.argmax()))
        return [{"x": self.pool[index : index + 1]} for index in chosen]

    def score(self, samples: Sequence[Feed]) -> Score:
        """Quantize with the samples and judge on the held-out digits."""
        path = self.folder / "int8.onnx"
        quantize_static(
            self.model,
            path,
            _Reader(samples),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        found = _run(path, self.held_x)
        noise = float(np.square(found - self.fp32).sum())
        return Score(
            sqnr=10 * float(np.log10(np.square(self.fp32).sum() / noise)),
            accuracy=float((found.argmax(1) == self.held_y).mean()),
        )


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime ships no types
    def __init__(self, samples: Sequence[Feed]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next feed, as onnxruntime asks for it."""
        feed = next(self._samples, None)
        return None if feed is None else dict(feed)


def _nothing(asked: object) -> Feed:
    raise RuntimeError(f"{asked!r} was asked for: the samples are images")


def _write_images(folder: Path, images: np.ndarray, names: Iterator[str]) -> None:
    for image, name in zip(images, names, strict=True):
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image[0] * 255).round().astype(np.uint8)).save(path)


def _export(folder: Path) -> Path:
    model = digits.build().eval()
    model.load_state_dict(load_file(CHECKPOINT))
    batch = torch.export.Dim("batch", min=1, max=512)
    torch.onnx.export(
        model,
        (torch.zeros(2, 1, 8, 8),),
        folder / "fp32.onnx",
        input_names=["x"],
        dynamic_shapes=({0: batch},),
        dynamo=True,
        verbose=False,
    )
    return folder / "fp32.onnx"


def _run(path: Path, images: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"x": images})
    return np.asarray(logits)


if __name__ == "__main__":
    sys.exit(main())
