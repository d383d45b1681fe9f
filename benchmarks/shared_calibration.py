"""What it saves to calibrate once for several targets: python benchmarks/shared_calibration.py.

For each sample model, all quantizers of the targets `onnx`, `openvino` and `tensorrt-onnx` run on
one ONNX twice, in turn: each job by itself, and jobs that share what they can. Prints both times
and exits 1 if a model differs. Times hold calibration alone; a run also judges what it made.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modelc.benchmarks.int8 import CONSUMERS, MODELS, Bench, Samples
from modelc.benchmarks.int8_by_hand import quiet
from modelc.converters.quantizers.quantizer_registry import quantizers_for
from modelc.core.contract import QuantizeJob, Quantizer
from modelc.core.errors import ConversionError
from modelc.core.kinds import Precision


def jobs_of() -> Iterator[tuple[str, Quantizer]]:
    """The jobs of a run: each consumer with each of its quantizers."""
    for consumer in CONSUMERS:
        for quantizer in quantizers_for(consumer, Precision.INT8):
            yield consumer, quantizer


def quantize_all(
    bench: Bench, folder: Path, *, shares: bool
) -> tuple[dict[str, str], dict[str, float]]:
    """Run the jobs; the digest of each result, and its seconds."""
    digests, seconds, memory = {}, {}, dict[Any, Any]()
    for consumer, quantizer in jobs_of():
        name = f"{consumer} {quantizer.NAME}"
        place = folder / name.replace(" ", "-")
        place.mkdir(parents=True)
        others = [one for one, other in jobs_of() if other is quantizer and one != consumer]
        job = QuantizeJob(
            parent=bench.parent, consumer=consumer, signature=bench.signature,
            calibration=Samples(bench.feeds), folder=place,
            others=tuple(others) if shares else (), memory=memory if shares else {},
        )  # fmt: skip
        began = time.perf_counter()
        try:
            with quiet():
                content = quantizer.quantize(job).path.read_bytes()
        except ConversionError as error:
            content = error.message.encode()
        seconds[name] = time.perf_counter() - began
        if quantizer.NAME == "nncf":  # it shares nothing, and numbers nodes through the process
            content = b""
        digests[name] = hashlib.sha256(content).hexdigest()
    return digests, seconds


def main() -> int:
    """Read the options, measure, print, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--samples", type=int, default=64, help="calibration feeds")
    parser.add_argument("--turns", type=int, default=1, help="measurements of each")
    args = parser.parse_args()
    same = True
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the frameworks' own
        for name in args.models or MODELS:
            with quiet():
                bench = Bench(name, Path(folder), args.samples)
                quantize_all(bench, Path(folder, name, "warm-up"), shares=False)  # imports
            for turn in range(args.turns):
                place = Path(folder, name, str(turn))
                alone, before = quantize_all(bench, place / "alone", shares=False)
                shared, after = quantize_all(bench, place / "shared", shares=True)
                differing = [job for job in alone if alone[job] != shared[job]]
                same &= not differing
                _show(name, before, after, differing)
    return 0 if same else 1


def _show(
    name: str, before: dict[str, float], after: dict[str, float], differing: list[str]
) -> None:
    for job, seconds in before.items():
        print(f"  {job:<28} {seconds:7.1f} s alone {after[job]:7.1f} s shared")
    total, less = sum(before.values()), sum(after.values())
    state = f"DIFFERENT: {', '.join(differing)}" if differing else "the same files"
    print(f"{name}: {total:.1f} s alone, {less:.1f} s shared, {less / total:.2f} x, {state}")


if __name__ == "__main__":
    sys.exit(main())
