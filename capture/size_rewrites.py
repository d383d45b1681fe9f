"""Keep sizes symbolic where Python or torch would convert them to numbers.

`len(tensor)`, `int(size / 2)` and `max(size, 1)` return Python numbers. torch.export specializes
the steps of `torch.linspace` and the size of `torch.fft.fftfreq`.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

from .evidence import Symptom
from .rewrite import Module, Rewrite, calls, swap_attribute, swap_functions, swaps
from .symbolic_shapes import SymbolicInt, symbolic_len

if TYPE_CHECKING:
    import torch

_FIXED = frozenset((Symptom.FIXED_SIZE,))
_TORCH_PREFIX = "torch."


def _module_globals(module: Module) -> Iterator[dict[str, Any]]:
    """Yield the globals of each file with methods of the model's classes."""
    kinds = {kind for part in module.modules() for kind in type(part).__mro__}
    files = {kind.__module__ for kind in kinds if not kind.__module__.startswith(_TORCH_PREFIX)}
    files |= {
        member.__module__
        for kind in kinds
        for member in vars(kind).values()
        if isinstance(member, FunctionType) and not str(member.__module__).startswith(_TORCH_PREFIX)
    }
    yield from (vars(sys.modules[name]) for name in files if name in sys.modules)


def _calls_any_name(module: Module, wanted: Collection[str]) -> bool:
    """Whether a method of the model's classes, or a function it names, uses a wanted name."""
    methods = [
        member
        for part in module.modules()
        for kind in type(part).__mro__
        if not kind.__module__.startswith(_TORCH_PREFIX)
        for member in vars(kind).values()
        if isinstance(member, FunctionType)
    ]
    named = [one.__globals__.get(name) for one in methods for name in one.__code__.co_names]
    functions = [*methods, *(one for one in named if isinstance(one, FunctionType))]
    return any(not set(wanted).isdisjoint(one.__code__.co_names) for one in functions)


@contextmanager
def _replace_builtins(module: Module, ours: Mapping[str, object]) -> Iterator[None]:
    """Replace builtins in the files of the model's classes."""
    with ExitStack() as stack:
        for names in _module_globals(module):
            for name in ours.keys() - names.keys():  # a file's own names stay
                names[name] = ours[name]
                stack.callback(names.pop, name)
        yield


def _size_max(*values: Any, **options: Any) -> Any:
    """Like max, but symbolic for two sizes."""
    import torch

    if _are_two_sizes(values):
        return torch.sym_max(*values)  # type: ignore[no-untyped-call]  # torch's own
    return max(*values, **options)


def _size_min(*values: Any, **options: Any) -> Any:
    """Like min, but symbolic for two sizes."""
    import torch

    if _are_two_sizes(values):
        return torch.sym_min(*values)  # type: ignore[no-untyped-call]  # torch's own
    return min(*values, **options)


def _are_two_sizes(values: Sequence[Any]) -> bool:
    """Whether the values are two integers, at least one of them symbolic."""
    import torch

    whole = all(isinstance(one, int | torch.SymInt) for one in values)
    return len(values) == 2 and whole and any(isinstance(one, torch.SymInt) for one in values)  # noqa: PLR2004 - torch has a binary operator


def _size_linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, **named: Any) -> Any:
    """Like torch.linspace, with its formula: from each end to the middle, rounded once."""
    import torch

    kind = dtype or torch.get_default_dtype()
    if type(steps) is int or not kind.is_floating_point:
        return torch._C._VariableFunctions.linspace(start, end, steps, dtype=dtype, **named)
    named.pop("requires_grad", None)
    whole = torch.arange(steps, **named)
    last = whole * 0 + steps - 1
    places, nothing = whole.to(kind), (whole * 0).to(kind)
    step = (end - start) / last.clamp(min=1).to(kind)
    near = _multiply_add(step, places, nothing + start)
    far = _multiply_add(-step, last.to(kind) - places, nothing + end)
    return torch.where((2 * whole < last) | (last == 0), near, far)


def _multiply_add(x: Any, y: Any, z: Any) -> Any:
    """Return x * y + z, rounded once, by compensated arithmetic (Dekker, Knuth).

    Torch's kernel uses FMA; these operators exist in every runtime.
    """
    product = x * y
    (x_high, x_low), (y_high, y_low) = _split_float(x), _split_float(y)
    error = x_high * y_high - product + x_high * y_low + x_low * y_high + x_low * y_low
    total = z + product
    added = total - z
    return total + ((z - (total - added)) + (product - added) + error)


def _split_float(x: Any) -> tuple[Any, Any]:
    """Split x into two float32 of 12 bits (Veltkamp)."""
    shifted = x * 4096 + x
    high = shifted - (shifted - x)
    return high, x - high


def _fftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """Like torch.fft.fftfreq: frequencies from 0, then the negative ones."""
    import torch

    kind = dtype or torch.get_default_dtype()
    places = torch.arange(n, device=device)
    return torch.where(places < (n + 1) // 2, places, places - n).to(kind) * (1.0 / (n * d))


def _rfftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """Like torch.fft.rfftfreq: frequencies from 0."""
    import torch

    kind = dtype or torch.get_default_dtype()
    return torch.arange(n // 2 + 1, device=device).to(kind) * (1.0 / (n * d))


LENGTH_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="tensor-lengths",
        summary="len(tensor) as tensor.shape[0]",
        suits=lambda module: _calls_any_name(module, {"len"}),
        during=lambda module: _replace_builtins(module, {"len": symbolic_len}),
        needs=_FIXED,
    ),
    Rewrite(
        name="symbolic-numbers",
        summary="int(), max() and min() of values computed from sizes, kept symbolic",
        suits=lambda module: _calls_any_name(module, {"int", "max", "min"}),
        during=lambda module: _replace_builtins(
            module, {"int": SymbolicInt, "max": _size_max, "min": _size_min}
        ),
        answers=frozenset((Symptom.SIZE_ARITHMETIC,)),
        needs=frozenset((Symptom.FIXED_SIZE, Symptom.ASSUMED_SIZE)),
    ),
    Rewrite(
        name="dynamic-linspace",
        summary="torch.linspace of a dynamic number of steps by torch.arange",
        suits=calls("linspace"),
        during=swaps({"torch.linspace": _size_linspace}),
        needs=_FIXED,
    ),
    Rewrite(
        name="dynamic-frequencies",
        summary="torch.fft.fftfreq and rfftfreq of a dynamic size by torch.arange",
        suits=calls("fftfreq", "rfftfreq"),
        during=swaps({"torch.fft.fftfreq": _fftfreq, "torch.fft.rfftfreq": _rfftfreq}),
        needs=_FIXED,
    ),
)


# Adaptive max pooling to symbolic sizes: torch's operator takes only numbers.
#
# Torch's windows are floor(i n / m) to ceil((i + 1) n / m), for m windows over n positions.


_POOL_NAMES = tuple(f"adaptive_max_pool{axes}d" for axes in (1, 2, 3))


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
    """Return the operator for symbolic sizes, with windows of the maximum width."""

    @functools.wraps(plain)  # torch reads the name of overrides
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
    """Return maxima of windows along an axis, and positions of the last NaN or first maximum.

    Args:
        values: maxima along later axes.
        places: their positions within later axes.
        axis: the axis, from the front.
        size: the number of windows.
        stride: the elements per step along the axis.
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
    lost = (inside & is_lost) * widen(steps + 1)  # 0 without NaN
    last_lost = lost.amax(axis + 1)
    top = torch.where(last_lost > 0, math.nan, shown.amax(axis + 1))
    best = torch.where(last_lost > 0, last_lost - 1, shown.argmax(axis + 1))
    at = (best + widen(first)) * stride
    if places is not None:
        at = at + take(places).gather(axis + 1, best.unsqueeze(axis + 1)).squeeze(axis + 1)
    return top, at


DYNAMIC_MAX_POOL = Rewrite(
    name="dynamic-max-pool",
    summary="adaptive max pooling to symbolic sizes, by its windows",
    suits=calls(*_POOL_NAMES, *(f"{name}_with_indices" for name in _POOL_NAMES)),
    during=_use_dynamic_pool,
    needs=_FIXED,
)
