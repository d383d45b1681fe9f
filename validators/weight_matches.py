"""Find the weights of a checkpoint that an artifact has as integers, by their values.

Names say nothing: exporters give constants names of their own. Rounding to 4 bits leaves a matrix
so like its weight, and so unlike all others of its size, that values decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from ..core.contract import Array
from ..core.weights import IntegerMatrix, RoundedWeight
from .rounded_weights import is_near, list_orientations, match_sizes, split_rows
from .scaled_blocks import is_alike

_PORTION = 1 << 23  # weights that are compared at once


@dataclass(frozen=True, kw_only=True)
class WeightMatches:
    """The weights of the checkpoint that an artifact has as integers.

    `others` are the shapes of matrices that are none. `ambiguous` are weights that the file has
    more than once, for one use in two roundings.
    """

    weights: tuple[RoundedWeight, ...]
    others: tuple[tuple[int, ...], ...]
    ambiguous: tuple[str, ...] = ()


def match_weights(weights: Mapping[str, Array], rounded: Iterable[IntegerMatrix]) -> WeightMatches:
    """Find the weights that each matrix is, rounded to nearest or, without such, in another way.

    Several are equal where layers were copied. Then one matrix may stand for all of them.
    """
    found: dict[tuple[str, bool], RoundedWeight] = {}
    others: list[tuple[int, ...]] = []
    ambiguous: dict[str, None] = {}
    for matrix in rounded:
        own = _match_matrix(weights, matrix)
        if not own:
            others.append(matrix.shape)
        uses = [use for use, has in ((True, matrix.table), (False, matrix.factor)) if has]
        for one, use in product(own, uses):
            if not _has_equal_values(found.setdefault((one.name, use), one), one):
                ambiguous[one.name] = None
    unique = {id(one): one for one in found.values()}
    return WeightMatches(
        weights=tuple(unique.values()), others=tuple(others), ambiguous=tuple(ambiguous)
    )


def _match_matrix(weights: Mapping[str, Array], matrix: IntegerMatrix) -> list[RoundedWeight]:
    """Return the weights that a matrix is, all of them rounded in one way."""
    alike = next((one for _, one in match_sizes(weights, [matrix])), {})
    for nearest, test in ((True, is_near), (False, is_alike)):
        found = [
            RoundedWeight(
                name=name, shape=array.shape, matrix=matrix, turned=turned, nearest=nearest
            )
            for name, array in alike.items()
            for meant, turned in list_orientations(array, matrix.shape)
            if test(meant, matrix)
        ]
        if found:
            return found
    return []


def _has_equal_values(one: RoundedWeight, other: RoundedWeight) -> bool:
    """Whether two matrices stand for the same values of a weight."""
    import numpy as np

    return one is other or all(
        np.array_equal(one.read_rows(*part), other.read_rows(*part))
        for part in split_rows(one.shape, _PORTION)
    )
