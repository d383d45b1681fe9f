"""The tensors that eager computes on its way: what of an artifact's constants is folded from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.torch_modes import through_operators

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode

    from ..core.contract import Array


class ValueProbe:
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


def probe_values(watch: ValueProbe) -> TorchDispatchMode:
    """A mode that shows `watch` what every operator gives."""
    from torch.utils._python_dispatch import _disable_current_modes

    def probe(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value = func(*args, **kwargs)
        with _disable_current_modes():
            watch.see(value)
        return value

    return through_operators(probe)
