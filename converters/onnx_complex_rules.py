# ruff: noqa: TID253 - a dispatch mode is a class of torch; the file is imported where one is entered
"""Operators on the real and imaginary parts of complex tensors, beside torch's decompositions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.complex_tensor import ComplexTensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

ComplexRule = Callable[..., Any]
_aten = torch.ops.aten
_REAL = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
_WHOLE = (_aten._fft_c2c, _aten._fft_c2r)  # for which ONNX has DFT
_ARITHMETIC = (_aten.add, _aten.mul, _aten.rsub, _aten.sub)
# torch's decompositions of these accept complex tensors only
_MIXED = (
    _aten.bmm, _aten.cat, _aten.copy, _aten.dot, _aten.index_put, _aten.mm, _aten.select_scatter,
    _aten.slice_scatter, _aten.stack, _aten.where,
)  # fmt: skip
_MAX_FACTORS = 8  # powers up to here become products, as eager computes 2 and 3


class ComplexRules(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Return `ComplexTensor` from operators with complex results while the mode is active."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator by our rule, by torch's rule, or unchanged."""
        packet, named = func.overloadpacket, dict(kwargs or {})
        pairs = [one for one in _pytree.tree_leaves((args, named)) if _is_pair(one)]
        if packet in _WHOLE:
            args = _pytree.tree_map(_join_parts, args)
        elif packet in _MIXED and pairs:
            args = _pytree.tree_map(_add_imaginary_part, args)
        elif packet in _ARITHMETIC and (pairs or any(isinstance(one, complex) for one in args)):
            like = next(one for one in args if isinstance(one, Tensor))
            operands = [_operand(one, like) for one in args[:2]]
            func, args = packet, (*operands, *args[2:])
        ours = pairs or packet in _MAKERS or named.get("dtype") in _REAL
        rule: ComplexRule | None = _COMPLEX_RULES.get(packet) if ours else None
        found = func(*args, **named) if rule is None else rule(func, *args, **named)
        return _pytree.tree_map(split_parts, found)


def split_parts(value: Any) -> Any:
    """Split a whole complex tensor into two parts; return anything else unchanged."""
    if not isinstance(value, Tensor) or _is_pair(value) or not value.is_complex():
        return value
    parts = torch.view_as_real(value)
    return ComplexTensor(parts.select(-1, 0), parts.select(-1, 1))


def _is_pair(value: Any) -> bool:
    return isinstance(value, ComplexTensor)


def _join_parts(value: Any) -> Any:
    return value.as_interleaved() if _is_pair(value) else value


def _add_imaginary_part(value: Any) -> Any:
    """Add an imaginary part of 0 to real numbers; return flags and indices unchanged."""
    if isinstance(value, Tensor) and not _is_pair(value) and value.is_floating_point():
        return ComplexTensor(value, torch.zeros_like(value))
    return value


def _operand(value: Any, like: Tensor) -> Any:
    """Return an arithmetic operand, which may be a number or integers, in two parts."""
    if _is_pair(value):
        return value
    kind = _REAL.get(like.dtype, like.dtype)
    kind = kind if kind.is_floating_point else torch.get_default_dtype()
    if isinstance(value, Tensor):
        return _add_imaginary_part(value if value.is_floating_point() else value.to(kind))
    number = complex(value)
    return ComplexTensor(
        torch.full((), number.real, dtype=kind), torch.full((), number.imag, dtype=kind)
    )


def _apply_by_parts(func: Any, values: Any, *args: Any, **named: Any) -> Any:
    return ComplexTensor(func(values.re, *args, **named), func(values.im, *args, **named))


def _zeros(func: Any, *args: Any, dtype: Any = None, **named: Any) -> Any:
    """Create zeros or ones, or cast real tensors to complex."""
    if dtype not in _REAL or any(map(_is_pair, args)):
        return func(*args, dtype=dtype, **named)
    real = func(*args, dtype=_REAL[dtype], **named)
    return ComplexTensor(real, torch.zeros_like(real))


def _full(func: Any, size: Any, value: Any, *, dtype: Any = None, **named: Any) -> Any:
    if dtype not in _REAL and not isinstance(value, complex):
        return func(size, value, dtype=dtype, **named)
    number, kind = complex(value), _REAL.get(dtype, torch.get_default_dtype())
    parts = (func(size, part, dtype=kind, **named) for part in (number.real, number.imag))
    return ComplexTensor(*parts)


def _complex(_: Any, real: Tensor, imaginary: Tensor) -> Any:
    return ComplexTensor(*_aten.broadcast_tensors([real, imaginary]))


def _polar(_: Any, length: Tensor, angle: Tensor) -> Any:
    return ComplexTensor(length * angle.cos(), length * angle.sin())


def _view_as_complex(_: Any, parts: Tensor) -> Any:
    return ComplexTensor(parts.select(-1, 0), parts.select(-1, 1))


def _pow(func: Any, values: Any, exponent: Any) -> Any:
    """Write small powers as products: torch's rule takes the logarithm, which is undefined at 0."""
    if isinstance(exponent, int | float) and exponent in _POWERS:
        return _POWERS[exponent](values)
    if not isinstance(exponent, int | float) or exponent not in range(1, _MAX_FACTORS + 1):
        return func(values, exponent)
    found = values
    for _ in range(int(exponent) - 1):
        found = found * values
    return found


def _refuse_operator(func: Any, *_: Any, **__: Any) -> Any:
    """Reject what gives other results on two parts than on whole numbers."""
    raise NotImplementedError(f"{func} of complex numbers")


def _view(func: Any, values: Any, shape: Any) -> Any:
    """Change the shape; a view as another dtype would see other bytes in two parts."""
    return _refuse_operator(func) if isinstance(shape, torch.dtype) else func(values, shape)


def _ones(values: Any) -> Any:
    return ComplexTensor(torch.ones_like(values.re), torch.zeros_like(values.im))


_POWERS: Mapping[float, Callable[[Any], Any]] = {0: _ones, 0.5: torch.sqrt}
_MAKERS = (_aten.complex, _aten.polar, _aten.view_as_complex, _aten.full)
_COMPLEX_RULES: Mapping[Any, ComplexRule] = {
    _aten._to_copy: _zeros,
    _aten.asin: _refuse_operator,
    _aten.complex: _complex,
    _aten.full: _full,
    _aten.new_ones: _zeros,
    _aten.new_zeros: _zeros,
    _aten.ones: _zeros,
    _aten.polar: _polar,
    _aten.pow: _pow,
    _aten.roll: _apply_by_parts,
    _aten.tril: _apply_by_parts,
    _aten.triu: _apply_by_parts,
    _aten.unfold: _apply_by_parts,
    _aten.view: _view,
    _aten.view_as_complex: _view_as_complex,
    _aten.zeros: _zeros,
    _aten.zeros_like: _zeros,
}
