"""Fresh feeds of coverage.py: drawn here, from other seeds than modelc's own."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from modelc.core.grammar import parse_input
from modelc.core.signature import Dim, InputSpec, Signature, merge_inputs
from modelc.tests.nets.cases import Case

Arrays = dict[str, NDArray[np.generic]]
MOST = 9  # combinations of sizes: each of two dims at its least, an odd middle and its most
_BOOLEAN = (0.0, 1.0)


def signature_of(case: Case) -> Signature:
    """The case's inputs, read as modelc reads them."""
    return merge_inputs([parse_input(text) for text in case.inputs], {})


def fresh_feeds(case: Case) -> list[Arrays]:
    """Each dynamic dim at its least, an odd middle and its most, in combination; then the case's.

    Floats are normal, or uniform in their range; integers are uniform; masks (`{0..1}`) are ones
    padded on the right in one feed and ones with holes in the next, each row with a 1 in front.
    """
    signature = signature_of(case)
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    feeds = [
        {spec.name: _draw(spec, sizes, rng, turn=turn) for spec in signature.inputs}
        for turn, sizes in enumerate(_combinations(signature.dynamic_dims))
    ]
    return [*feeds, *(case.more_feeds() if case.more_feeds else ())]


def example(case: Case) -> Arrays:
    """One feed at the sizes to capture at."""
    signature = signature_of(case)
    sizes = {name: dim.opt for name, dim in signature.dynamic_dims.items()}
    rng = np.random.default_rng(1)
    return {spec.name: _draw(spec, sizes, rng, turn=0) for spec in signature.inputs}


def _combinations(dims: dict[str, Dim]) -> list[dict[str, int]]:
    """All products of up to two dims; of more, the diagonals and each dim alone at its ends."""
    ladder = {name: (dim.low, _middle(dim), dim.high) for name, dim in dims.items()}
    product = [
        dict(zip(ladder, sizes, strict=True)) for sizes in itertools.product(*ladder.values())
    ]
    if len(product) <= MOST:
        return product if dims else [{}, {}, {}]  # nothing varies but the values
    rows = [{name: sizes[at] for name, sizes in ladder.items()} for at in range(3)]
    middle = rows[1]
    for name, sizes in ladder.items():
        rows.extend({**middle, name: size} for size in (sizes[0], sizes[2]))
    return rows


def _middle(dim: Dim) -> int:
    """An odd size inside the range, where there is one; never the size captured at, if others are.

    Capture happens at `opt`: a size that was frozen there would look right.
    """
    inside = [size for size in range(dim.low + 1, dim.high) if size % 2] or [dim.high]
    others = [size for size in inside if size != dim.opt] or inside
    return others[len(others) // 2]


def _draw(
    spec: InputSpec, sizes: dict[str, int], rng: np.random.Generator, *, turn: int
) -> NDArray[np.generic]:
    shape = [sizes.get(dim.name or "", dim.opt) for dim in spec.dims]
    low, high = (spec.values.low, spec.values.high) if spec.values else (None, None)
    if spec.dtype.startswith("float"):
        drawn = (
            rng.standard_normal(shape)
            if low is None or high is None
            else rng.uniform(low, high, shape)
        )
        return np.asarray(drawn, spec.dtype)
    if spec.dtype == "bool" or (low, high) == _BOOLEAN:
        return _mask(shape, rng, padded=turn % 2 == 0).astype(spec.dtype)
    usual = (0, 255) if spec.dtype == "uint8" else (0, 1)
    least, most = usual if low is None or high is None else (int(low), int(high))
    return rng.integers(least, most, size=shape, endpoint=True).astype(spec.dtype)


def _mask(shape: Sequence[int], rng: np.random.Generator, *, padded: bool) -> NDArray[np.bool_]:
    """Ones and zeros; the first of each row is a 1, as attention needs it."""
    if not shape:
        return np.asarray(rng.integers(0, 2) == 1)
    if padded:
        lengths = rng.integers(1, shape[-1], size=(*shape[:-1], 1), endpoint=True)
        return np.broadcast_to(np.arange(shape[-1]) < lengths, shape).copy()
    found = np.asarray(rng.integers(0, 2, size=shape) == 1)
    found[..., 0] = True
    return found
