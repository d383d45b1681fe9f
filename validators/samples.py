"""The user's own feed, checked against the signature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import Hint, Option, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..core.contract import Array, Feed
    from ..core.signature import Dim, InputSpec, Signature

# The user's own feed, checked against the signature.


def check_samples(signature: Signature, samples: Feed) -> tuple[dict[str, Array], dict[str, int]]:
    """The sample arrays in the signature's order and dtypes, and the sizes of its free dims.

    Raises:
        UsageError: a name is missing or too many, a cast would change values, a fixed dim has
            another size, a named dim has two sizes, leaves its range or breaks its relation, or an
            array is empty.
    """
    _check_names(signature, samples)
    arrays = {spec.name: _cast_sample(spec, samples[spec.name]) for spec in signature.inputs}
    sizes: dict[str, int] = {}
    for spec, dim, size in _sample_dims(signature, arrays):
        if not dim.dynamic:
            _check_fixed(spec, dim, size)
            continue
        _check_range(spec, dim, size)
        free = _free_size(spec, dim, size)
        name = dim.free.name or ""
        if sizes.setdefault(name, free) != free:
            raise UsageError(
                f"the sample's dim {name!r} is {sizes[name]} in one input "
                f"and {free} in {spec.name!r}",
                hint="cut the arrays to one size, or give the dims different names",
            )
    return arrays, sizes


def _free_size(spec: InputSpec, dim: Dim, size: int) -> int:
    """The size of the dim that varies freely here: of 64 with `h=32*k` it is 2."""
    free = size if dim.relation is None else dim.relation.base_of(size)
    if free is None:
        raise UsageError(
            f"the sample of {spec.name!r} has {dim.name}={size}, which is not {dim.relation}",
            hint=Hint(
                "cut the sample to such a size, or correct the relation in ", Option("input")
            ),
            option="input",
        )
    return free


def _check_names(signature: Signature, samples: Feed) -> None:
    wanted = [spec.name for spec in signature.inputs]
    missing = [name for name in wanted if name not in samples]
    extra = [name for name in samples if name not in wanted]
    if missing or extra:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"has {', '.join(extra)}, which is no input"] if extra else []
        raise UsageError(
            f"the sample {' and '.join(parts)}", hint=f"the inputs are {', '.join(wanted)}"
        )


def _cast_sample(spec: InputSpec, array: Array) -> Array:
    """A copy of the array in the input's dtype, if that changes no value."""
    import numpy as np

    if array.dtype.kind not in "fiub":
        raise UsageError(
            f"the sample of {spec.name!r} is {array.dtype}, expected {spec.dtype}",
            hint="save plain arrays of numbers",
        )
    if array.size == 0 and all(dim.low for dim in spec.dims):
        raise UsageError(
            f"the sample of {spec.name!r} is empty: {array.shape}", hint="give at least one element"
        )
    with np.errstate(all="ignore"):  # a value that does not fit is found below
        cast = np.array(array, order="C").astype(spec.dtype)
        back = cast.astype(array.dtype)
    if not np.array_equal(back, array, equal_nan=array.dtype.kind == "f"):
        raise UsageError(
            f"the sample of {spec.name!r} is {array.dtype} and would change as {spec.dtype}",
            hint=Hint(
                f"save it as {spec.dtype}, or write {spec.name}:{array.dtype} in ", Option("input")
            ),
            option="input",
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
            )
        for dim, size in zip(spec.dims, shape, strict=True):
            yield spec, dim, size


def _check_fixed(spec: InputSpec, dim: Dim, size: int) -> None:
    if size != dim.opt:
        raise UsageError(
            f"the sample of {spec.name!r} has size {size} where {spec} says {dim.opt}",
            hint="give another sample, or a dim name to make the size dynamic",
        )


def _check_range(spec: InputSpec, dim: Dim, size: int) -> None:
    if dim.bounded and not dim.low <= size <= dim.high:
        raise UsageError(
            f"the sample of {spec.name!r} has {dim.name}={size}, outside {dim.low}..{dim.high}",
            hint=f"widen the range, or cut the sample to at most {dim.high}",
        )
