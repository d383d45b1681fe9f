"""Values of feeds: distributions to draw from, and checks of the user's own feed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.errors import ErrorCode, Hint, Option, UsageError
from ..core.signature import FLOATS, InputSpec, RowOrder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from ..core.contract import Array, Feed
    from ..core.signature import Dim, Signature

_DEVIATIONS = 4.0


@dataclass(frozen=True, kw_only=True)
class ValueDistribution:
    """Distribution of an input's values.

    Normal with `mean` and `std` if `std` is set, and clipped to `low..high` if these are set.
    Otherwise uniform in `low..high`, both ends included.
    """

    dtype: str
    low: float | None = None
    high: float | None = None
    mean: float = 0.0
    std: float | None = None
    follows: bool = False  # an end depends on a dim, so 0 and 1 at one size do not make a mask
    hides: bool = False  # a mask in which 1 hides a position
    order: RowOrder = RowOrder.FREE
    padding: int | None = None  # of a mask that is padded on the left only: the most zeros in a row

    def draw(self, shape: Sequence[int], generator: np.random.Generator) -> Array:
        """Draw an array of `shape` in the input's dtype."""
        return self.in_order(self._draw_raw(shape, generator))

    def in_order(self, array: Array) -> Array:
        """Sort the rows of the array as the input requires."""
        return self.order.sort(array)

    def _draw_raw(self, shape: Sequence[int], generator: np.random.Generator) -> Array:
        import numpy as np

        low, high = self.low, self.high
        if self.std is not None:
            drawn = self.mean + self.std * generator.standard_normal(shape)
        elif self.dtype in FLOATS:
            drawn = generator.uniform(low or 0.0, high or 0.0, shape)
        else:
            whole = generator.integers(int(low or 0), int(high or 0), shape, endpoint=True)
            return np.asarray(whole).astype(self.dtype)
        if low is not None and high is not None:
            drawn = np.clip(drawn, low, high)
        return np.asarray(drawn).astype(self.dtype)

    @property
    def binary(self) -> bool:
        """Whether the input holds only 0 and 1, as masks do."""
        free = not self.order or self.padding is not None
        whole = self.dtype not in FLOATS and not self.follows and free
        return whole and (self.low, self.high) == (0, 1)

    def masks(self, spec: InputSpec) -> bool:
        """Whether the input is a mask: 0 and 1 in rows. One element alone is a switch."""
        return self.binary and any(dim.high > 1 for dim in spec.dims)

    def draw_mask(
        self, spec: InputSpec, shape: Sequence[int], generator: np.random.Generator, feed: str
    ) -> Array:
        """Draw a mask that every model accepts: each row starts with a 1.

        Rows lie along the last axis that is not fixed at size 1: `seq` for `[batch,seq,1]`. No row
        is all zeros because most attentions leave that undefined. `max` is all ones, as in unpadded
        batches; `min`, `opt` and `example` are padded on the right by random lengths; others are
        random bits. With `padding`, rows start with up to as many zeros instead. If 1 hides a
        position, 0 and 1 are swapped.
        """
        import numpy as np

        if feed == "max":
            return np.full(shape, not self.hides, dtype=self.dtype)
        rows = tuple(shape[: row_axis(spec) + 1])
        length = rows[-1]
        if self.padding is not None:
            starts = generator.integers(0, self.padding, rows[:-1], endpoint=True)
            bits = np.arange(length) >= np.asarray(starts)[..., None]
        elif feed in ("min", "opt", "example"):
            ends = generator.integers(1, length, rows[:-1], endpoint=True)
            bits = np.arange(length) < np.asarray(ends)[..., None]
        else:
            bits = generator.integers(0, 1, rows, endpoint=True).astype(bool)
            bits[..., 0] = True
        return np.asarray(bits != self.hides).reshape(shape).astype(self.dtype)

    def hold(self, array: Array) -> Array:
        """Clip the values to `low..high`, or to 4 standard deviations if there is no range.

        A normal value lies further out once in 16 000 draws.
        """
        import numpy as np

        low, high = self.low, self.high
        if low is None or high is None:
            spread = _DEVIATIONS * (self.std or 1.0)
            low, high = self.mean - spread, self.mean + spread
        if self.dtype not in FLOATS:
            array = np.rint(np.asarray(array, np.float64))
        return self.in_order(np.asarray(np.clip(array, low, high)).astype(self.dtype))

    def mirror(self, array: Array) -> Array:
        """Flip the sign of the values, or mirror them about the middle of `low..high` if set."""
        import numpy as np

        if self.low is None or self.high is None:
            return np.asarray(np.negative(array.astype(np.float64))).astype(self.dtype)
        flipped = self.low + self.high - array.astype(np.float64)
        held = np.asarray(np.clip(flipped, self.low, self.high)).astype(self.dtype)
        return self.in_order(held)


def row_axis(spec: InputSpec) -> int:
    """Return the axis of a mask's rows: the last that can be longer than 1."""
    return max(axis for axis, dim in enumerate(spec.dims) if dim.high > 1)


def distribution_of(spec: InputSpec, sample: Array | None) -> ValueDistribution:
    """Return how to draw an input: by its value range, else like its sample, else by its dtype.

    By dtype: floats are standard normal, uint8 is 0..255 as in images, other integers and bools are
    0 or 1.

    Raises:
        UsageError: the value range does not fit the dtype.
    """
    if spec.values is not None:
        return _from_range(spec)
    if spec.dtype == "bool":
        return ValueDistribution(dtype="bool", low=0, high=1, hides=spec.hides)
    if sample is not None and sample.size:
        return _from_sample(spec.dtype, sample)
    if spec.dtype in FLOATS:
        return ValueDistribution(dtype=spec.dtype, std=1.0)
    return ValueDistribution(dtype=spec.dtype, low=0, high=255 if spec.dtype == "uint8" else 1)


def make_generator(*key: object) -> np.random.Generator:
    """Make a generator that depends on `key` alone, on every machine and in any order of calls."""
    import numpy as np

    text = "\x1f".join(str(part) for part in key)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def _from_range(spec: InputSpec) -> ValueDistribution:
    low, high = (spec.values.low, spec.values.high) if spec.values else (0.0, 0.0)
    least, most = _dtype_limits(spec.dtype)
    if low < least or high > most:
        raise UsageError(
            f"input {spec.name!r} is {spec.dtype}, which cannot hold the values {spec.values}",
            hint=f"keep the values within {least:g}..{most:g}, or give another dtype",
            code=ErrorCode.INVALID_VALUE,
        )
    if spec.dtype not in FLOATS and (low % 1 or high % 1):
        raise UsageError(
            f"input {spec.name!r} is {spec.dtype}, its values {spec.values} are not whole numbers",
            hint="write whole numbers for an integer input, as in {0..9}",
        )
    follows = spec.values is not None and spec.values.follows
    if spec.values is not None and spec.values.usual is not None:
        low, high = spec.values.usual
    order = RowOrder.FREE if spec.values is None else spec.values.order
    return ValueDistribution(dtype=spec.dtype, low=low, high=high, follows=follows, order=order)


def _dtype_limits(dtype: str) -> tuple[float, float]:
    """Return the smallest and the largest finite value of a dtype, exact for integers."""
    import numpy as np

    if dtype == "bool":
        return 0, 1
    if dtype in FLOATS:
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _from_sample(dtype: str, sample: Array) -> ValueDistribution:
    """Match the sample: the range of its integers, the mean and deviation of its floats."""
    import numpy as np

    if dtype not in FLOATS:
        least, most = int(sample.min()), int(sample.max())
        # Include 0: a mask of ones does not show what 0 does.
        return ValueDistribution(dtype=dtype, low=0 if least == most == 1 else least, high=most)
    finite = sample[np.isfinite(sample)].astype(np.float64)
    if not finite.size:
        return ValueDistribution(dtype=dtype, std=1.0)
    low, high = float(finite.min()), float(finite.max())
    return ValueDistribution(
        dtype=dtype, low=low, high=high, mean=float(finite.mean()), std=float(finite.std())
    )


# Checks of the user's own feed against the signature.


def check_samples(signature: Signature, samples: Feed) -> tuple[dict[str, Array], dict[str, int]]:
    """Return the arrays in the signature's order and dtypes, and the sizes of its free dims.

    Raises:
        UsageError: a name is missing or unknown, a cast would change values, a fixed dim has
            another size, a named dim has two sizes, is out of range or breaks its relation, or an
            array is empty.
    """
    _check_names(signature, samples)
    arrays = {spec.name: _cast_sample(spec, samples[spec.name]) for spec in signature.inputs}
    sizes: dict[str, int] = {}
    sums: list[tuple[InputSpec, Dim, int]] = []
    for spec, dim, size in _sample_dims(signature, arrays):
        if not dim.dynamic:
            _check_fixed(spec, dim, size)
            continue
        _check_range(spec, dim, size)
        if dim.is_sum:
            sums.append((spec, dim, size))
            continue
        free = _free_size(spec, dim, size)
        name = dim.free.name or ""
        if sizes.setdefault(name, free) != free:
            raise UsageError(
                f"the sample's dim {name!r} is {sizes[name]} in one input "
                f"and {free} in {spec.name!r}",
                hint="cut the arrays to one size, or give the dims different names",
                code=ErrorCode.SAMPLE_MISMATCH,
            )
    for spec, dim, size in sums:
        if dim.size(sizes) != size:
            raise _relation_error(spec, dim, f"{size}", f"{dim.relation}={dim.size(sizes)}")
    return arrays, sizes


def _free_size(spec: InputSpec, dim: Dim, size: int) -> int:
    """Return the size of the free dim that this dim derives from: 2 for 64 with `h=32*k`."""
    free = dim.free_size(size)
    if free is None:
        raise _relation_error(spec, dim, f"{size}", f"{dim.relation}")
    return free


def _relation_error(spec: InputSpec, dim: Dim, size: str, wanted: str) -> UsageError:
    return UsageError(
        f"the sample of {spec.name!r} has {dim.name}={size}, which is not {wanted}",
        hint=Hint("cut the sample to such a size, or correct the relation in ", Option("input")),
        option="input",
        code=ErrorCode.SAMPLE_MISMATCH,
    )


def _check_names(signature: Signature, samples: Feed) -> None:
    wanted = [spec.name for spec in signature.inputs]
    missing = [name for name in wanted if name not in samples]
    extra = [name for name in samples if name not in wanted]
    if missing or extra:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"has {', '.join(extra)}, which is no input"] if extra else []
        raise UsageError(
            f"the sample {' and '.join(parts)}",
            hint=f"the inputs are {', '.join(wanted)}",
            code=ErrorCode.SAMPLE_MISMATCH,
        )


def _cast_sample(spec: InputSpec, array: Array) -> Array:
    """Copy the array to the input's dtype if no value changes."""
    import numpy as np

    if array.dtype.kind not in "fiub":
        raise UsageError(
            f"the sample of {spec.name!r} is {array.dtype}, expected {spec.dtype}",
            hint="save plain arrays of numbers",
            code=ErrorCode.SAMPLE_MISMATCH,
        )
    if array.size == 0 and all(dim.low for dim in spec.dims):
        raise UsageError(
            f"the sample of {spec.name!r} is empty: {array.shape}",
            hint="give at least one element",
            code=ErrorCode.SAMPLE_MISMATCH,
        )
    with np.errstate(all="ignore"):  # the comparison below finds values that do not fit
        cast = np.array(array, order="C").astype(spec.dtype)
        back = cast.astype(array.dtype)
    if not np.array_equal(back, array, equal_nan=array.dtype.kind == "f"):
        raise UsageError(
            f"the sample of {spec.name!r} is {array.dtype} and would change as {spec.dtype}",
            hint=Hint(
                f"save it as {spec.dtype}, or write {spec.name}:{array.dtype} in ", Option("input")
            ),
            option="input",
            code=ErrorCode.SAMPLE_MISMATCH,
        )
    return cast


def _sample_dims(
    signature: Signature, arrays: dict[str, Array]
) -> Iterator[tuple[InputSpec, Dim, int]]:
    for spec in signature.inputs:
        shape = arrays[spec.name].shape
        if len(shape) != len(spec.dims):
            raise UsageError(
                f"the sample of {spec.name!r} has {len(shape)} dims, {spec} has {len(spec.dims)}",
                hint=f"the sample's shape is {shape}",
                code=ErrorCode.SAMPLE_MISMATCH,
            )
        for dim, size in zip(spec.dims, shape, strict=True):
            yield spec, dim, size


def _check_fixed(spec: InputSpec, dim: Dim, size: int) -> None:
    if size != dim.opt:
        raise UsageError(
            f"the sample of {spec.name!r} has size {size} where {spec} says {dim.opt}",
            hint="give another sample, or a dim name to make the size dynamic",
            code=ErrorCode.SAMPLE_MISMATCH,
        )


def _check_range(spec: InputSpec, dim: Dim, size: int) -> None:
    if dim.bounded and not dim.low <= size <= dim.high:
        raise UsageError(
            f"the sample of {spec.name!r} has {dim.name}={size}, outside {dim.low}..{dim.high}",
            hint=f"widen the range, or cut the sample to at most {dim.high}",
            code=ErrorCode.SAMPLE_MISMATCH,
        )
