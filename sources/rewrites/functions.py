"""Custom autograd functions by their forward alone: what a capture would keep as a Python call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .rewrite import Module, Rewrite
from .swapping import swap_attribute

# Custom autograd functions by their forward alone: what a capture would keep as a Python call.


_FUNCTION_SIGNS = (
    "autograd/function.py",
    "PythonOp",
    "autograd.Function",
)  # what refusals say of it


class _ForwardContext:
    """Stands in for `ctx`: it takes what forward keeps for a backward that no artifact has."""

    def save_for_backward(self, *tensors: object) -> None:
        self.saved_tensors = tensors

    def _nothing(self, *given: object) -> None:
        """What backward alone would need."""

    save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = _nothing


def _has_autograd_functions(module: Module, reasons: Sequence[str]) -> bool:  # noqa: ARG001 - as every `suits`
    return any(sign in reason for reason in reasons for sign in _FUNCTION_SIGNS)


@contextmanager
def _call_forward_only(module: Module) -> Iterator[None]:  # noqa: ARG001 - as every `during`
    from torch.autograd import Function

    with swap_attribute(Function, "apply", classmethod(_run_forward)):
        yield


def _run_forward(cls: Any, *args: Any, **kwargs: Any) -> Any:
    from torch.autograd import Function

    if cls.setup_context is not Function.setup_context:  # then forward takes no `ctx`
        return cls.forward(*args, **kwargs)
    context: Any = _ForwardContext()
    context.needs_input_grad = (False,) * len(args)
    return cls.forward(context, *args, **kwargs)


FUNCTION_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="plain-functions",
        summary="torch.autograd.Function by its forward alone",
        suits=_has_autograd_functions,
        during=_call_forward_only,
        signs=_FUNCTION_SIGNS,
    ),
)
