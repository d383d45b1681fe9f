"""An output's values as counts, eager's beside the artifact's: for the eye."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.findings import Histogram
from ..core.verdict import OutputVerdict, Verdict
from .fill import fill_limit

if TYPE_CHECKING:
    from .evidence import OutputPair

# An output's values as counts, eager's beside the artifact's: for the eye.


_BINS = 24


def make_histograms(verdict: Verdict, pairs: Sequence[OutputPair]) -> tuple[Histogram, ...]:
    """One for each float output, of the feed on which it came nearest to its limit."""
    by_name = {pair.feed.name: pair for pair in pairs}
    found: dict[str, OutputVerdict] = {}
    for output in verdict.outputs:
        if output.loose or output.form or output.headroom is None:
            continue
        known = found.get(output.output)
        if known is None or output.headroom < (known.headroom or 0.0):
            found[output.output] = output
    counted = (_make_histogram(name, by_name[worst.feed]) for name, worst in found.items())
    return tuple(one for one in counted if one is not None)


def _make_histogram(name: str, pair: OutputPair) -> Histogram | None:
    """24 bins over the finite values of both; fill is left out."""
    import numpy as np

    if pair.eager[name].dtype.kind != "f":
        return None
    limit = fill_limit(pair.eager[name])
    sides = [
        a[np.isfinite(a) & (np.abs(a) <= limit)] for a in (pair.eager[name], pair.artifact[name])
    ]
    low = min((float(side.min()) for side in sides if side.size), default=0.0)
    high = max((float(side.max()) for side in sides if side.size), default=0.0)
    if not low < high:
        return None
    edges = np.linspace(low, high, _BINS + 1)
    if not (np.diff(edges) > 0).all():  # closer than float64 can tell
        return None
    counts = [np.histogram(side.astype(np.float64), edges)[0] for side in sides]
    return Histogram(
        output=name,
        feed=pair.feed.name,
        edges=tuple(float(f"{edge:.6g}") for edge in edges),
        eager=tuple(int(count) for count in counts[0]),
        artifact=tuple(int(count) for count in counts[1]),
    )
