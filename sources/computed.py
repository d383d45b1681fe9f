"""The tensors that eager computes on its way: what of an artifact's constants is folded from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode

    from ..core.contract import Array


class Watch:
    """Whether any tensor that was computed passed the test."""

    def __init__(self, test: Callable[[Array], bool]) -> None:
        self._test = test
        self.found = False

    def see(self, value: object) -> None:
        """Look at a tensor of float32, or at those in a tuple or list."""
        import torch

        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, torch.Tensor) and one.dtype is torch.float32 and not self.found:
                self.found = self._test(one.detach().cpu().contiguous().numpy())


def watching(watch: Watch) -> TorchDispatchMode:
    """A mode that shows `watch` what every operator gives."""
    from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

    class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self,
            func: Any,
            types: Sequence[type],
            args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            value = func(*args, **(kwargs or {}))
            with _disable_current_modes():
                watch.see(value)
            return value

    return Watching()  # type: ignore[no-untyped-call]
