"""How often `modelc bench` calls two equal rows different, and whether it finds a slower one.

    python -m modelc.benchmarks.benchmark_noise --runs 20

Measures the digits ONNX three times in one benchmark: twice as it is, and once with a fifth of its
time added to each run. Prints the ratio of the equal rows and of the slower one, with their
intervals, and counts the runs in which the benchmark was wrong about one of them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from modelc.core.children.child_call import ParentConnection
from modelc.core.events import ignore_events
from modelc.core.process import count_cores
from modelc.core.records import Interval
from modelc.pipeline.benchmark.benchmark_machine import LoadWatch
from modelc.pipeline.benchmark.benchmark_plan import BenchmarkOptions, RowSpec, plan_points
from modelc.pipeline.benchmark.benchmark_rounds import measure_rows
from modelc.pipeline.benchmark.benchmark_statistics import ratio_interval
from modelc.pipeline.benchmark.row_models import Call, RowRequest
from modelc.pipeline.benchmark.row_server import RowClosed, serve_row
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.recorded_run import Moved, load_manifest, source_from_record
from modelc.pipeline.run_order import run
from modelc.pipeline.run_progress import Progress
from modelc.sample_models import digits

SLOWED, EXTRA = "slowed", 0.2
NAMES = ("one", "other", SLOWED)
_CHECKPOINT = Path(digits.__file__).with_name("digits.safetensors")


def main() -> int:
    """Run the benchmark so many times; 1 if the benchmark was wrong in one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=1, help="1: digits is too small for more")
    args = parser.parse_args()
    wrong = missed = 0
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out"
        source = Source(
            checkpoint=_CHECKPOINT, model="modelc.sample_models.digits:build",
            inputs=tuple(digits.SIGNATURE),
        )  # fmt: skip
        run(Order(source=source, wanted=(Wanted(target="onnx"),), out=out))
        for number in range(args.runs):
            watch = LoadWatch()
            equal, slower = measure(out, Path(name) / f"run{number}", args, watch)
            wrong += equal[1].is_difference
            missed += not slower[1].is_difference
            (one, within), (two, beyond) = equal, slower
            print(
                f"equal rows {one:.3f} ({within.low:.3f}..{within.high:.3f})  "
                f"slowed {two:.3f} ({beyond.low:.3f}..{beyond.high:.3f})  "
                f"others used {watch.other_load:.0%}",
                flush=True,
            )
    print(f"equal rows called different: {wrong} of {args.runs}")
    print(f"slower row not found: {missed} of {args.runs}")
    return int(bool(wrong or missed))


def measure(
    out: Path, place: Path, args: argparse.Namespace, watch: LoadWatch
) -> tuple[tuple[float, Interval], tuple[float, Interval]]:
    """Return the ratios of the second and of the slowed row to the first, with intervals."""
    manifest = load_manifest(out)
    source = source_from_record(manifest, out, Moved())
    points = plan_points(manifest.signature, BenchmarkOptions())
    row = RowSpec(name="", runtime="ONNX Runtime", file="model.onnx", target="onnx")
    place.mkdir()
    requests = [
        RowRequest(
            row=replace(row, name=name), folder=out, source=source, signature=manifest.signature,
            points=points, seed=0, orders=place / name, device="cpu", logs=place / "logs",
        )
        for name in NAMES
    ]  # fmt: skip
    (rows,) = measure_rows(
        requests, points, seconds=args.seconds, threads=args.threads or count_cores(),
        watch=watch, progress=Progress(tell=ignore_events, logs=place / "logs"), serve=serve,
    )  # fmt: skip
    one, other, slowed = ([median(runs) for runs in rows[name].turns[0]] for name in NAMES)
    return ratio_interval(other, one), ratio_interval(slowed, one)


def serve(request: RowRequest, parent: ParentConnection) -> RowClosed:
    """Serve a row as the benchmark does; the slowed one spins after each run."""
    if request.row.name == SLOWED:
        return serve_row(request, parent, slow)
    return serve_row(request, parent)


def slow(call: Call) -> Call:
    """Return a call that takes a fifth longer."""

    def slowed() -> object:
        began = time.perf_counter()
        found = call()
        until = began + (time.perf_counter() - began) * (1 + EXTRA)
        while time.perf_counter() < until:
            pass
        return found

    return slowed


if __name__ == "__main__":
    from modelc.benchmarks import benchmark_noise  # its functions must have a name for the children

    raise SystemExit(benchmark_noise.main())
