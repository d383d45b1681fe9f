"""Modes of torch made of one function: what sees every call, or every operator, in a block."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

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
