"""Tensors as arrays, and torch modes that intercept calls or operators."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from .errors import ErrorCode, MissingError, first_line
from .large_arrays import copy_array

if TYPE_CHECKING:
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    from .contract import Array


def to_array(tensor: torch.Tensor) -> Array:
    """Return a copy as a dense numpy array on the CPU.

    Dtypes that numpy lacks are widened: bfloat16 and 8-bit floats to float32, half-precision
    complex numbers to complex64.
    """
    return copy_array(_to_plain_tensor(tensor).numpy())


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


def is_array(value: object) -> bool:
    """Whether the value is a NumPy array, a NumPy scalar or a tensor, without importing torch."""
    import numpy as np

    return isinstance(value, (np.ndarray, np.generic)) or is_tensor(value)


def is_tensor(value: object) -> bool:
    """Whether the value is a tensor, without importing torch."""
    return any(kind.__module__ == "torch" for kind in type(value).__mro__) and hasattr(
        value, "detach"
    )


def flatten_tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments or results, also those in lists, tuples and dicts."""
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from flatten_tensors(value)
        elif isinstance(value, dict):
            yield from flatten_tensors(value.values())


# takes the callee, its arguments and keyword arguments; returns the call's result
TorchHandler: TypeAlias = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]


def reset_compiled() -> None:
    """Make torch recompile what it compiled in a mode, such as the branches of `torch.cond`.

    Without the mode, that code fails.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def compile_module(module: torch.nn.Module, variant: str) -> Any:
    """Return the module under torch.compile, as a variant says: `max-autotune+dynamic`.

    Raises:
        MissingError: the package of its backend is not installed.
    """
    import torch

    from .compile_records import COMPILE_BACKENDS, compile_settings

    settings = compile_settings(variant)
    if settings.get("backend") in COMPILE_BACKENDS:
        try:
            importlib.import_module("torch_tensorrt")  # registers the backend
        except Exception as error:  # it raises anything without CUDA
            raise MissingError(
                f"torch-tensorrt cannot be imported: {first_line(error)}",
                hint="pip install torch-tensorrt",
                code=ErrorCode.NOT_INSTALLED,
            ) from error
    return torch.compile(module, **settings)


def intercept_calls(through: TorchHandler) -> TorchFunctionMode:
    """Return a mode in which the function receives each call of torch's Python functions."""
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


def intercept_operators(through: TorchHandler, *, branches: bool = False) -> TorchDispatchMode:
    """Return a mode in which the function receives each operator, including those of TorchScript.

    Operators that call functions, such as `torch.cond`, raise NotImplementedError in it unless it
    takes `branches`: then the function receives them, but not what is called within them.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
        supports_higher_order_operators = branches

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
