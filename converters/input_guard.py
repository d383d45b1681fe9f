"""Refuses feeds outside a signature, for runtimes that would compute on whatever they get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.contract import Array, Feed
from ..core.dims import Dim
from ..core.errors import RunnerError
from ..core.signature import InputSpec

_FEED_HINT = "give what the model was exported for"


def check_feed(feed: Feed, specs: Sequence[InputSpec]) -> None:
    """Check dtypes, ranks, fixed sizes, ranges, and sizes that belong together.

    Raises:
        RunnerError: an array does not fit; the message names input, dim and size.
    """
    sizes: dict[str, int] = {}
    for spec in specs:
        array = feed[spec.name]
        _check_form(array, spec)
        for axis, (dim, size) in enumerate(zip(spec.dims, array.shape, strict=True)):
            _check_size(dim, size, f"dim {dim.name or axis} of {spec.name}")
            if dim.name is not None and sizes.setdefault(dim.name, size) != size:
                raise RunnerError(
                    f"dim {dim.name} is {sizes[dim.name]}, and {size} in {spec.name}",
                    hint=_FEED_HINT,
                )
    for dim in (dim for spec in specs for dim in spec.dims):
        _check_relation(dim, sizes)


def _check_form(array: Array, spec: InputSpec) -> None:
    if str(array.dtype) != spec.dtype:
        raise RunnerError(f"{spec.name} is {array.dtype}, not {spec.dtype}", hint=_FEED_HINT)
    if array.ndim != len(spec.dims):
        raise RunnerError(
            f"{spec.name} has {array.ndim} dims {tuple(array.shape)}, not {len(spec.dims)}",
            hint=_FEED_HINT,
        )


def _check_size(dim: Dim, size: int, where: str) -> None:
    if not dim.dynamic and size != dim.opt:
        raise RunnerError(f"{where} is {size}, not {dim.opt}", hint=_FEED_HINT)
    if dim.dynamic and dim.bounded and not dim.low <= size <= dim.high:
        raise RunnerError(f"{where} is {size}, outside {dim.low}..{dim.high}", hint=_FEED_HINT)
    if size < min(dim.low, 1):
        raise RunnerError(f"{where} is {size}", hint=_FEED_HINT)


def _check_relation(dim: Dim, sizes: Mapping[str, int]) -> None:
    """That a size which follows from another one does."""
    if dim.relation is None or dim.name is None:
        return
    base = dim.relation.base_of(sizes[dim.name])
    if base is None or sizes.get(dim.relation.base, base) != base:
        raise RunnerError(
            f"dim {dim.name} is {sizes[dim.name]}, not {dim.relation}", hint=_FEED_HINT
        )
