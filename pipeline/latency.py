"""How long one run takes, beside its parent's in the same minutes: machines are noisy."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..converters.registry import is_stage
from ..core.contract import Feed, Runner, Target
from ..core.precision import Precision
from ..core.records import Latency
from ..core.signature import Signature
from ..core.verdict import Verdict
from .bench import Parent, RunContext
from .plan import Step

_WARMUP_RUNS, _MIN_RUNS, _MAX_RUNS = 3, 7, 50  # runs of each
_MIN_NOISE = 0.01  # of a latency: the clock, and what one process is to the next
_MAX_SECONDS = 4.0  # after which no more than the least are taken


def measure_step_latency(
    step: Step, path: Path, parent: Parent, bench: RunContext
) -> Latency | None:
    """Beside the FP32 parent, where a calibrated artifact runs on this host as it is meant to.

    Of others that are not FP32 as well, where the order asks for it.
    """
    timed = step.quantizers or (bench.order.timed and step.wanted.precision is not Precision.FP32)
    if not timed or parent.path is None or is_stage(step.target):
        return None
    feeds = [r.feed.arrays for r in (*bench.held_out, *bench.subject.references)]
    with bench.stage.step(f"time {step.name}", log=step.name) as clock:
        latency = measure_latency(
            path,
            parent.path,
            step.target,
            device=bench.order.judging.device_for(step.target),
            signature=bench.subject.signature,
            feed=min(feeds, key=lambda feed: sum(array.size for array in feed.values())),
        )
        clock.detail = f"{latency.milliseconds:.2f} ms, fp32 {latency.parent:.2f} ms"
    return latency


def measure_latency(  # noqa: PLR0913 - two models, what runs them, and what they are run on
    path: Path, parent: Path, target: Target, *, device: str, signature: Signature, feed: Feed
) -> Latency:
    """Median milliseconds of one run of `path` and of its FP32 `parent`, run by turns.

    Args:
        path: the model file.
        parent: the FP32 model that it was made from; the target's runtime opens it too.
        target: whose runtime runs both.
        device: where.
        signature: of both.
        feed: what is run: the smallest.

    Raises:
        RunnerError: the runtime would not run one of them.
    """
    with (
        target.open_runner(path, device, signature) as mine,
        target.open_runner(parent, device, signature) as other,
    ):
        for _ in range(_WARMUP_RUNS):
            _time_run(mine, feed)
            _time_run(other, feed)
        began = time.perf_counter()
        pairs: list[tuple[float, float]] = []
        while len(pairs) < _MIN_RUNS or (
            len(pairs) < _MAX_RUNS and time.perf_counter() - began < _MAX_SECONDS
        ):
            pairs.append((_time_run(mine, feed), _time_run(other, feed)))
    return Latency(
        milliseconds=round(1e3 * statistics.median(one for one, _ in pairs), 3),
        parent=round(1e3 * statistics.median(other for _, other in pairs), 3),
        device=device,
        runs=len(pairs),
        noise=round(ratio_noise([one / other for one, other in pairs]), 4),
    )


def ratio_noise(ratios: Sequence[float]) -> float:
    """Two standard errors of the median, as a share of it; at least 1 %.

    The deviation is 1.4826 times the median absolute deviation, as of a normal distribution, and a
    median of n draws scatters by sqrt(pi / 2n) of it.
    """
    middle = statistics.median(ratios)
    spread = 1.4826 * statistics.median(abs(one - middle) for one in ratios)
    return max(2 * math.sqrt(math.pi / 2 / len(ratios)) * spread / middle, _MIN_NOISE)


def add_speed_note(verdict: Verdict, latency: Latency | None) -> Verdict:
    """The verdict, with a note where the artifact is slower than what it replaces."""
    if latency is None or not latency.slower:
        return verdict
    note = (
        f"slower than its fp32 parent on {latency.device}: "
        f"{latency.milliseconds:.2f} ms instead of {latency.parent:.2f} ms"
    )
    return replace(verdict, notes=(*verdict.notes, note))


def _time_run(runner: Runner, feed: Feed) -> float:
    began = time.perf_counter()
    runner.run(feed)
    return time.perf_counter() - began
