"""Check that an artifact holds the checkpoint's weights, and that two models are the same.

A weight of a large layer that is off by a thousandth moves the outputs by less than roundoff, so
comparing outputs cannot find it. Comparing constants can: a good fp32 conversion keeps a weight bit
for bit, possibly transposed, or folds another constant into it, which changes whole rows. A batch
norm multiplies each row by one number, and an altered element stands out in its row.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from ..core.contract import Array, Outputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEAST_ELEMENTS = 16  # smaller constants match by chance
_ALIKE_SHARE = 0.9  # share of equal nonzero elements in an altered weight
_ROUNDED = 1e-6  # of an element: eight units in the last place, which a different rounding explains
_TINY = 1e-30  # some runtimes flush denormals to zero
_MATRIX = 2
_GLANCE = 6  # rows to sample to find out whether two weights of one size are related
_PORTION = 1 << 24  # elements that are copied at once
_ROW = 8  # elements; in a row this long, one or two altered elements do not move the median

# Takes a test; returns whether any tensor that eager computes passes it.
ComputedTest: TypeAlias = Callable[[Callable[[Array], bool]], bool]


def find_altered_weights(
    weights: Mapping[str, Array],
    constants: Iterable[Array],
    *,
    computed: ComputedTest = lambda _: False,
    tables: Collection[str] = (),
) -> tuple[str, ...]:
    """Describe constants that equal a weight except for some elements.

    A weight without a similar constant was folded, split or removed and is not reported, nor are
    multiples of whole rows or columns, as after a fold. Comparing outputs covers these.

    Args:
        weights: float32 arrays of the checkpoint by name; those below 16 elements are ignored.
        constants: float32 arrays of the artifact, in any order; read once.
        computed: tests whether eager itself computes such a constant from its weights (pruning by a
            mask, clamping); if so, it is not reported.
        tables: names of embeddings. Nothing is folded into a few of their rows, and no feed may
            have the token of a row.
    """
    known = _WeightIndex(
        {name: array for name, array in weights.items() if array.size >= LEAST_ELEMENTS}
    )
    found: Counter[bytes] = Counter()
    left: list[Array] = []
    for constant in constants:
        if constant.size not in known.by_size:
            continue
        digest = _array_digest(constant)
        if known.has(digest, constant.size):
            found[digest] += 1
        else:
            left.append(constant)
    sizes = {constant.size for constant in left}  # weights of other sizes are not even read
    alike = {name: array for name, array in known.weights.items() if array.size in sizes}
    missing = {name: array for name, array in alike.items() if not known.take(name, found)}
    texts = (
        _describe_altered(name, array, left, computed, is_table=name in tables)
        for name, array in missing.items()
    )
    return tuple(text for text in texts if text)


class _WeightIndex:
    """Index of weights by content; each is read once, and transposed only when first needed."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights = weights
        self._plain: dict[str, bytes] = {}
        self._turned: dict[str, bytes | None] = {}
        self._digests: set[bytes] = set()
        self.by_size: dict[int, list[str]] = {}
        for name, array in weights.items():
            self.by_size.setdefault(array.size, []).append(name)
        self._read: set[int] = set()  # sizes whose weights are in the index
        self._turned_over: set[int] = set()  # sizes whose transposed weights are in the index

    def has(self, digest: bytes, size: int) -> bool:
        """Whether a weight of this size has this digest, transposed or not."""
        if size not in self._read:
            self._read.add(size)
            self._digests.update(map(self._of_plain, self.by_size[size]))
        if digest not in self._digests and size not in self._turned_over:
            self._turned_over.add(size)
            turned = map(self._of_turned, self.by_size[size])
            self._digests.update(one for one in turned if one is not None)
        return digest in self._digests

    def take(self, name: str, found: Counter[bytes]) -> bool:
        """Consume one constant that equals the weight, so that equal weights need one each."""
        plain = self._of_plain(name)
        digest = plain if found[plain] else self._of_turned(name)
        if digest is None or not found[digest]:
            return False
        found[digest] -= 1
        return True

    def _of_plain(self, name: str) -> bytes:
        if name not in self._plain:
            self._plain[name] = _array_digest(self.weights[name])
        return self._plain[name]

    def _of_turned(self, name: str) -> bytes | None:
        array = self.weights[name]
        if name not in self._turned:
            self._turned[name] = _array_digest(array.T) if array.ndim == _MATRIX else None
        return self._turned[name]


def _array_digest(array: Array) -> bytes:
    import numpy as np

    rows = np.atleast_1d(array)
    step = max(_PORTION // max(rows[:1].size, 1), 1)
    digest = hashlib.blake2b(digest_size=16)
    for first in range(0, len(rows), step):  # a transposed weight is not copied as a whole
        digest.update(np.ascontiguousarray(rows[first : first + step]).view(np.uint8).data)
    return digest.digest()


def _describe_altered(
    name: str, weight: Array, constants: Iterable[Array], computed: ComputedTest, *, is_table: bool
) -> str:
    """Describe the constant that is this weight except for some elements; empty if none is."""
    for constant in constants:
        for meant, found in _candidate_values(weight, constant):
            off = _find_altered(meant, found, is_table=is_table)
            if off is not None and not computed(lambda other, own=constant: _is_same(other, own)):  # type: ignore[misc]
                return _difference_text(name, meant, found, off)
    return ""


def _candidate_values(weight: Array, constant: Array) -> Iterator[tuple[Array, Array]]:
    """Yield expected and actual values if the constant may be that weight or a fold of it."""
    for wanted in [weight, weight.T] if weight.ndim == _MATRIX else [weight]:
        if constant.size != wanted.size or constant.shape[-1:] != wanted.shape[-1:]:
            continue
        found = constant.reshape(wanted.shape)
        yield wanted, found
        scaled = _scale_rows(wanted, found)
        if scaled is not None:
            yield scaled, found


def _is_same(computed: Array, constant: Array) -> bool:
    """Whether the constant is that tensor, or a fold of it, up to rounding."""
    import numpy as np

    return bool(computed.size == constant.size) and any(
        bool((np.abs(meant - found) <= _ROUNDED * np.abs(meant)).all())
        for meant, found in _candidate_values(computed, constant)
    )


def _scale_rows(wanted: Array, found: Array) -> Array | None:
    """Scale each row of the weight by the factor of the fold, rounded where `found` is.

    The factor is the median of the row's quotients. None if rows are too short to determine it.
    """
    import numpy as np

    rows, others = wanted.reshape(len(wanted), -1), found.reshape(len(wanted), -1)
    if wanted.ndim < _MATRIX or rows.shape[1] < _ROW:
        return None
    few = np.unique(np.linspace(0, len(rows) - 1, _GLANCE).astype(int))
    if _undo_fold(rows[few], others[few])[1].mean() < _ALIKE_SHARE / 2:
        return None  # the usual case: another weight of the same size, folded
    meant, near = _undo_fold(rows, others)
    if not np.isfinite(meant).all():
        return None
    return np.asarray(np.where(near, others, meant).astype(found.dtype)).reshape(wanted.shape)


def _undo_fold(rows: Array, others: Array) -> tuple[Array, Array]:
    """Scale rows by the median of their quotients; return where `others` match up to rounding."""
    import numpy as np

    times = np.ones(len(rows))
    for index, (row, other) in enumerate(zip(rows, others, strict=True)):
        alive = np.abs(row) > _TINY
        if alive.any():
            times[index] = np.median(other[alive] / row[alive])
    with np.errstate(all="ignore"):  # rows that are not finite are rejected by the caller
        meant = rows * times[:, None]
        return meant, np.abs(meant - others) <= _ROUNDED * np.abs(others)


def _find_altered(wanted: Array, found: Array, *, is_table: bool) -> NDArray[np.bool_] | None:
    """Return where the two differ if they are one weight with some elements altered."""
    import numpy as np

    alive = (np.abs(wanted) > _TINY) | (np.abs(found) > _TINY)
    differs = alive & (wanted != found)
    if not differs.any() or differs.sum() > (1 - _ALIKE_SHARE) * alive.sum():
        return None
    sizes = np.maximum(np.abs(wanted), np.abs(found))
    off: NDArray[np.bool_] = differs & (np.abs(wanted - found) > _ROUNDED * sizes)
    if not np.isfinite(found).all() or not np.isfinite(wanted).all():
        return None
    with np.errstate(over="ignore"):
        if (found.astype(np.float16) == found).all():  # stored in half, as beside integers
            off &= wanted.astype(np.float16) != found
    if not off.any() or (not is_table and _is_folded(off, wanted, found)):
        return None
    return off


def _is_folded(off: NDArray[np.bool_], wanted: Array, found: Array) -> bool:
    """Whether the differences are multiples of whole rows or columns of a weight with several."""
    if off.ndim < _MATRIX:
        return False
    rows, meant, others = (one.reshape(len(off), -1) for one in (off, wanted, found))
    for touched, one, other in ((rows, meant, others), (rows.T, meant.T, others.T)):
        some = touched.any(axis=1)
        if one.shape[1] > 1 and _undo_fold(one[some], other[some])[1].all():
            return True
    return False


def _difference_text(name: str, wanted: Array, found: Array, off: NDArray[np.bool_]) -> str:
    import numpy as np

    gap = np.where(off, np.abs(wanted - found), 0)
    where = np.unravel_index(int(gap.argmax()), gap.shape)
    return (
        f"the weight {name} is not the checkpoint's: {int(off.sum())} of {wanted.size} elements "
        f"differ, by up to {float(gap[where]):.3g} "
        f"({float(found[where]):.7g} instead of {float(wanted[where]):.7g})"
    )


# A model's fingerprint: two numbers per output on a fixed feed, to recognise the same model.


Fingerprint: TypeAlias = dict[str, tuple[float, float]]

_FINGERPRINT_TOLERANCE = 1e-3  # of the norm: far above the effect of another summation order


def compute_fingerprint(outputs: Outputs) -> Fingerprint:
    """Compute mean and L2 norm of each numeric output, over its finite elements."""
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
    """Whether two fingerprints belong to the same model."""
    if set(one) != set(other):
        return False
    return all(
        abs(a - b) <= _FINGERPRINT_TOLERANCE * max(one[name][1], other[name][1], 1e-12)
        for name in one
        for a, b in zip(one[name], other[name], strict=True)
    )
