"""Measure one array against another: errors, SQNR, cosine, agreement; fill values separately."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from ..core.contract import Array

# Elements per block: 128 kB as float64, which stays in cache and is not returned to the system
# between blocks (three times as fast as 1 MB). A row of classes may be longer.
BLOCK = 1 << 14
# Sizes of a last dim for which the index of the largest element is meaningful.
CLASSES = range(2, 100_001)
_TIE = 4.0  # RMS errors: an element this near the largest counts as tied with it
_TOP, _TOP_FROM = 5, 10  # top-5 agreement is measured from ten elements per row


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Measurements with e = eager and a = artifact, over the elements finite in both.

    Attributes:
        size: number of elements of the array.
        compared: number of elements that the errors cover: finite in both and within the requested
            magnitudes.
        differing: number of elements that are not equal; NaN equals NaN.
        max_abs: max |a - e|.
        mean_abs: mean |a - e|.
        max_rel: max |a - e| / |e|, over elements with e != 0.
        relative_l2: sqrt(sum (a - e)^2 / sum e^2); None if e is all zero.
        cosine: sum a*e / (sqrt(sum a^2) * sqrt(sum e^2)); None if either side is all zero.
        sqnr: 10 log10(sum e^2 / sum (a - e)^2) in dB; None without error or without signal.
        argmax_agreement: share of rows (last axis) whose largest element is at the same place.
        top1_agreement: like `argmax_agreement`, but a row also agrees if eager's element at the
            artifact's place is within four times the array's RMS error of eager's largest.
        top5_agreement: share of eager's five largest per row that are among the artifact's five;
            None below ten elements per row.
        rows: number of these rows.
        nonfinite_eager: number of NaN and Inf in e.
        nonfinite_artifact: number of NaN and Inf in a.
        nonfinite_mismatch: number of places where one side is NaN or Inf and the other differs.
        peak: max |e|, over the compared elements.
        signal: mean e^2.
        noise: mean (a - e)^2.
    """

    size: int
    compared: int
    differing: int
    max_abs: float | None = None
    mean_abs: float | None = None
    max_rel: float | None = None
    relative_l2: float | None = None
    cosine: float | None = None
    sqnr: float | None = None
    argmax_agreement: float | None = None
    top1_agreement: float | None = None
    top5_agreement: float | None = None
    rows: int = 0
    nonfinite_eager: int = 0
    nonfinite_artifact: int = 0
    nonfinite_mismatch: int = 0
    peak: float | None = None
    signal: float = 0.0
    noise: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether every element is equal; -0 equals 0, NaN equals NaN."""
        return self.differing == 0


def measure_arrays(
    eager: Array, artifact: Array, *, above: float = -1.0, upto: float = math.inf
) -> Measures:
    """Measure `artifact` against `eager`, in float64 and block by block.

    Memory: about ten blocks of at most 1 MB beside the two arrays, whatever their size and strides.

    Args:
        eager: the reference, of any shape and numeric dtype, including empty and 0-d.
        artifact: the array to judge, of the same shape; a complex number counts as two real ones.
        above: measure errors only where |e| is above this.
        upto: measure errors only where |e| is at most this.

    Raises:
        ValueError: the shapes differ, or an array is not numeric.
    """
    if eager.shape != artifact.shape:
        raise ValueError(f"shapes {eager.shape} and {artifact.shape} cannot be measured")
    if not (is_numeric(eager) and is_numeric(artifact)):
        raise ValueError(f"dtypes {eager.dtype} and {artifact.dtype} cannot be measured")
    if "c" in eager.dtype.kind + artifact.dtype.kind:
        return measure_arrays(_real_parts(eager), _real_parts(artifact), above=above, upto=upto)
    ranked = eager.dtype.kind == "f" and eager.ndim > 1 and eager.shape[-1] in CLASSES
    sums = _BlockSums(above=above, upto=upto, ranked=ranked and eager.size > 0)
    for left, right in iter_blocks(eager, artifact):
        sums.add(left, right)
    return sums.measures()


def to_decibel(signal: float, noise: float) -> float | None:
    """Return 10 log10(signal / noise) in dB; None if it is not finite."""
    ratio = _divide(signal, noise)
    return 10 * math.log10(ratio) if ratio else None


def is_numeric(array: Array) -> bool:
    """Whether errors can be measured: floats, complex, integers, bools."""
    return array.dtype.kind in "fciub"


def iter_blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Split arrays of one shape into small blocks, which are views whatever the strides.

    Axes are split from the front; a last axis within `CLASSES` stays whole.
    """
    first = arrays[0]
    if first.size <= BLOCK or (first.ndim == 1 and len(first) in CLASSES):
        yield arrays
    elif len(first) == 1:
        yield from iter_blocks(*(array[0] for array in arrays))
    else:
        half = len(first) // 2
        yield from iter_blocks(*(array[:half] for array in arrays))
        yield from iter_blocks(*(array[half:] for array in arrays))


def _real_parts(array: Array) -> Array:
    """Stack real and imaginary parts along a new last axis."""
    import numpy as np

    return np.stack([array.real, array.imag], axis=-1)


def _inner_product(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Sum products in this thread; BLAS threads would burn CPU time while they wait."""
    import numpy as np

    return float(np.einsum("i,i->", one, other))


def _divide(above: float, below: float) -> float | None:
    if below == 0:
        return None
    ratio = above / below
    return ratio if math.isfinite(ratio) else None


@dataclass(kw_only=True)
class _BlockSums:
    """Accumulates sums over the blocks of one pair of arrays."""

    above: float
    upto: float
    ranked: bool
    size: int = 0
    compared: int = 0
    differing: int = 0
    rows: int = 0
    agreeing: int = 0
    among: int = 0
    margins: list[float] = field(default_factory=list)
    related: int = 0
    nonfinite_eager: int = 0
    nonfinite_artifact: int = 0
    nonfinite_mismatch: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    peak: float = 0.0
    absolute: float = 0.0
    signal: float = 0.0
    answer: float = 0.0
    noise: float = 0.0
    product: float = 0.0

    def add(self, eager: Array, artifact: Array) -> None:
        """Count one block, then sum over its elements finite in both."""
        import numpy as np

        truth = eager.astype(np.float64, order="C")
        answer = artifact.astype(np.float64, order="C")
        finite, finite_answer = np.isfinite(truth), np.isfinite(answer)
        same = (eager == artifact) | (np.isnan(truth) & np.isnan(answer))
        self.size += eager.size
        self.differing += eager.size - int(np.count_nonzero(same))
        self.nonfinite_eager += eager.size - int(np.count_nonzero(finite))
        self.nonfinite_artifact += eager.size - int(np.count_nonzero(finite_answer))
        kept = finite & finite_answer
        self.nonfinite_mismatch += int(np.count_nonzero(~kept & ~same))
        if self.above >= 0 or self.upto < math.inf:
            magnitude = np.abs(truth)
            kept &= (magnitude > self.above) & (magnitude <= self.upto)
        if self.ranked:
            self._rank(np.atleast_2d(eager), np.atleast_2d(artifact))
        if kept.all() and eager.size:
            self._sum(truth.reshape(-1), answer.reshape(-1))
        elif kept.any():
            self._sum(truth[kept], answer[kept])

    def _rank(self, eager: Array, artifact: Array) -> None:
        """Count rows that agree; for others, record how far eager's value is below its largest."""
        import numpy as np

        eager, artifact = (a.reshape(-1, a.shape[-1]) for a in (eager, artifact))
        best, theirs = eager.argmax(axis=-1), artifact.argmax(axis=-1)
        missed = np.flatnonzero(best != theirs)
        self.rows += len(best)
        self.agreeing += len(best) - len(missed)
        if len(missed):
            largest = eager[missed, best[missed]].astype(np.float64)
            with np.errstate(invalid="ignore"):  # Inf - Inf gives NaN, which is not a tie
                self.margins += (largest - eager[missed, theirs[missed]]).tolist()
        if eager.shape[-1] >= _TOP_FROM:
            first, second = (
                np.argpartition(-a, _TOP, axis=-1)[:, :_TOP] for a in (eager, artifact)
            )
            self.among += int((first[:, :, None] == second[:, None, :]).sum())

    def _sum(self, truth: NDArray[np.float64], answer: NDArray[np.float64]) -> None:
        """Add the sums over 1-d float64 pieces without NaN or Inf."""
        import numpy as np

        with np.errstate(over="ignore"):  # float64 near its limits: Inf gives None
            error = np.abs(answer - truth)
            size = np.abs(truth)
            self.compared += truth.size
            self.max_abs = max(self.max_abs, float(error.max()))
            self.peak = max(self.peak, float(size.max()))
            self.absolute += float(error.sum())
            self.signal += _inner_product(truth, truth)
            self.answer += _inner_product(answer, answer)
            self.noise += _inner_product(error, error)
            self.product += _inner_product(truth, answer)
            nonzero = size > 0
            self.related += int(np.count_nonzero(nonzero))
            relative = np.divide(error, size, out=np.zeros_like(error), where=nonzero)
            self.max_rel = max(self.max_rel, float(relative.max()))

    def measures(self) -> Measures:
        n = self.compared
        square = _divide(self.noise, self.signal)
        rms = math.sqrt(self.noise / n) if n else 0.0
        ties = sum(margin <= _TIE * rms for margin in self.margins)  # the errors explain these
        cosine = _divide(self.product, math.sqrt(self.signal) * math.sqrt(self.answer))
        return Measures(
            size=self.size,
            compared=n,
            differing=self.differing,
            max_abs=self.max_abs if n else None,
            mean_abs=self.absolute / n if n else None,
            max_rel=self.max_rel if self.related else None,
            relative_l2=None if square is None else math.sqrt(square),
            cosine=None if cosine is None else max(-1.0, min(1.0, cosine)),
            sqnr=to_decibel(self.signal, self.noise),
            argmax_agreement=self.agreeing / self.rows if self.rows else None,
            top1_agreement=(self.agreeing + ties) / self.rows if self.rows else None,
            top5_agreement=self.among / (_TOP * self.rows) if self.among else None,
            rows=self.rows,
            nonfinite_eager=self.nonfinite_eager,
            nonfinite_artifact=self.nonfinite_artifact,
            nonfinite_mismatch=self.nonfinite_mismatch,
            peak=self.peak if n else None,
            signal=self.signal / n if n else 0.0,
            noise=self.noise / n if n else 0.0,
        )


# Fill values, such as the -1e4 that an additive mask puts on logits, measured separately.


# A magnitude is fill if it is this large and this many times the median: at that scale, every error
# in the other elements would look small. The first limit is half of 1e4 because a mask adds -1e4 to
# logits, which may give -9998.
_FILL_FROM, _FILL_ABOVE = 5e3, 1e3
# A mask may cover most of an output, and large logits exceed a thousandth of 1e4. If no magnitude
# lies between these shares of the peak and some lie below, those above are fill too: the narrower
# the gap, the more uniform fill must be.
_VOID_RULES = (0.001, 0.4), (0.01, 0.9)


@dataclass(frozen=True, kw_only=True)
class FillSplit:
    """The measures of an output's regular elements, and of its fill values if it has any."""

    answers: Measures
    fill: Measures | None = None

    @property
    def parts(self) -> tuple[Measures, ...]:
        """The measures of the regular elements, then of fill if there is any."""
        return (self.answers,) if self.fill is None else (self.answers, self.fill)


def measure_with_fill(eager: Array, artifact: Array) -> FillSplit:
    """Measure two numeric arrays of one shape, with eager's fill elements separate.

    Element counts (`size`, `differing`, the non-finite ones) cover all elements in both parts.
    """
    limit = fill_limit(eager)
    if limit == math.inf:
        return FillSplit(answers=measure_arrays(eager, artifact))
    return FillSplit(
        answers=measure_arrays(eager, artifact, upto=limit),
        fill=measure_arrays(eager, artifact, above=limit),
    )


def fill_limit(eager: Array) -> float:
    """Return the magnitude above which elements are fill; Inf if there is no fill.

    For a peak of at least 5e3, the limit is 1e3 times the median of nonzero |e| if the peak exceeds
    that, and the upper end of a gap in the magnitudes otherwise.
    """
    import numpy as np

    if eager.dtype.kind != "f":
        return math.inf
    peak = max((float(size.max()) for size in _magnitudes(eager)), default=0.0)
    if peak < _FILL_FROM:
        return math.inf
    sizes = np.concatenate([size[size > 0] for size in _magnitudes(eager)])
    with np.errstate(over="ignore"):  # float64 near its limits: Inf exceeds any peak
        limit = _FILL_ABOVE * float(np.median(sizes))
    return limit if limit < peak else _find_void_end(sizes / peak) * peak


def _find_void_end(shares: Array) -> float:
    """Return the upper end of the first gap, as a share of the peak; Inf if there is none."""
    for low, high in _VOID_RULES:
        below = shares < low
        if below.any() and (below | (shares >= high)).all():
            return high * (1 - 1e-6)  # just below the values at the upper end
    return math.inf


def _magnitudes(eager: Array) -> Iterator[Array]:
    """Yield the magnitudes of the finite elements, in their own dtype and block by block."""
    import numpy as np

    for block, _ in iter_blocks(eager, eager):
        size = np.abs(block)
        size = size[np.isfinite(size)]
        if size.size:
            yield size
