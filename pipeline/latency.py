"""How long one run takes, beside its parent's in the same minutes: machines are noisy."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

from ..core.contract import Feed, Runner, Target
from ..core.records import Latency
from ..core.signature import Signature
from ..core.verdict import Verdict

_WARM, _LEAST, _MOST = 3, 7, 50  # runs of each
_SECONDS = 4.0  # after which no more than the least are taken


def latency_of(  # noqa: PLR0913 - two models, what runs them, and what they are run on
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
        for _ in range(_WARM):
            _seconds(mine, feed)
            _seconds(other, feed)
        began = time.perf_counter()
        pairs: list[tuple[float, float]] = []
        while len(pairs) < _LEAST or (
            len(pairs) < _MOST and time.perf_counter() - began < _SECONDS
        ):
            pairs.append((_seconds(mine, feed), _seconds(other, feed)))
    return Latency(
        milliseconds=round(1e3 * statistics.median(one for one, _ in pairs), 3),
        parent=round(1e3 * statistics.median(other for _, other in pairs), 3),
        device=device,
        runs=len(pairs),
    )


def with_speed(verdict: Verdict, latency: Latency | None) -> Verdict:
    """The verdict, with a note where the artifact is slower than what it replaces."""
    if latency is None or not latency.slower:
        return verdict
    note = (
        f"slower than its fp32 parent on {latency.device}: "
        f"{latency.milliseconds:.2f} ms instead of {latency.parent:.2f} ms"
    )
    return replace(verdict, notes=(*verdict.notes, note))


def _seconds(runner: Runner, feed: Feed) -> float:
    began = time.perf_counter()
    runner.run(feed)
    return time.perf_counter() - began
