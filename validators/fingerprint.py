"""What a model gives on a fixed feed, in two numbers an output: the same model or another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from ..core.contract import Outputs

# What a model gives on a fixed feed, in two numbers an output: the same model or another one.


Fingerprint: TypeAlias = dict[str, tuple[float, float]]

_FINGERPRINT_TOLERANCE = 1e-3  # of the norm: far above what another machine's sums differ by


def compute_fingerprint(outputs: Outputs) -> Fingerprint:
    """Mean and L2 norm of each numeric output, over its finite elements."""
    import numpy as np

    found: Fingerprint = {}
    for name, array in outputs.items():
        if array.dtype.kind not in "biuf":
            continue
        values = array.astype(np.float64)
        values = values[np.isfinite(values)]
        mean = float(values.mean()) if values.size else 0.0
        found[name] = (mean, float(np.linalg.norm(values)))
    return found


def is_same_model(
    one: Mapping[str, tuple[float, float]], other: Mapping[str, tuple[float, float]]
) -> bool:
    """Whether two fingerprints are of one model."""
    if set(one) != set(other):
        return False
    return all(
        abs(a - b) <= _FINGERPRINT_TOLERANCE * max(one[name][1], other[name][1], 1e-12)
        for name in one
        for a, b in zip(one[name], other[name], strict=True)
    )
