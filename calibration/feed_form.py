"""The form of a feed: its batch axis, and how samples are split, cast and stacked."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.signature import FLOATS, Dim, InputSpec, Signature
from .calibration_report import FindingKind
from .sample_content import SampleError

if TYPE_CHECKING:
    from ..core.contract import Array, Feed

# Names of batch dims; any other first dim (`seq`, `points`) belongs to the sample.
_BATCH_NAME = re.compile(r"\w*batch\w*|b|bsz?|n", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class FeedForm:
    """How samples become feeds of one signature.

    `axes` are the batch axes of the inputs that have one: of most the first, of the states of a
    recurrent layer the second. A feed holds `per_feed` samples: the smallest batch size of the
    signature, or 0 if there is no batch axis and each sample is a feed.
    """

    signature: Signature
    axes: Mapping[str, int]
    per_feed: int

    @classmethod
    def of(cls, signature: Signature) -> FeedForm:
        """Find the batch axis: a first dim with a batch name, else the first input's first dim."""
        firsts = {spec.name: spec.dims[0] for spec in signature.inputs if spec.dims}
        named = [dim for dim in firsts.values() if dim.name and _BATCH_NAME.fullmatch(dim.name)]
        batch = next(iter(named or firsts.values()), None)
        if batch is None:
            return cls(signature=signature, axes={}, per_feed=0)
        axes = {name: 0 for name, dim in firsts.items() if dim == batch}
        for spec in signature.inputs if named else ():
            if spec.name not in axes and batch in spec.dims:
                axes[spec.name] = spec.dims.index(batch)
        counts = bool(named) or batch.name is None
        return cls(signature=signature, axes=axes, per_feed=batch.low if counts else 0)

    @property
    def batch(self) -> Dim | None:
        """The batch dim, if there is one."""
        specs = (spec for spec in self.signature.inputs if spec.name in self.axes)
        return next((spec.dims[self.axes[spec.name]] for spec in specs), None)

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs' names in order."""
        return tuple(spec.name for spec in self.signature.inputs)

    def rows(self, parts: Mapping[str, Array]) -> list[Feed]:
        """Split a file's arrays into samples with a batch axis of 1, or into whole feeds.

        Raises:
            SampleError: an input has too many or too few dims, or the batch sizes differ.
        """
        lacking = [spec.name for spec in self.signature.inputs if self._lacks_batch(spec, parts)]
        if lacking and len(lacking) < len(self.axes):
            raise SampleError(
                FindingKind.SHAPE, f"{lacking[0]} has no batch axis, other inputs have one"
            )
        if lacking:
            return [self._add_axes(parts, lacking)]
        sizes = {name: parts[name].shape[axis] for name, axis in self.axes.items()}
        if len(set(sizes.values())) > 1:
            text = ", ".join(f"{size} of {name}" for name, size in sizes.items())
            raise SampleError(FindingKind.SHAPE, f"has different batch sizes: {text}")
        count = next(iter(sizes.values()), 0)
        if not self.per_feed or count == self.per_feed:
            return [dict(parts)]
        if not count:
            shapes = ", ".join("x".join(map(str, array.shape)) for array in parts.values())
            raise SampleError(FindingKind.SHAPE, f"is empty: the shape is {shapes}")
        return [self.cut(parts, index, index + 1) for index in range(count)]

    def _add_axes(self, parts: Mapping[str, Array], lacking: Collection[str]) -> Feed:
        import numpy as np

        return {
            name: np.expand_dims(array, self.axes[name]) if name in lacking else array
            for name, array in parts.items()
        }

    def cut(self, feed: Mapping[str, Array], start: int, stop: int) -> Feed:
        """Return the samples `start` to `stop` of a feed; other inputs stay whole."""
        rows = slice(start, stop)
        return {
            name: array[(slice(None),) * self.axes[name] + (rows,)] if name in self.axes else array
            for name, array in feed.items()
        }

    def _lacks_batch(self, spec: InputSpec, parts: Mapping[str, Array]) -> bool:
        """Whether the array has no batch axis although the input has one."""
        rank = parts[spec.name].ndim
        if rank == len(spec.dims):
            return False
        if rank == len(spec.dims) - 1 and spec.name in self.axes:
            return True
        shape = "x".join(map(str, parts[spec.name].shape)) or "a number"
        raise SampleError(
            FindingKind.SHAPE,
            f"{spec.name} is {shape} with {rank} dims; {spec} has {len(spec.dims)}",
        )

    def fit(self, row: Feed) -> Feed:
        """Return the row in the inputs' dtypes, contiguous, with sizes and values checked.

        Raises:
            SampleError: a size does not match the signature, a cast would change values, or a value
                is NaN or Inf.
        """
        sizes: dict[str, int] = {}
        for spec in self.signature.inputs:
            for place, (dim, size) in enumerate(zip(spec.dims, row[spec.name].shape, strict=True)):
                if place != self.axes.get(spec.name) or not self.per_feed:
                    _check_size(spec, dim, size, sizes)
        self._check_sums(row, sizes)
        return {spec.name: _cast_array(spec, row[spec.name]) for spec in self.signature.inputs}

    def _check_sums(self, row: Feed, sizes: dict[str, int]) -> None:
        for spec in self.signature.inputs:
            for dim, size in zip(spec.dims, row[spec.name].shape, strict=True):
                wanted = dim.size(sizes) if sizes.keys() >= {*dim.bases} else size
                if dim.is_sum and wanted != size:
                    raise SampleError(
                        FindingKind.SHAPE,
                        f"{spec.name} has {dim.name}={size}, not {dim.relation}={wanted}",
                    )

    def count_missing(self, row: Feed) -> int:
        """Return how many more samples complete a feed."""
        held = next((row[name].shape[axis] for name, axis in self.axes.items()), 0)
        return max(self.per_feed - held, 0)

    def stack(self, rows: Sequence[Feed]) -> Feed:
        """Stack `per_feed` rows to one feed; inputs without a batch axis come from the first row.

        Raises:
            SampleError: the rows differ in shape.
        """
        import numpy as np

        if len(rows) == 1:
            return rows[0]
        for name in self.axes:
            shapes = {row[name].shape for row in rows}
            if len(shapes) > 1:
                text = " and ".join("x".join(map(str, shape)) for shape in sorted(shapes)[:2])
                raise SampleError(
                    FindingKind.SHAPE,
                    f"{name} has shapes {text}: the {self.per_feed} samples of a feed must match",
                )
        return {
            name: np.concatenate([row[name] for row in rows], axis=self.axes[name])
            if name in self.axes
            else array
            for name, array in rows[0].items()
        }


def _check_size(spec: InputSpec, dim: Dim, size: int, sizes: dict[str, int]) -> None:
    if dim.name is None:
        if size != dim.opt:
            raise SampleError(
                FindingKind.SHAPE, f"{spec.name} has size {size} where {spec} says {dim.opt}"
            )
        return
    if dim.bounded and not dim.low <= size <= dim.high:
        allowed = f"{dim.low}..{dim.high}"
        raise SampleError(
            FindingKind.SHAPE, f"{spec.name} has {dim.name}={size}, outside {allowed}"
        )
    if size < 1 and not (dim.bounded and dim.low == 0):
        raise SampleError(FindingKind.SHAPE, f"{spec.name} has {dim.name}={size}, which is empty")
    if dim.is_sum:
        return
    free = dim.free_size(size)
    if free is None:
        raise SampleError(
            FindingKind.SHAPE, f"{spec.name} has {dim.name}={size}, not {dim.relation}"
        )
    name = dim.free.name or dim.name
    if sizes.setdefault(name, free) != free:
        raise SampleError(
            FindingKind.SHAPE, f"{name} is {sizes[name]} in one input and {free} in {spec.name}"
        )


def _cast_array(spec: InputSpec, array: Array) -> Array:
    """Return a copy in the input's dtype; rounding between float dtypes is allowed."""
    import numpy as np

    if array.dtype.kind not in "fiub":
        raise SampleError(FindingKind.DTYPE, f"{spec.name} is {array.dtype}, not {spec.dtype}")
    _check_finite(spec, array)
    with np.errstate(all="ignore"):  # checked below
        cast = np.array(array, order="C").astype(spec.dtype, copy=False)
        if array.dtype == cast.dtype:
            return cast
        if array.dtype.kind == "f" and spec.dtype in FLOATS:
            kept = bool(np.isfinite(cast).all())
        else:
            kept = np.array_equal(cast.astype(array.dtype), array)
    if not kept:
        low, high = array.min(), array.max()
        raise SampleError(
            FindingKind.DTYPE,
            f"{spec.name} is {array.dtype} in {low:g}..{high:g}; {spec.dtype} cannot represent it",
        )
    return cast


def _check_finite(spec: InputSpec, array: Array) -> None:
    import numpy as np

    if array.dtype.kind != "f" or bool(np.isfinite(array).all()):
        return
    counts = {"NaN": int(np.isnan(array).sum()), "Inf": int(np.isinf(array).sum())}
    text = " and ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    raise SampleError(
        FindingKind.NON_FINITE, f"{spec.name} holds {text} among {array.size:,} values"
    )
