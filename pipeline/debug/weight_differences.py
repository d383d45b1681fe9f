"""Find the weight of a layer that differs between eager and the artifact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...core.contract import Array
from ...core.target_extensions import Probe
from .refine_culprit import Culprit

_MATRIX = 2  # dims
_EXACT_TOLERANCE = 2.0**-20  # folding of one constant into another rounds twice or thrice
_MIN_LIKENESS = 0.5  # of the elements agree, or the correlation is as high: it is that weight


def find_differing_weight(
    culprit: Culprit, probe: Probe, state: Mapping[str, Array], *, half: bool
) -> str:
    """Describe the weight that differs most, with its differing elements and largest difference.

    Return an empty string if no weight differs by more than rounding.
    """
    rounding = 2.0**-7 if half else _EXACT_TOLERANCE
    pairs = _pair_weights(culprit, probe, state)
    return max((_describe_difference(*pair, rounding) for pair in pairs), default=(0.0, ""))[1]


def _pair_weights(
    culprit: Culprit, probe: Probe, state: Mapping[str, Array]
) -> Iterator[tuple[str, str, Array, Array]]:
    """Yield constants of the artifact with the eager weights they come from, names first."""
    near = _nearby_weights(culprit, state)
    constants = [name for node in culprit.nodes for name in node.constants]
    arrays = {name: probe.constant(name) for name in dict.fromkeys(constants)}
    for name, array in arrays.items():
        if array.dtype.kind != "f" or array.size == 1:
            continue
        title = name.split("::")[0]
        named = [key for key in near if title == key or title.endswith(f".{key}")]
        fitting = named or list(near)
        best = max(
            (one for key in fitting for one in _orient_weights(array, key, near[key])),
            key=lambda one: (_likeness(array, one[1]), one[2]),
            default=None,
        )
        if best is not None and (named or _likeness(array, best[1]) >= _MIN_LIKENESS):
            yield name, best[0], array, best[1]


def _nearby_weights(culprit: Culprit, state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the weights of the culprit's modules, and sibling weights with batch norms folded."""
    owners = {culprit.module, culprit.value.module, *(node.module for node in culprit.nodes)}
    owners |= {node.owner for node in culprit.nodes if node.owner}
    owners |= {module for node in culprit.nodes for module in node.inside or ()}
    parents = {owner.rpartition(".")[0] for owner in owners}
    mine = {
        key: array
        for key, array in state.items()
        if key.rpartition(".")[0] in owners and array.dtype.kind == "f"
    }
    siblings = {
        key: array
        for key, array in state.items()
        if key.rpartition(".")[0].rpartition(".")[0] in parents
        and array.dtype.kind == "f"
        and array.ndim > 1
    }
    return {**mine, **_fold_norms(mine, siblings)}


def _fold_norms(mine: Mapping[str, Array], siblings: Mapping[str, Array]) -> dict[str, Array]:
    """Multiply sibling weights by the scale of a batch norm, as exporters fold it."""
    import numpy as np

    found: dict[str, Array] = {}
    for key, variance in mine.items():
        if not key.endswith("running_var"):
            continue
        norm = key.removesuffix("running_var")
        scale = mine.get(f"{norm}weight", np.ones_like(variance))
        for name, weight in siblings.items():
            if weight.shape[0] == variance.size:
                factor = scale / np.sqrt(variance + np.float32(1e-5))
                shape = (-1, *[1] * (weight.ndim - 1))
                found[name] = weight * factor.reshape(shape)
    return found


def _orient_weights(array: Array, key: str, weight: Array) -> Sequence[tuple[str, Array, bool]]:
    """Return the weight, transposed or reshaped if necessary, in the shape of the constant."""
    fits = []
    if weight.shape == array.shape:
        fits.append((key, weight, True))
    if weight.ndim == _MATRIX and weight.T.shape == array.shape:
        fits.append((key, weight.T, False))
    elif weight.size == array.size and weight.shape != array.shape:
        fits.append((key, weight.reshape(array.shape), False))
    return fits


def _likeness(one: Array, two: Array) -> float:
    """Return the larger of the share of equal elements and the cosine similarity."""
    import numpy as np

    same = float(np.mean(np.isclose(one, two, rtol=1e-3, atol=0)))
    size = float(np.linalg.norm(one.astype(np.float64)) * np.linalg.norm(two.astype(np.float64)))
    turned = float(np.vdot(one.astype(np.float64), two.astype(np.float64))) / size if size else 0.0
    return max(same, turned)


def _describe_difference(
    constant: str, name: str, found: Array, wanted: Array, rounding: float
) -> tuple[float, str]:
    import numpy as np

    gap = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    peak = float(np.abs(wanted).max(initial=0.0))
    # a weight folded into another is rounded at the scale of its own row, not of each element
    off = gap > rounding * np.maximum(np.abs(wanted), peak * rounding)
    off &= gap > _EXACT_TOLERANCE * np.abs(wanted)
    count = int(np.count_nonzero(off & (gap > rounding * np.abs(wanted) * 4)))
    if not count:
        return 0.0, ""
    where = np.unravel_index(int(gap.argmax()), gap.shape)
    largest = float(gap[where])
    if not np.any(found):
        return largest, f"the weight {name} is all 0 in the artifact ({constant})"
    moved = _describe_exchange(found, wanted)
    if moved:
        return largest / (peak or 1.0), f"the weight {name} has {moved} ({constant})"
    return largest / (peak or 1.0), (
        f"the weight {name} differs in {count} of {gap.size} elements, by up to {largest:.3g}"
        f" ({float(found[where]):.6g} instead of {float(wanted[where]):.6g})"
    )


def _describe_exchange(found: Array, wanted: Array) -> str:
    """Describe lines of a weight that stand in another order, such as those of two heads."""
    import numpy as np

    for axis, kind in enumerate(("rows", "columns")[: wanted.ndim]):
        places: dict[bytes, int] = {}
        for index in range(wanted.shape[axis]):
            places[np.ascontiguousarray(wanted.take(index, axis)).tobytes()] = index
        lines = (np.ascontiguousarray(found.take(i, axis)) for i in range(found.shape[axis]))
        order = [places.get(line.tobytes(), -1) for line in lines]
        moved = [index for index, place in enumerate(order) if place != index]
        if moved and sorted(order) == list(range(len(order))):
            first, size = moved[0], 1
            while first + size in moved and order[first + size] == order[first] + size:
                size += 1
            other = order[first]
            blocks = f"{first}:{first + size} from the place of {other}:{other + size}"
            return f"{len(moved)} of {len(order)} {kind} in another order, {blocks}"
    return ""
