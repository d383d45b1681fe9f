"""Format accuracy values, drops and intervals in the unit of their metric."""

from __future__ import annotations

from ..core.findings import Accuracy

_SHARES = ("top1", "top5")
_FEW = 10  # samples; a bootstrap over fewer redraws the same ones and is far too narrow


def metric_text(metric: str, value: float) -> str:
    """Format a metric value: shares in percent, anything else with five significant digits."""
    return f"{value:.2%}" if metric in _SHARES else f"{value:.5g}"


def value_text(accuracy: Accuracy, value: float) -> str:
    """Format a value of the metric of `accuracy`; see `metric_text`."""
    return metric_text(accuracy.metric, value)


def drop_text(accuracy: Accuracy, drop: float) -> str:
    """Format a drop: points of a share, percent of eager's value, or the metric's own unit."""
    if accuracy.metric in _SHARES:
        return f"{100 * drop:.2f} points"
    return f"{drop:.2%}" if accuracy.relative else f"{drop:.4g}"


def interval_text(accuracy: Accuracy) -> str:
    """Format the interval of the drop, as in `-0.62 to 1.31 points`."""
    low, high = drop_text(accuracy, accuracy.low), drop_text(accuracy, accuracy.high)
    return f"{low.removesuffix(' points')} to {high}"


def describe_accuracy(accuracy: Accuracy) -> str:
    """Summarize an accuracy measurement in one line."""
    return (
        f"{accuracy.metric} on {accuracy.samples:,} labelled samples: eager "
        f"{value_text(accuracy, accuracy.eager)}, artifact "
        f"{value_text(accuracy, accuracy.artifact)}, drop {drop_text(accuracy, accuracy.drop)} "
        f"({accuracy.confidence:.0%} interval {interval_text(accuracy)})"
    )


def explain_refusal(accuracy: Accuracy) -> str:
    """Return why the accuracy gate rejects the artifact; empty if it passes."""
    if accuracy.passed or accuracy.max_drop is None:
        return ""
    chance = ""
    if accuracy.low <= accuracy.max_drop:
        chance = f"; its {accuracy.confidence:.0%} interval {interval_text(accuracy)} reaches below"
    return (
        f"{accuracy.metric} drops by {drop_text(accuracy, accuracy.drop)} on {accuracy.samples:,} "
        f"labelled samples ({value_text(accuracy, accuracy.eager)} to "
        f"{value_text(accuracy, accuracy.artifact)}), more than "
        f"{drop_text(accuracy, accuracy.max_drop)} (--max-drop){chance}"
    )


def explain_doubt(accuracy: Accuracy) -> str:
    """Return a caveat about a drop that passes the gate; empty if the result is clear."""
    if accuracy.samples < _FEW:
        return (
            f"{accuracy.samples} labelled samples say next to nothing of {accuracy.metric}: "
            f"an interval wants {_FEW} and more"
        )
    interval, level = interval_text(accuracy), f"{accuracy.confidence:.0%}"
    if accuracy.max_drop is None:
        if accuracy.low <= 0:
            return ""
        drop = drop_text(accuracy, accuracy.drop)
        return (
            f"{accuracy.metric} drops by {drop} ({level}: {interval}), and no --max-drop was given"
        )
    if not accuracy.passed or accuracy.high <= accuracy.max_drop:
        return ""
    limit = drop_text(accuracy, accuracy.max_drop)
    return (
        f"{accuracy.samples:,} labelled samples are too few to prove a drop of {accuracy.metric} "
        f"within {limit}: it may be {interval} ({level}){_estimate_sample_count(accuracy)}"
    )


def _estimate_sample_count(accuracy: Accuracy) -> str:
    """Estimate how many samples suffice: an interval shrinks with the root of their number."""
    room = (accuracy.max_drop or 0.0) - accuracy.drop
    if room <= 0:
        return ""
    count = accuracy.samples * ((accuracy.high - accuracy.drop) / room) ** 2
    return f"; about {float(f'{count:.1g}'):,.0f} would do"
