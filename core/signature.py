"""The Signature: what goes into a model and what comes out, by name, dtype and dims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .errors import UsageError

DTYPES = (
    "float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
FLOATS = ("float32", "float64", "float16")
# A dim given by name alone is unbounded in the artifact; feeds still need sizes.
UNBOUNDED = (1, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Dim:
    """One dimension. Fixed when it has no name; otherwise any size in low..high.

    `opt` is the size to capture at and to tune for. `bounded` is False for a dim given by name
    alone: its low, opt and high are then only the sizes that feeds are drawn at.
    """

    low: int
    opt: int
    high: int
    name: str | None = None
    bounded: bool = True

    @classmethod
    def fixed(cls, size: int) -> Dim:
        """A dimension that is always `size`."""
        return cls(low=size, opt=size, high=size)

    @property
    def dynamic(self) -> bool:
        """Whether the artifact must take more than one size here."""
        return self.name is not None and (not self.bounded or self.low != self.high)

    def __str__(self) -> str:
        if self.name is None:
            return str(self.opt)
        if not self.bounded:
            return self.name
        middle = "" if self.opt == default_opt(self.low, self.high) else f"{self.opt}.."
        return f"{self.name}={self.low}..{middle}{self.high}"


def default_opt(low: int, high: int) -> int:
    """The middle of a range: the size to capture at where the user named none."""
    return (low + high) // 2


@dataclass(frozen=True, kw_only=True)
class ValueRange:
    """The values that drawn feeds may hold, both ends included."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{{{_number(self.low)}..{_number(self.high)}}}"


def _number(value: float) -> str:
    """The value without loss, and without `.0`: what is written can be read back."""
    return repr(value).removesuffix(".0")


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """One input tensor. A dotted name (`inputs.image`) is a place in a nested argument."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    values: ValueRange | None = None

    def __str__(self) -> str:
        dims = ",".join(str(dim) for dim in self.dims)
        return f"{self.name}:{self.dtype}[{dims}]{self.values or ''}"


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Ordered inputs and output names. One Signature drives capture, axes, feeds and verdicts."""

    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.inputs]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(
                    f"input {name!r} is given twice", hint="give each --input another name"
                )
        dims: dict[str, Dim] = {}
        for dim in self.named_dims():
            known = dims.setdefault(dim.name or "", dim)
            if known != dim:
                raise UsageError(
                    f"dim {dim.name!r} has two ranges: {known} and {dim}",
                    hint=f"give the range once and write plain '{dim.name}' elsewhere",
                )

    def named_dims(self) -> Iterable[Dim]:
        """Every named dim of every input, in order, repeats included."""
        return (dim for spec in self.inputs for dim in spec.dims if dim.name is not None)

    @property
    def dynamic_dims(self) -> dict[str, Dim]:
        """The dims that vary, by name, in order of first appearance."""
        return {dim.name: dim for dim in self.named_dims() if dim.name and dim.dynamic}

    def with_outputs(self, outputs: Iterable[str]) -> Signature:
        """The same inputs with the output names that eager gave."""
        return replace(self, outputs=tuple(outputs))

    def axes(self) -> dict[str, dict[int, str]]:
        """Dynamic axes by input: `{"x": {0: "batch"}}`, inputs without any left out."""
        found = {
            spec.name: {i: dim.name for i, dim in enumerate(spec.dims) if dim.name and dim.dynamic}
            for spec in self.inputs
        }
        return {name: axes for name, axes in found.items() if axes}


@dataclass(frozen=True, kw_only=True)
class InputPattern:
    """What one `--input` says: parts left out (dtype, `_` dims) come from a sample."""

    name: str
    dtype: str | None
    dims: tuple[Dim | None, ...] | None
    values: ValueRange | None
    text: str


def resolve(patterns: Iterable[InputPattern], known: Mapping[str, InputSpec]) -> Signature:
    """Merge what the user wrote with what a sample or the checkpoint says.

    Args:
        patterns: the `--input` options, in order.
        known: specs read from samples or the checkpoint, by name, in order.

    Raises:
        UsageError: a part is in neither, or the two contradict each other.
    """
    given: dict[str, InputPattern] = {}
    for pattern in patterns:
        if given.setdefault(pattern.name, pattern) is not pattern:
            raise UsageError(
                f"input {pattern.name!r} is given twice", hint="give each --input another name"
            )
    order = [*known, *(name for name in given if name not in known)] if known else list(given)
    for name in given:
        if known and name not in known:
            raise UsageError(
                f"--input names {name!r}, but the inputs are {', '.join(known)}",
                hint="use the names of the samples or of the checkpoint",
            )
    specs = [
        _merge(given[name], known.get(name)) if name in given else known[name] for name in order
    ]
    return Signature(inputs=_share_ranges(specs))


def _merge(pattern: InputPattern, known: InputSpec | None) -> InputSpec:
    dtype = pattern.dtype or (known.dtype if known else None)
    if dtype is None:
        raise UsageError(
            f"--input {pattern.text!r} has no dtype",
            hint=f"write {pattern.name}:float32[...], or give --inputs SAMPLE",
        )
    if pattern.dims is None:
        if known is None:
            raise UsageError(
                f"--input {pattern.text!r} has no dims",
                hint=f"write {pattern.name}:{dtype}[batch,3,224,224], or give --inputs SAMPLE",
            )
        return replace(known, dtype=dtype, values=pattern.values or known.values)
    dims = _merge_dims(pattern, known)
    values = pattern.values or (known.values if known else None)
    return InputSpec(name=pattern.name, dtype=dtype, dims=dims, values=values)


def _merge_dims(pattern: InputPattern, known: InputSpec | None) -> tuple[Dim, ...]:
    dims = pattern.dims or ()
    if known is not None and len(known.dims) != len(dims):
        raise UsageError(
            f"--input {pattern.text!r} has {len(dims)} dims, the sample has {len(known.dims)}",
            hint=f"the sample's form is {known}",
        )
    merged: list[Dim] = []
    for index, dim in enumerate(dims):
        sample = known.dims[index] if known else None
        merged.append(_merge_dim(dim, sample, pattern))
    return tuple(merged)


def _merge_dim(dim: Dim | None, sample: Dim | None, pattern: InputPattern) -> Dim:
    if dim is None:
        if sample is None:
            raise UsageError(
                f"--input {pattern.text!r} keeps a dim with '_' but there is no sample",
                hint="write the size, or give --inputs SAMPLE",
            )
        return sample
    if sample is None or sample.name is not None:
        return dim
    if dim.name is None and dim.opt != sample.opt:
        raise UsageError(
            f"--input {pattern.text!r} says {dim.opt} where the sample has {sample.opt}",
            hint="write '_' to keep the sample's size, or a name to make it dynamic",
        )
    if not dim.bounded:
        return replace(dim, opt=sample.opt, high=max(dim.high, sample.opt))
    return dim


def _share_ranges(specs: Iterable[InputSpec]) -> tuple[InputSpec, ...]:
    """A range given once holds for every dim of that name."""
    specs = tuple(specs)
    chosen: dict[str, Dim] = {}
    for dim in (dim for spec in specs for dim in spec.dims if dim.name is not None):
        known = chosen.get(dim.name or "")
        if known is None or (dim.bounded, dim.high) > (known.bounded, known.high):
            chosen[dim.name or ""] = dim
    return tuple(
        replace(
            spec,
            dims=tuple(
                dim if dim.name is None or dim.bounded else chosen[dim.name] for dim in spec.dims
            ),
        )
        for spec in specs
    )
