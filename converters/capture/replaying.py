"""What forward takes out of tensors, taken down on data and answered again where there is none."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

_VALUES = (
    "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "__array__",
    "item", "tolist", "numpy", "equal", "allclose", "is_nonzero",
)  # fmt: skip


def answers_of(module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> list[object]:
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


class LateError(Exception):
    """Forward without data takes too long."""


def replaying(answers: list[object], patience: float) -> AbstractContextManager[object]:
    """A mode in which what leaves the tensors is what it was on data.

    Args:
        answers: in order; where there are none, torch refuses what has no data.
        patience: seconds after which `LateError` is raised.
    """
    from torch.overrides import TorchFunctionMode

    left, late = iter(answers), time.monotonic() + patience

    class Replaying(TorchFunctionMode):
        """Answers from memory."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> object:
            if time.monotonic() > late:
                raise LateError(f"sizes take longer than {patience:.0f} s to follow")
            if answers and getattr(func, "__name__", "") in _VALUES:
                return next(left)
            return func(*args, **(kwargs or {}))

    return Replaying()
