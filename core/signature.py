"""The Signature: a model's inputs and outputs, by name, dtype and dims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from .dims import (
    UNBOUNDED,
    Dim,
    Relation,
    check_one_range,
    default_opt,
    resolve_bounds,
    settle_dims,
)
from .errors import ErrorCode, Hint, Option, UsageError, unknown_name_error

if TYPE_CHECKING:
    from .contract import Array

__all__ = [
    "DTYPES", "FLOATS", "UNBOUNDED", "Dim", "InputPattern", "InputSpec", "Relation", "RowOrder",
    "Signature", "ValueRange", "default_opt", "merge_inputs", "settle_inputs",
]  # fmt: skip

DTYPES = (
    "float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
DTYPE_NAMES = {"float": "float32", "double": "float64", "boolean": "bool"}  # as files name them
FLOATS = ("float32", "float64", "float16")
_SAMPLES = Option("samples", "SAMPLE")


class RowOrder(StrEnum):
    """The order of values along the last axis, as in `--input`."""

    FREE = ""
    ASCENDING = "ascending"  # no value is less than the one before it, such as boxes and offsets
    DESCENDING = "descending"  # none is greater, such as the lengths of sorted sequences

    def sort(self, array: Array) -> Array:
        """Sort the rows of an array in this order."""
        import numpy as np

        if self is RowOrder.FREE or not array.ndim:
            return array
        rising = np.sort(array, axis=-1)
        return rising if self is RowOrder.ASCENDING else rising[..., ::-1].copy()


@dataclass(frozen=True, kw_only=True)
class ValueRange:
    """The values that drawn feeds may hold, both ends included.

    An end with a relation follows a dim of any input (`{0..nodes-1}`); `low` and `high` are then
    the least and the greatest value over the dim's sizes. `usual` is the part of a chosen range
    that feeds are drawn from, except feeds of edge values; None means the whole range. `order` is
    that of each row along the last axis.
    """

    low: float
    high: float
    low_dim: Relation | None = None
    high_dim: Relation | None = None
    chosen: bool = False  # found by modelc, not stated
    usual: tuple[float, float] | None = None
    order: RowOrder = RowOrder.FREE

    @property
    def follows(self) -> bool:
        """Whether an end follows a dim."""
        return bool(self.bases)

    @property
    def bases(self) -> tuple[str, ...]:
        """The dims that the ends follow."""
        return tuple(one.base for one in (self.low_dim, self.high_dim) if one is not None)

    def at(self, sizes: Mapping[str, int]) -> ValueRange:
        """Resolve the ends for these sizes of dims, by name; keep the others."""
        low, high = self.low_dim, self.high_dim
        if low is not None and low.base in sizes:
            return replace(self, low=low.size(sizes[low.base]), low_dim=None).at(sizes)
        if high is not None and high.base in sizes:
            return replace(self, high=high.size(sizes[high.base]), high_dim=None)
        return self

    def __str__(self) -> str:
        order = f" {self.order}" if self.order else ""
        return f"{{{_end(self.low, self.low_dim)}..{_end(self.high, self.high_dim)}{order}}}"


def _end(value: float, relation: Relation | None) -> str:
    return repr(value).removesuffix(".0") if relation is None else str(relation)


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """One input tensor. A dotted name (`inputs.image`) is a place in a nested argument.

    `hides` means that True in a bool mask hides a position, as padding masks of torch.nn do.
    """

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    values: ValueRange | None = None
    hides: bool = False

    def __str__(self) -> str:
        dims = ",".join(str(dim) for dim in self.dims)
        return f"{self.name}:{self.dtype}[{dims}]{self.values or ''}"


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Ordered inputs and output names, which determine capture, axes, feeds and verdicts."""

    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.inputs]
        for name in names:
            if names.count(name) > 1:
                raise _duplicate_input_error(name)
        dims: dict[str, Dim] = {}
        for dim in self.dims_with_names():
            check_one_range(dim, dims.setdefault(dim.name or "", dim))

    def dims_with_names(self) -> Iterable[Dim]:
        """Yield every named dim of every input, in order, with repetitions."""
        return (dim for spec in self.inputs for dim in spec.dims if dim.name is not None)

    @property
    def dynamic_dims(self) -> dict[str, Dim]:
        """The dims that vary, by name, in order of first appearance."""
        return {dim.name: dim for dim in self.dims_with_names() if dim.name and dim.dynamic}

    @property
    def free_dims(self) -> dict[str, Dim]:
        """The dims whose sizes may be chosen, by name; those with a relation follow from them."""
        single = (dim for dim in self.dynamic_dims.values() if not dim.is_sum)
        return {dim.free.name or "": dim.free for dim in single}

    @property
    def opt_sizes(self) -> dict[str, int]:
        """The opt size of each free dim."""
        return {name: dim.opt for name, dim in self.free_dims.items()}

    @property
    def low_sizes(self) -> dict[str, int]:
        """The lowest size of each free dim."""
        return {name: dim.low for name, dim in self.free_dims.items()}

    @property
    def high_sizes(self) -> dict[str, int]:
        """The highest size of each free dim."""
        return {name: dim.high for name, dim in self.free_dims.items()}

    def count_elements(self, sizes: Mapping[str, int]) -> int:
        """Return the number of elements of all inputs at these sizes of the free dims."""
        return sum(math.prod(dim.size(sizes) for dim in spec.dims) for spec in self.inputs)

    def fix_at_opt(self, names: Iterable[str]) -> Signature:
        """Fix these dims, and what depends on them, at their opt sizes.

        Raises:
            UsageError: a name is not a dynamic dim.
        """
        known = {**self.free_dims, **self.dynamic_dims}
        bases: set[str] = set()
        for name in names:
            if name not in known:
                raise unknown_name_error("dim in --static:", name, list(known) or ["(none varies)"])
            bases.update(known[name].bases)
        sizes = {n: dim.opt for n, dim in known.items() if bases.issuperset(dim.bases)}
        return replace(
            self,
            inputs=tuple(
                replace(
                    spec,
                    values=spec.values and spec.values.at(sizes),
                    dims=tuple(self._fix_dim(dim, sizes) for dim in spec.dims),
                )
                for spec in self.inputs
            ),
        )

    def _fix_dim(self, dim: Dim, sizes: Mapping[str, int]) -> Dim:
        """Return the dim with these sizes of free dims fixed."""
        fixed = [name for name in dim.bases if name in sizes]
        if dim.relation is None or len(fixed) == len(dim.bases):
            return Dim.of_size(dim.opt) if fixed else dim
        if not fixed:
            return dim
        relation = dim.relation.fix(sizes)
        return Dim.follow(dim.name or "", relation, *(self.free_dims[n] for n in relation.bases))

    def with_outputs(self, outputs: Iterable[str]) -> Signature:
        """Return the same inputs with eager's output names."""
        return replace(self, outputs=tuple(outputs))

    def sizes_by_name(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of all named dims for these sizes of the free dims."""
        return {
            **sizes,
            **{dim.name: dim.size(sizes) for dim in self.dims_with_names() if dim.name},
        }

    def axes(self) -> dict[str, dict[int, str]]:
        """Return the dynamic axes by input: `{"x": {0: "batch"}}`, without inputs that have none.

        Dims that are equal by a relation share one name.
        """
        found = {
            spec.name: {i: _axis_name(dim) for i, dim in enumerate(spec.dims) if dim.dynamic}
            for spec in self.inputs
        }
        return {name: axes for name, axes in found.items() if axes}


def _axis_name(dim: Dim) -> str:
    relation = dim.relation
    return (relation.base if relation is not None and relation.equal else dim.name) or ""


@dataclass(frozen=True, kw_only=True)
class InputPattern:
    """One `--input`; a sample provides the omitted parts (dtype, `_` dims)."""

    name: str
    dtype: str | None
    dims: tuple[Dim | None, ...] | None
    values: ValueRange | None
    text: str

    @property
    def whole(self) -> bool:
        """Whether it has the dtype and every dim."""
        return self.dtype is not None and self.dims is not None and None not in self.dims


def _input_error(code: ErrorCode, message: str, *hint: str | Option) -> UsageError:
    return UsageError(message, hint=Hint(*hint), option="input", code=code)


def _duplicate_input_error(name: str) -> UsageError:
    code, message = ErrorCode.DUPLICATE_INPUT, f"input {name!r} is given twice"
    return _input_error(code, message, "give each ", Option("input"), " another name")


def merge_inputs(patterns: Iterable[InputPattern], known: Mapping[str, InputSpec]) -> Signature:
    """Merge the user's inputs with those of a sample or the checkpoint.

    Args:
        patterns: the `--input` options, in order.
        known: specs read from samples or the checkpoint, by name, in order.

    Raises:
        UsageError: a part is in neither, or the two contradict each other.
    """
    given: dict[str, InputPattern] = {}
    for pattern in patterns:
        if given.setdefault(pattern.name, pattern) is not pattern:
            raise _duplicate_input_error(pattern.name)
    order = [*known, *(name for name in given if name not in known)] if known else list(given)
    for name in given:
        if known and name not in known:
            raise _input_error(
                ErrorCode.UNKNOWN_INPUT,
                f"--input names {name!r}, but the inputs are {', '.join(known)}",
                "use the names of the samples or of the checkpoint",
            )
    specs = [
        _merge_input(given[name], known.get(name)) if name in given else known[name]
        for name in order
    ]
    return resolve_bounds(Signature(inputs=settle_inputs(specs)))


def settle_inputs(specs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
    """Return the inputs with the ranges of all dims that follow others.

    Raises:
        UsageError: a relation is circular, has an unknown dim, or leads to a size below 1.
    """
    dims = iter(settle_dims([dim for spec in specs for dim in spec.dims]))
    return tuple(replace(spec, dims=tuple(next(dims) for _ in spec.dims)) for spec in specs)


def _merge_input(pattern: InputPattern, known: InputSpec | None) -> InputSpec:
    dtype = pattern.dtype or (known.dtype if known else None)
    if dtype is None:
        raise _input_error(
            ErrorCode.MISSING_DTYPE,
            f"--input {pattern.text!r} has no dtype",
            f"write {pattern.name}:float32[...], or give ",
            _SAMPLES,
        )
    if pattern.dims is None:
        if known is None:
            raise _input_error(
                ErrorCode.MISSING_DIMS,
                f"--input {pattern.text!r} has no dims",
                f"write {pattern.name}:{dtype}[batch,3,224,224], or give ",
                _SAMPLES,
            )
        return replace(known, dtype=dtype, values=pattern.values or known.values)
    dims = _merge_dims(pattern, known)
    values = pattern.values or (known.values if known else None)
    return InputSpec(name=pattern.name, dtype=dtype, dims=dims, values=values)


def _merge_dims(pattern: InputPattern, known: InputSpec | None) -> tuple[Dim, ...]:
    dims = pattern.dims or ()
    if known is not None and len(known.dims) != len(dims):
        raise _input_error(
            ErrorCode.SAMPLE_MISMATCH,
            f"--input {pattern.text!r} has {len(dims)} dims, the sample has {len(known.dims)}",
            f"the sample is {known}",
        )
    samples = known.dims if known else [None] * len(dims)
    return tuple(_merge_dim(*pair, pattern) for pair in zip(dims, samples, strict=True))


def _merge_dim(dim: Dim | None, sample: Dim | None, pattern: InputPattern) -> Dim:
    if dim is None:
        if sample is None:
            raise _input_error(
                ErrorCode.MISSING_DIMS,
                f"--input {pattern.text!r} keeps a dim with '_' but there is no sample",
                "write the size, or give ",
                _SAMPLES,
            )
        return sample
    if sample is None or sample.name is not None:
        return dim
    if dim.name is None and dim.opt != sample.opt:
        raise _input_error(
            ErrorCode.SAMPLE_MISMATCH,
            f"--input {pattern.text!r} says {dim.opt} where the sample has {sample.opt}",
            "write '_' to keep the sample's size, or a name to make it dynamic",
        )
    return dim if dim.bounded else _with_sample(dim, sample, pattern)


def _with_sample(dim: Dim, sample: Dim, pattern: InputPattern) -> Dim:
    """Take the sample's size for the opt of a dim without bounds."""
    if dim.relation is None:
        return replace(dim, opt=sample.opt, high=max(dim.high, sample.opt))
    if dim.is_sum:  # the sample is checked when the dims of the sum are known
        return dim
    size = dim.relation.base_of(sample.opt)
    if not size:
        raise _input_error(
            ErrorCode.SAMPLE_MISMATCH,
            f"--input {pattern.text!r} says {dim} where the sample has {sample.opt}",
            "correct the relation, or give another sample",
        )
    base = replace(dim.free, opt=size, high=max(dim.free.high, size))
    return Dim.follow(dim.name or "", dim.relation, base)
