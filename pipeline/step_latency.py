"""Latency of a step's artifact beside its FP32 parent, measured as `modelc bench` measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from ..converters.onnx_guard import list_model_files
from ..converters.registry import is_stage
from ..core.contract import Feed, Target
from ..core.errors import RunnerError
from ..core.kinds import Precision
from ..core.records import Latency
from ..core.signature import Signature
from ..validators.ruling import Ruling
from .benchmark.benchmark_machine import LoadWatch
from .benchmark.benchmark_statistics import ratio_interval
from .benchmark.timed_turns import (
    TimedCall,
    measure_calls,
    open_for_timing,
    prepare_call,
    time_call,
)
from .run_context import StepWork

_LARGE = 2**30  # bytes of the FP32 parent
_SECONDS = 1.0  # of each model: mostly 12 rounds, to choose among quantizers
_GATE_SECONDS = 2.0  # of each model, with a gate on the ratio


def time_step(work: StepWork, path: Path) -> Ruling:
    """Measure a calibrated artifact beside its FP32 parent, if this host runs it as intended.

    Runtimes copy weights for speed: beside a large parent, with no other quantizer to choose from,
    that is left to `order.timed`. With it, measure any artifact below FP32. One that passed as a
    copy in FP32 may not run in its own precision here: the ruling says that, and has no latency.
    """
    step, parent, run = work.step, work.parent, work.run
    timed = step.quantizers or (run.order.timed and step.wanted.precision is not Precision.FP32)
    if not timed or parent.path is None or is_stage(step.target):
        return Ruling()
    size = sum(file.stat().st_size for file in list_model_files(parent.path))
    if len(step.quantizers) <= 1 and not run.order.timed and size > _LARGE:
        return Ruling(notes=("latency was not measured, which takes copies of all weights",))
    feeds = [r.feed.arrays for r in (*run.samples.held_out, *run.eager.references)]
    progress = run.workspace.progress
    title = f"time {step.name}"
    with progress.step(title, log=step.name, attempt=True, runs_artifact=True) as clock:
        try:
            latency = measure_latency(
                (path, parent.path),
                step.target,
                device=run.order.judging.device_for(step.target),
                signature=run.eager.signature,
                feed=min(feeds, key=lambda feed: sum(array.size for array in feed.values())),
                seconds=_GATE_SECONDS if run.order.timed else _SECONDS,
            )
        except RunnerError as error:
            clock.passed, clock.detail = False, error.message
            return Ruling(notes=(f"latency was not measured: {error.message}",))
        beside = f"beside {latency.parent:.2f} ms of fp32"
        clock.detail = f"{latency.milliseconds:.2f} ms {beside}, {latency.ratio_text}"
    return report_latency(latency)


def measure_latency(  # noqa: PLR0913 - two models, what runs them, and what they are run on
    models: tuple[Path, Path],
    target: Target,
    *,
    device: str,
    signature: Signature,
    feed: Feed,
    seconds: float = _GATE_SECONDS,
    change: Callable[[Sequence[TimedCall]], Sequence[TimedCall]] = lambda calls: calls,
) -> Latency:
    """Return milliseconds of a model and of its FP32 parent, and the ratio of paired rounds.

    Both are opened in this process, and take their turns and warm up as the rows of a benchmark do.
    A child for each, as a benchmark has, would import and open everything twice for every step and
    quantizer; the waits between turns keep the two thread pools apart here too. What one process
    adds is a common heap, from which the ratio of two models suffers no more than from two heaps.

    Args:
        models: the model file, and the FP32 model that it was made from.
        target: the target whose runtime runs both.
        device: the device.
        signature: the signature of both.
        feed: the feed to run.
        seconds: of each model, in rounds.
        change: replaces the calls that are timed.

    Raises:
        RunnerError: the runtime cannot run one of them.
    """
    watch = LoadWatch()
    with (
        open_for_timing(target, models[0], device, signature) as mine,
        open_for_timing(target, models[1], device, signature) as other,
    ):
        calls = change([time_call(prepare_call(runner, feed)) for runner in (mine, other)])
        ours, theirs = measure_calls(calls, seconds=seconds, watch=watch)
    medians = [[median(runs) for runs in turns] for turns in (ours, theirs)]
    ratio, interval = ratio_interval(medians[0], medians[1])
    return Latency(
        milliseconds=round(median(medians[0]), 4),
        parent=round(median(medians[1]), 4),
        device=device,
        runs=sum(map(len, ours)),
        noise=round((interval.high - interval.low) / 2 / ratio, 4),
        ratio=round(ratio, 4),
        low=round(interval.low, 4),
        high=round(interval.high, 4),
        rounds=len(ours),
        other_load=round(watch.other_load, 4),
        loaded=watch.is_loaded,
    )


def report_latency(latency: Latency) -> Ruling:
    """Return the ruling that holds the latency, with a note if the artifact is slower."""
    if not latency.slower:
        return Ruling(latency=latency)
    note = (
        f"slower than its fp32 parent on {latency.device}: {latency.milliseconds:.2f} ms instead "
        f"of {latency.parent:.2f} ms, {latency.ratio_text}"
    )
    return Ruling(latency=latency, notes=(note,))
