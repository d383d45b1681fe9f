"""What forward takes out of tensors, taken down on data and answered again where there is none."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

MAX_CALLS = 20_000  # of torch in one run without data: models of some hundred layers make as many
_VALUES = (
    "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "__array__",
    "item", "tolist", "numpy", "equal", "allclose", "is_nonzero",
)  # fmt: skip


def record_scalars(module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> list[object]:
    """What forward takes out of tensors on this data, in order; its buffers stay as they are."""
    import torch
    from torch.overrides import TorchFunctionMode

    answers: list[object] = []

    class Recording(TorchFunctionMode):
        """Keeps what leaves the tensors."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> object:
            answer = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") in _VALUES:
                answers.append(answer)
            return answer

    buffers = {name: one.clone() for name, one in module.named_buffers()}
    given = tuple(one.clone() for one in tensors)
    try:
        with torch.no_grad(), Recording():
            torch.func.functional_call(module, buffers, given)
    except Exception:  # noqa: BLE001 - the answers so far are what there is
        return answers
    return answers


class CallLimitError(Exception):
    """Forward without data makes too many calls."""


def replay_scalars(
    answers: list[object], most: int = MAX_CALLS, *, fixed: Callable[[], object] = lambda: None
) -> AbstractContextManager[object]:
    """A mode in which what leaves the tensors is what it was on data.

    Args:
        answers: in order; where there are none, torch refuses what has no data.
        most: calls of torch after which `CallLimitError` is raised: counted, so that no clock decides.
        fixed: called where a tensor is made of a size: torch makes a plain number of it there.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    makers = (torch.tensor, torch.as_tensor, torch.scalar_tensor)
    left, calls = iter(answers), itertools.count(1)

    class Replaying(TorchFunctionMode):
        """Answers from memory."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> object:
            if next(calls) > most:
                raise CallLimitError(
                    f"sizes are followed through {most} calls of torch, and no further"
                )
            if func in makers and _has_symbol(args):
                fixed()
            if answers and getattr(func, "__name__", "") in _VALUES:
                return next(left)
            return func(*args, **(kwargs or {}))

    return Replaying()


def _has_symbol(values: Any) -> bool:
    """Whether a symbol for a size is among these, or in a list of them."""
    import torch

    if isinstance(values, (list, tuple)):
        return any(map(_has_symbol, values))
    return isinstance(values, (torch.SymInt, torch.SymFloat, torch.SymBool))
