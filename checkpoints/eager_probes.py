"""Dispatch modes that observe eager's tensors: their values, and floats made discrete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ..core.torch_tools import flatten_tensors, intercept_operators

if TYPE_CHECKING:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from ..core.contract import Array


def watch_values(test: Callable[[Array], bool], found: list[bool]) -> TorchDispatchMode:
    """Return a mode that adds True to `found` once a computed float32 tensor passes a test."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    def probe(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value = func(*args, **kwargs)
        with _disable_current_modes():
            for one in flatten_tensors((value,)):
                is_tested = one.dtype is torch.float32 and not found
                if is_tested and test(one.detach().cpu().contiguous().numpy()):
                    found.append(True)
        return value

    return intercept_operators(probe)


# Where a model makes whole numbers or truth values of floats that no rounding error can move.
#
# `(arange(n) / n * 10).long()`, `minutes / 60` floored, an image resized to the nearest pixel: what
# is rounded follows from sizes or integers alone. Eager gives the same at each run, but another
# order or width of the computation gives another whole number at a few sizes, or for a few values.


class DiscreteOrigin(StrEnum):
    """The source of a float."""

    SIZES = "sizes"
    INTEGERS = "integers"


_ROUNDING_CALLS = frozenset({
    "floor", "ceil", "round", "trunc", "fix", "frac", "floor_divide", "remainder", "fmod", "sign",
    "lt", "le", "gt", "ge", "eq", "ne", "bucketize", "searchsorted", "heaviside",
})  # fmt: skip
_CAST_CALLS = frozenset({"_to_copy", "to", "copy", "type_as"})
_NEAREST = ("upsample_nearest", "_upsample_nearest")


def watch_discrete_origins(
    inputs: Iterable[torch.Tensor], found: set[DiscreteOrigin]
) -> TorchDispatchMode:
    """Return a mode that adds to `found` the origins of floats which become discrete.

    Args:
        inputs: the model's inputs; other values depend on sizes only.
        found: filled while the mode is active.
    """
    from torch.utils.weak import WeakIdKeyDictionary

    # True for values that depend on floats, False for integers only
    data: Any = WeakIdKeyDictionary()
    for one in inputs:
        data[one] = one.is_floating_point() or one.is_complex()

    def note_origin(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        operands = list(flatten_tensors((*args, *kwargs.values())))
        name = func.overloadpacket.__name__.removesuffix("_")
        # only the metadata of an operand
        by_form = name.endswith("_like") or name.startswith("new_")
        known = [] if by_form else [data[one] for one in operands if one in data]
        value = func(*args, **kwargs)
        if known:
            data.update([(one, any(known)) for one in flatten_tensors((value,))])
        if name.startswith(_NEAREST):
            if not _is_integer_upsample(func, args):
                found.add(DiscreteOrigin.SIZES)
        elif not any(known) and operands and _is_rounding_call(name, args, operands, value, func):
            found.add(DiscreteOrigin.INTEGERS if known else DiscreteOrigin.SIZES)
        return value

    return intercept_operators(note_origin)


def _is_rounding_call(
    name: str, args: Sequence[Any], operands: Sequence[torch.Tensor], value: Any, func: Any
) -> bool:
    floats = any(one.is_floating_point() for one in operands)
    floats = floats or any(isinstance(one, float) and not one.is_integer() for one in args)
    if not floats:
        return False
    if name in _CAST_CALLS:
        return not any(
            one.is_floating_point() or one.is_complex() for one in flatten_tensors((value,))
        )
    return name in _ROUNDING_CALLS or (name == "div" and "mode" in func._overloadname)


def _is_integer_upsample(func: Any, args: Sequence[Any]) -> bool:
    """Whether the call enlarges each axis of an image by an integer factor."""
    names = [one.name for one in func._schema.arguments]
    scales = [value for name, value in zip(names, args, strict=False) if "scale" in name]
    flat = [one for scale in scales for one in (scale if isinstance(scale, list) else [scale])]
    return bool(flat) and all(one is not None and float(one).is_integer() for one in flat)
