"""Tensors as arrays, and torch modes that intercept calls or operators."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    from .contract import Array


def to_array(tensor: torch.Tensor) -> Array:
    """A copy as a numpy array, dense and on the CPU.

    What numpy lacks becomes what holds every value of it: bfloat16 and the 8-bit floats float32,
    half-precision complex numbers complex64.
    """
    import numpy as np

    return np.array(_to_plain_tensor(tensor).numpy())


def _to_plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    plain = tensor.detach().cpu()
    if plain.is_quantized:
        plain = plain.dequantize()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    plain = plain.resolve_conj().resolve_neg()
    if plain.dtype is torch.complex32:
        return plain.to(torch.complex64)
    if plain.is_floating_point() and plain.dtype not in (
        torch.float16,
        torch.float32,
        torch.float64,
    ):
        return plain.float()
    return plain


# Gets what is called, its arguments and its keyword arguments; gives what the call gives.
TorchHandler: TypeAlias = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]


def reset_compiled() -> None:
    """Have torch compile again what it compiled in a mode, such as the arms of `torch.cond`.

    Run without the mode, that code fails.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def intercept_calls(through: TorchHandler) -> TorchFunctionMode:
    """A mode in which each call of torch's Python functions goes through the function."""
    from torch.overrides import TorchFunctionMode

    class Calls(TorchFunctionMode):
        def __torch_function__(
            self,
            func: Any,
            types: Sequence[type],
            args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            return through(func, args, kwargs or {})

    return Calls()


def intercept_operators(through: TorchHandler) -> TorchDispatchMode:
    """A mode in which each operator goes through the function, those of TorchScript too.

    Operators that call functions, as `torch.cond`, raise NotImplementedError in it.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
        def __torch_dispatch__(
            self,
            func: Any,
            types: Sequence[type],
            args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            return through(func, args, kwargs or {})

        def __exit__(self, *raised: Any) -> None:
            super().__exit__(*raised)  # type: ignore[no-untyped-call]  # torch's own
            reset_compiled()

    return Operators()  # type: ignore[no-untyped-call]  # torch's own
