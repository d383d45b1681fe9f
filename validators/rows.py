"""Whether equal rows come out equal: what becomes of a row must not hang on its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..core.contract import Array
    from ..core.verdict import Tolerance
    from .evidence import ArtifactOutputs, ReferenceOutputs

# Whether equal rows come out equal: what becomes of a row must not hang on its place.


# Kernels take rows in blocks and treat the last ones otherwise, so equal rows differ by roundoff,
# in eager as well. Two rows that each pass may be apart by twice the tolerance; an eighth of that
# is still tens of units of roundoff in every precision.
_SHARE, _TIMES = 1 / 4, 8.0


def find_unequal_rows(
    reference: ReferenceOutputs, reply: ArtifactOutputs, tolerance: Tolerance
) -> tuple[str, ...]:
    """The float outputs whose rows differ in the artifact and agree in eager.

    The feed is one row repeated. Rows agree if no two are further apart than a quarter of
    `atol + rtol * peak`, or than 8 times what eager's own are. An output without the feed's rows on
    its first axis is passed over, and so is one with NaN or Inf: the judge looks at those.
    """
    faults = []
    for name, eager in reference.outputs.items():
        array = (reply.outputs or {}).get(name)
        if array is None or array.shape != eager.shape or eager.dtype.kind != "f":
            continue
        if not eager.size or not eager.ndim or eager.shape[0] not in reference.feed.sizes.values():
            continue
        found, own = _largest_spread(array), _largest_spread(eager)
        limits = tolerance.of(name)
        limit = _SHARE * (limits.atol + limits.rtol * float(abs(eager).max()))
        if own <= limit and found > max(limit, _TIMES * own):
            faults.append(
                f"output {name!r}: equal rows come out apart by {found:.2e} "
                f"on feed {reference.feed.name}, eager's by {own:.2e}"
            )
    return tuple(faults)


def _largest_spread(array: Array) -> float:
    """How far equal elements of two rows are apart at most."""
    wide = array.astype("float64")
    return float((wide.max(axis=0) - wide.min(axis=0)).max())
