"""Maximum pooling to sizes that follow from sizes: torch's operator takes numbers alone.

A window of torch's reaches from floor(i n / m) to ceil((i + 1) n / m), for m windows over n places.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from .rewrite import Module, Rewrite, calls_any
from .swapping import swap_attribute, swap_functions

if TYPE_CHECKING:
    import torch

# Maximum pooling to sizes that follow from sizes: torch's operator takes numbers alone.
#
# A window of torch's reaches from floor(i n / m) to ceil((i + 1) n / m), for m windows over n
# places.


_POOL_SIGN = "specialized it"  # what torch.export says of a size that became a number
_POOL_NAMES = tuple(f"adaptive_max_pool{axes}d" for axes in (1, 2, 3))


def _needs_dynamic_pool(module: Module, reasons: Sequence[str]) -> bool:
    told = any(_POOL_SIGN in reason for reason in reasons)
    names = frozenset({*_POOL_NAMES, *(f"{name}_with_indices" for name in _POOL_NAMES)})
    return told and calls_any(module, names)


@contextmanager
def _use_dynamic_pool(module: Module) -> Iterator[None]:  # noqa: ARG001 - as every `during`
    import torch

    with ExitStack() as held:
        line = torch.adaptive_max_pool1d
        held.enter_context(swap_functions({line: _make_pool(line)}))
        for name in _POOL_NAMES[1:]:
            ours = _make_pool(getattr(torch._C._nn, name))
            held.enter_context(swap_attribute(torch._C._nn, name, ours))
        yield


def _make_pool(plain: Callable[..., Any]) -> Callable[..., Any]:
    """As torch's own; where a size is no plain number, by windows as wide as the widest may be."""

    @functools.wraps(plain)  # torch asks for names of what it overrides
    def pool(x: torch.Tensor, output_size: Any) -> Any:
        sizes = list(output_size) if isinstance(output_size, list | tuple) else [output_size]
        if all(type(size) is int for size in sizes):
            return plain(x, output_size)
        top, places, stride = x, None, 1
        axes = range(x.ndim - len(sizes), x.ndim)
        for axis, size in reversed(list(zip(axes, sizes, strict=True))):
            top, places = _pool_axis(top, places, axis, size, stride)
            stride *= x.shape[axis]
        return top, places

    return pool


def _pool_axis(
    values: torch.Tensor, places: torch.Tensor | None, axis: int, size: Any, stride: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Maxima of windows along an axis: of the last NaN, else of the first maximum.

    Args:
        values: maxima along the axes behind.
        places: where these are in what lies behind the axis.
        axis: counted from the front.
        size: how many windows.
        stride: how many elements of the image one step along the axis is.
    """
    import torch

    count, behind = values.shape[axis], values.ndim - axis - 1

    def widen(numbers: torch.Tensor) -> torch.Tensor:
        return numbers.reshape(*numbers.shape, *[1] * behind)

    def take(image: torch.Tensor) -> torch.Tensor:
        shape = (*image.shape[:axis], size, widest, *image.shape[axis + 1 :])
        return image.index_select(axis, within).reshape(shape)

    numbers, widest = torch.arange(size, device=values.device), (count + size - 1) // size + 1
    first, last = numbers * count // size, ((numbers + 1) * count + size - 1) // size
    steps = torch.arange(widest, device=values.device)
    reached = first[:, None] + steps
    within = reached.clamp(max=count - 1).flatten()
    inside, parts = widen(reached < last[:, None]), take(values)
    is_lost = torch.isnan(parts)
    shown = torch.where(inside & ~is_lost, parts, -math.inf)
    lost = (inside & is_lost) * widen(steps + 1)  # 0 where none is
    last_lost = lost.amax(axis + 1)
    top = torch.where(last_lost > 0, math.nan, shown.amax(axis + 1))
    best = torch.where(last_lost > 0, last_lost - 1, shown.argmax(axis + 1))
    at = (best + widen(first)) * stride
    if places is not None:
        at = at + take(places).gather(axis + 1, best.unsqueeze(axis + 1)).squeeze(axis + 1)
    return top, at


POOLING_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="dynamic-max-pool",
        summary="adaptive max pooling to sizes that follow from others, by its windows",
        suits=_needs_dynamic_pool,
        during=_use_dynamic_pool,
        signs=(_POOL_SIGN,),
    ),
)
