"""Values that follow a dim, as in `lengths:int64[batch]{1..seq}`: looked up, and made sense of."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from .dims import Dim
from .errors import UsageError
from .names import unknown_name_error

if TYPE_CHECKING:
    from .signature import InputSpec, Signature, ValueRange


def resolve_bounds(signature: Signature) -> Signature:
    """The same with the least and the greatest of every value that follows a dim.

    Raises:
        UsageError: no input has the dim, or no value is left at some of its sizes.
    """
    dims = {
        **signature.free_dims,
        **{dim.name: dim for dim in signature.dims_with_names() if dim.name},
    }
    return replace(signature, inputs=tuple(_resolve_spec(spec, dims) for spec in signature.inputs))


def _resolve_spec(spec: InputSpec, dims: Mapping[str, Dim]) -> InputSpec:
    values = spec.values
    if values is None or not values.follows:
        return spec
    for base in values.bases:
        if base not in dims:
            raise unknown_name_error(
                f"dim in the values of {spec.name}:", base, list(dims) or ["(none)"]
            )
    _check_not_empty(spec, values, dims)
    low, high = values.low_dim, values.high_dim
    return replace(
        spec,
        values=replace(
            values,
            low=values.low if low is None else low.size(dims[low.base].low),
            high=values.high if high is None else high.size(dims[high.base].high),
        ),
    )


def _check_not_empty(spec: InputSpec, values: ValueRange, dims: Mapping[str, Dim]) -> None:
    """Both ends are lines in the sizes: what holds at all corners holds between."""
    free = {dims[base].free.name or "": dims[base].free for base in values.bases}
    for sizes in itertools.product(*((dim.low, dim.high) for dim in free.values())):
        roots = dict(zip(free, sizes, strict=True))
        at = {base: dims[base].size(roots) for base in dict.fromkeys(values.bases)}
        found = values.at(at)
        if found.low > found.high:
            where = ", ".join(f"{name} is {size}" for name, size in at.items())
            raise UsageError(
                f"input {spec.name!r} has no values {values} where {where}",
                hint="let the dim begin at a larger size, or widen the values",
            )
