"""Refuses feeds outside a signature, for runtimes that would compute on whatever they get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.contract import Array, Feed
from ..core.dims import Dim
from ..core.errors import RunnerError
from ..core.signature import InputSpec

_HINT = "give what the model was exported for"


def refuse_misfits(feed: Feed, specs: Sequence[InputSpec]) -> None:
    """Check dtypes, ranks, fixed sizes, ranges, and sizes that belong together.

    Raises:
        RunnerError: an array does not fit; the message names input, dim and size.
    """
    sizes: dict[str, int] = {}
    for spec in specs:
        array = feed[spec.name]
        _refuse_form(array, spec)
        for axis, (dim, size) in enumerate(zip(spec.dims, array.shape, strict=True)):
            _refuse_size(dim, size, f"dim {dim.name or axis} of {spec.name}")
            if dim.name is not None and sizes.setdefault(dim.name, size) != size:
                raise RunnerError(
                    f"dim {dim.name} is {sizes[dim.name]}, and {size} in {spec.name}", hint=_HINT
                )
    for dim in (dim for spec in specs for dim in spec.dims):
        _refuse_relation(dim, sizes)


def _refuse_form(array: Array, spec: InputSpec) -> None:
    if str(array.dtype) != spec.dtype:
        raise RunnerError(f"{spec.name} is {array.dtype}, not {spec.dtype}", hint=_HINT)
    if array.ndim != len(spec.dims):
        raise RunnerError(
            f"{spec.name} has {array.ndim} dims {tuple(array.shape)}, not {len(spec.dims)}",
            hint=_HINT,
        )


def _refuse_size(dim: Dim, size: int, where: str) -> None:
    if not dim.dynamic and size != dim.opt:
        raise RunnerError(f"{where} is {size}, not {dim.opt}", hint=_HINT)
    if dim.dynamic and dim.bounded and not dim.low <= size <= dim.high:
        raise RunnerError(f"{where} is {size}, outside {dim.low}..{dim.high}", hint=_HINT)
    if size < min(dim.low, 1):
        raise RunnerError(f"{where} is {size}", hint=_HINT)


def _refuse_relation(dim: Dim, sizes: Mapping[str, int]) -> None:
    """That a size which follows from another one does."""
    if dim.relation is None or dim.name is None:
        return
    base = dim.relation.base_of(sizes[dim.name])
    if base is None or sizes.get(dim.relation.base, base) != base:
        raise RunnerError(f"dim {dim.name} is {sizes[dim.name]}, not {dim.relation}", hint=_HINT)
