"""The flat module: the user's module behind `forward(*tensors) -> tuple of tensors`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .outputs import split_outputs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    import torch

    from ..core.call import Binding

# The flat module: the user's module behind `forward(*tensors) -> tuple of tensors`.


SCOPE = "model"  # the attribute under which the flat module holds the user's


def make_flat_module(  # noqa: PLR0913 - what runs of eager showed of the module
    module: torch.nn.Module,
    binding: Binding,
    *,
    written: Iterable[int] = (),
    taken: Collection[str] = (),
    kept: Collection[str] | None = None,
    drop: Sequence[str] = (),
) -> torch.nn.Module:
    """Wrap `module` so that capture sees tensors only, in the signature's order.

    Inputs whose position is in `written` are cloned first: the module changes them in place.
    `kept` are the names of the outputs, none of `taken`, that are tensors in eager: to a tracer
    sizes are tensors as well. Names to `drop` are no outputs.
    """
    from torch import nn

    copied = frozenset(written)

    class Flat(nn.Module):
        """Binds tensors to the module's parameters and flattens what comes out."""

        def __init__(self) -> None:
            super().__init__()
            self.model = module
            self.training = False

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            """Call the module; an output that is an input, or comes twice, is cloned."""
            given = [t.clone() if i in copied else t for i, t in enumerate(tensors)]
            seen = {id(tensor) for tensor in given}
            results: list[torch.Tensor] = []
            value = binding.call(self.model, given)
            found = split_outputs(value, taken=taken, drop=drop).tensors
            for tensor in (found[name] for name in found if kept is None or name in kept):
                results.append(tensor.clone() if id(tensor) in seen else tensor)
                seen.add(id(tensor))
            return tuple(results)

    return Flat()
