"""Which of several trials of one step is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .trying import Trial

NEAR = 0.5  # dB: trials this close to the best are as good, and the faster is kept
CHOICE_RULE = (  # what `_most_exact` does
    "of those that passed (slower than fp32 only if all are): the SQNR of the worst group of "
    f"channels, then of all outputs, {NEAR:g} dB being a tie; then latency beyond noise; then size"
)


def choose_trial(trials: Sequence[Trial]) -> Trial:
    """The trial to keep: of captures the first that holds, of quantizers the best that holds."""
    if any(trial.way.quantizer for trial in trials):
        return _most_exact(trials)
    passed = [trial for trial in trials if trial.verdict.passed]
    return (passed or list(trials))[0]


def _most_exact(trials: Sequence[Trial]) -> Trial:
    """The highest SQNR of the worst group of channels, then the highest of all outputs.

    Within `NEAR` of both, the lowest latency decides; among those as fast but for the noise that
    was measured, the smallest.

    Trials that are slower than their FP32 parent are set aside while any other passed: an INT8
    artifact that is slower than what it replaces is of no use, however exact.
    """
    left = [trial for trial in trials if trial.verdict.passed] or list(trials)
    left = [trial for trial in left if not _is_slower(trial)] or left
    best_group = max(_worst_group_sqnr(trial) for trial in left)
    left = [trial for trial in left if _worst_group_sqnr(trial) >= best_group - NEAR]
    best = max(_trial_sqnr(trial) for trial in left)
    near = [trial for trial in left if _trial_sqnr(trial) >= best - NEAR]
    fastest = min(near, key=_latency_share)
    as_fast = [
        trial
        for trial in near
        if _latency_share(trial) <= _latency_share(fastest) * _noise_factor(trial, fastest)
    ]
    return min(as_fast, key=lambda trial: (trial.size, -_trial_sqnr(trial)))


def _trial_sqnr(trial: Trial) -> float:
    """In dB; Inf without any error, -Inf where nothing could be measured."""
    if trial.verdict.sqnr is not None:
        return trial.verdict.sqnr
    return math.inf if trial.verdict.passed else -math.inf


def _worst_group_sqnr(trial: Trial) -> float:
    """In dB, of the worst group of channels with a scale of its own; Inf without any."""
    found = trial.verdict.group_sqnr
    return math.inf if found is None else found


def _latency_share(trial: Trial) -> float:
    """Of the parent's latency: the two ran by turns, the trials did not."""
    latency = trial.latency
    return math.inf if latency is None else latency.milliseconds / latency.parent


def _noise_factor(one: Trial, other: Trial) -> float:
    """The factor that two latencies may be apart by noise."""
    return 1 + math.hypot(*(trial.latency.noise for trial in (one, other) if trial.latency))


def _is_slower(trial: Trial) -> bool:
    return trial.latency is not None and trial.latency.slower
