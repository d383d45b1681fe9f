"""Feeds that hurt: corners and odd sizes, batches that must not mix, values at the edge."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ..core.signature import FLOATS, Dim, InputSpec, Signature
from .draw import Values, generator_for
from .feeds import NEGATED, OPT, Drawer, NamedFeed

if TYPE_CHECKING:
    import numpy as np

    from ..core.contract import Array, Feed

REPEATED = "repeated"
BATCHES = (1, 2, 3, 7)
# How much larger the values of `large` are, and how much smaller those of `small`: what data has
# that was not normalised (images in 0..255 for 0..1, audio in 16 bits), and what is lost in an
# epsilon of 1e-6. Squares of `large` stay far below FP32's largest number, and above FP16's.
MAGNITUDE = 1000.0
_COMBINED = 3  # dynamic dims of which all corners are drawn: 8 less `min` and `max`
_FEW_ROWS = 2  # rows of a feed that is about values alone: what they do shows on few
_LARGE_ROW = 1 << 16  # elements: of rows as large as an image of 150 x 150, one has to do

_Change: TypeAlias = "Callable[[_Hard, InputSpec, Array], Array | None]"


def hard_feeds(
    signature: Signature, *, seed: int = 0, samples: Feed | None = None
) -> tuple[NamedFeed, ...]:
    """Draw the feeds on which conversions go wrong that hold on usual ones.

    Sizes: `corner:<dims>` (the named dims at their highest, the others at their lowest), or
    `lowest:<dim>` and `highest:<dim>` where there are more than three; `odd`; `batch-1`, `-2`, `-3`
    and `-7`. Rows: `repeated`. Values, with one or two rows: `zeros`, `constant`, `small`,
    `large`, `lowest`, `highest`, `signs`, `one-hot`, `mask-left`, `mask-holes`, `mask-one`. What
    would say nothing new (a size that is drawn already, values as another feed has) is left out.

    Raises:
        UsageError: the samples do not fit the signature.
    """
    drawer = Drawer.of(signature, seed, samples)
    sized = tuple(_sized(drawer))
    return (*sized, *_repeated(drawer), *_valued(drawer))


def batch_of(signature: Signature) -> Dim | None:
    """The dim that counts rows: the first input's first dim that is dynamic, if there is one."""
    firsts = (spec.dims[0] for spec in signature.inputs if spec.dims)
    return next((dim for dim in firsts if dim.dynamic), None)


def _sized(drawer: Drawer) -> Iterator[NamedFeed]:
    """Feeds at sizes that no other feed has for certain."""
    dims = drawer.signature.dynamic_dims
    if not dims:
        return
    seen = [feed.sizes for feed in drawer.corners().values()]
    for name, sizes, kind in (*_corners(dims), *_odd(drawer), *_batches(drawer)):
        if sizes not in seen:
            seen.append(sizes)
            yield drawer.feed(name, sizes, kind)


_Sized: TypeAlias = Iterator[tuple[str, dict[str, int], str]]  # name, sizes, kind


def _corners(dims: Mapping[str, Dim]) -> _Sized:
    """Every combination of lowest and highest; each dim alone where these would be too many."""
    if len(dims) > _COMBINED:
        opt = {name: dim.opt for name, dim in dims.items()}
        for name, dim in dims.items():
            yield f"lowest:{name}", {**opt, name: dim.low}, "shape"
            yield f"highest:{name}", {**opt, name: dim.high}, "shape"
        return
    for ends in itertools.product((False, True), repeat=len(dims)):
        high = [name for name, end in zip(dims, ends, strict=True) if end]
        sizes = {name: dim.high if name in high else dim.low for name, dim in dims.items()}
        yield f"corner:{'+'.join(high)}", sizes, "shape"


def _odd(drawer: Drawer) -> _Sized:
    """Every dim but the batch at an odd size near its opt: what halves it must round."""
    batch = batch_of(drawer.signature)
    sizes: dict[str, int] = {}
    for name, dim in drawer.signature.dynamic_dims.items():
        odd = [size for size in (dim.opt + 1, dim.opt - 1, dim.opt + 2, dim.opt - 2) if size % 2]
        fit = [size for size in odd if dim.low <= size <= dim.high and size not in sizes.values()]
        sizes[name] = dim.opt if dim == batch or not fit else fit[0]
    yield "odd", sizes, "shape"


def _batches(drawer: Drawer) -> _Sized:
    batch = batch_of(drawer.signature)
    opt = {name: dim.opt for name, dim in drawer.signature.dynamic_dims.items()}
    for size in BATCHES:
        if batch is not None and batch.name and batch.low <= size <= batch.high:
            yield f"batch-{size}", {**opt, batch.name: size}, "batch"


def _repeated(drawer: Drawer) -> Iterator[NamedFeed]:
    """One row again and again: whatever the artifact makes of it, it is the same in each."""
    import numpy as np

    batch = batch_of(drawer.signature)
    if batch is None or batch.name is None or batch.high < 2:  # noqa: PLR2004 - one row repeats nothing
        return
    dims = drawer.signature.dynamic_dims
    rows = min(batch.high, max(batch.low, BATCHES[2]))
    base = drawer.feed(OPT, {**{name: dim.opt for name, dim in dims.items()}, batch.name: rows})
    arrays = {
        spec.name: np.repeat(base.arrays[spec.name][:1], rows, axis=0)
        if spec.dims and spec.dims[0].name == batch.name
        else base.arrays[spec.name]
        for spec in drawer.signature.inputs
    }
    yield NamedFeed(name=REPEATED, arrays=arrays, sizes=base.sizes, kind="batch")


@dataclass(frozen=True, kw_only=True)
class _Hard:
    """One kind of hard values of one input while it is drawn."""

    name: str
    values: Values
    key: tuple[object, ...]

    @property
    def generator(self) -> np.random.Generator:
        """The same on every machine and in every order."""
        return generator_for(*self.key)


def _valued(drawer: Drawer) -> Iterator[NamedFeed]:
    """`opt` with few rows, its values made hard in every input that can hold such values."""
    base = _base(drawer)
    seen = [base, replace(drawer.negated(base), name=NEGATED)]
    for name, change in _CHANGES.items():
        arrays = dict(base.arrays)
        for spec in drawer.signature.inputs:
            hard = _Hard(
                name=name,
                values=drawer.values[spec.name],
                key=(drawer.seed, name, spec.name),
            )
            changed = change(hard, spec, arrays[spec.name])
            if changed is not None:
                arrays[spec.name] = changed
        if not any(_same(arrays, feed.arrays) for feed in seen):
            beyond = name in _BEYOND
            seen.append(
                NamedFeed(name=name, arrays=arrays, sizes=base.sizes, kind="value", beyond=beyond)
            )
            yield seen[-1]


def _base(drawer: Drawer) -> NamedFeed:
    sizes = {name: dim.opt for name, dim in drawer.signature.dynamic_dims.items()}
    batch = batch_of(drawer.signature)
    if batch is not None and batch.name:
        rows = 1 if _row_size(drawer.signature, batch) > _LARGE_ROW else _FEW_ROWS
        sizes[batch.name] = max(batch.low, min(batch.opt, rows))
    return drawer.feed(OPT, sizes)


def _row_size(signature: Signature, batch: Dim) -> int:
    """Elements of one row over all inputs, at the opt sizes."""
    return sum(
        math.prod(dim.opt for dim in spec.dims if dim.name != batch.name)
        for spec in signature.inputs
    )


def _same(one: Feed, other: Feed) -> bool:
    import numpy as np

    return all(np.array_equal(one[name], other[name]) for name in one)


def _is_mask(hard: _Hard, array: Array) -> bool:
    return hard.values.binary and array.ndim > 0


def _filled(hard: _Hard, array: Array, value: float) -> Array | None:
    """The array full of `value`; None where the input does not hold it."""
    import numpy as np

    low, high = hard.values.low, hard.values.high
    outside = low is not None and high is not None and not low <= value <= high
    return None if outside else np.full_like(array, value)


def _zeros(hard: _Hard, spec: InputSpec, array: Array) -> Array | None:
    return _filled(hard, array, 0.0) if spec.dtype in FLOATS else None


def _constant(hard: _Hard, spec: InputSpec, array: Array) -> Array | None:
    """1 where nothing is known of the values; `lowest` and `highest` are constants otherwise."""
    known = hard.values.low is not None
    return None if known or spec.dtype not in FLOATS else _filled(hard, array, 1.0)


def _scaled(hard: _Hard, spec: InputSpec, array: Array, factor: float) -> Array | None:
    import numpy as np

    if spec.dtype not in FLOATS:
        return None
    reach = float(np.finfo(spec.dtype).max)
    scaled = np.clip(array.astype(np.float64) * factor, -reach, reach)
    low, high = hard.values.low, hard.values.high
    if spec.values is not None or factor < 1:  # a declared range is kept; a small value is usual
        low, high = -reach if low is None else low, reach if high is None else high
        if scaled.size and not low <= scaled.min() <= scaled.max() <= high:
            return None
    return np.asarray(scaled).astype(array.dtype)


def _small(hard: _Hard, spec: InputSpec, array: Array) -> Array | None:
    return _scaled(hard, spec, array, 1 / MAGNITUDE)


def _large(hard: _Hard, spec: InputSpec, array: Array) -> Array | None:
    return None if spec.values is not None else _scaled(hard, spec, array, MAGNITUDE)


def _end(hard: _Hard, array: Array, end: float | None) -> Array | None:
    if end is None or _is_mask(hard, array):
        return None
    return _filled(hard, array, end)


def _lowest(hard: _Hard, spec: InputSpec, array: Array) -> Array | None:
    del spec
    return _end(hard, array, hard.values.low)


def _highest(hard: _Hard, spec: InputSpec, array: Array) -> Array | None:
    del spec
    return _end(hard, array, hard.values.high)


def _signs(hard: _Hard, spec: InputSpec, array: Array) -> Array | None:
    """Every other sign or so flipped, where `negated` flips them all."""
    import numpy as np

    if spec.dtype not in FLOATS:
        return None
    flipped = hard.generator.integers(0, 1, array.shape, endpoint=True).astype(bool)
    return np.where(flipped, hard.values.mirror(array), array).astype(array.dtype)


def _one_hot(hard: _Hard, spec: InputSpec, array: Array) -> Array | None:
    """In each row one element at its highest, all others 0 or at their lowest."""
    import numpy as np

    if _is_mask(hard, array) or array.ndim == 0:
        return None
    low, high = hard.values.low, hard.values.high
    off = 0.0 if low is None or high is None or low <= 0 <= high else low
    if spec.dtype not in FLOATS:
        off = low or 0.0
    rows = np.full_like(array, off).reshape(array.shape[0] if array.ndim > 1 else 1, -1)
    places = hard.generator.integers(0, rows.shape[1], rows.shape[0])
    rows[np.arange(rows.shape[0]), places] = 1.0 if high is None else high
    return rows.reshape(array.shape)


def _mask(hard: _Hard, spec: InputSpec, array: Array) -> Array | None:
    """Masks as models get them seldom: padded on the left, with holes, of one position."""
    import numpy as np

    del spec
    if not _is_mask(hard, array):
        return None
    length = array.shape[-1]
    position = np.arange(length)
    kept = {
        "mask-left": position >= length // 2,
        "mask-holes": position % 2 == 0,
        "mask-one": position == length // 2,
    }[hard.name]
    return np.broadcast_to(kept, array.shape).astype(array.dtype)


_CHANGES: dict[str, _Change] = {
    "zeros": _zeros,
    "constant": _constant,
    "small": _small,
    "large": _large,
    "lowest": _lowest,
    "highest": _highest,
    "signs": _signs,
    "one-hot": _one_hot,
    "mask-left": _mask,
    "mask-holes": _mask,
    "mask-one": _mask,
}
# Not what samples show, or, where a mask is 0 in front, what many attentions leave undefined.
_BEYOND = ("large", "mask-left", "mask-one")
