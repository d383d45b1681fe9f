"""Eager with the weights of an artifact: what its integers stand for, in place of its own.

A weight changes when a call uses it, and one changed weight is in memory at a time, unless all of
them are small. Only calls see it: code that reads memory in another way, as TorchScript does, is
found and named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.torch_tools import flatten_tensors, intercept_operators
from ..core.weights import RoundedWeight
from .weights_on_use import ChangedWeights

if TYPE_CHECKING:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

_KEPT_BYTES = 1 << 28  # of dequantized weights that stay in memory
_LOOKUPS = ("embedding", "embedding_bag", "__getitem__", "index_select", "gather")


@dataclass(kw_only=True)
class WeightUses:
    """How calls used the weights: `used` are those that were replaced, by name.

    `missed` are weights that an operator read as they are, beside lookups in those that the
    artifact has as a factor of products alone: these are `looked_up`.
    """

    used: dict[str, None] = field(default_factory=dict)
    looked_up: dict[str, None] = field(default_factory=dict)
    missed: dict[str, None] = field(default_factory=dict)


@contextmanager
def carry_weights(
    module: torch.nn.Module, weights: Sequence[RoundedWeight]
) -> Iterator[WeightUses]:
    """Use an artifact's weights in all calls of the module within the context.

    A table for lookups and a factor of products may be rounded in other ways, as those of tied
    embeddings are: each use gets its own.
    """
    uses, named = WeightUses(), dict(module.named_parameters(remove_duplicate=False))
    kinds = {
        False: {id(named[one.name]): one for one in weights if one.matrix.factor},
        True: {id(named[one.name]): one for one in weights if one.matrix.table},
    }
    originals = {id(named[one.name]): named[one.name] for one in weights}
    size = sum(4 * tensor.numel() for tensor in originals.values())
    rows = _Rows(kinds=kinds, uses=uses, keep=size <= _KEPT_BYTES)
    with ExitStack() as modes:
        modes.enter_context(_watch_originals(originals, kinds, uses))
        modes.enter_context(_OwnWeights(originals, rows).as_mode())
        yield uses


@dataclass(kw_only=True)
class _Rows:
    """Reads rows of weights, and keeps small ones."""

    kinds: Mapping[bool, Mapping[int, RoundedWeight]]
    uses: WeightUses
    keep: bool
    known: dict[tuple[int, bool, int, int], Any] = field(default_factory=dict)

    def read(self, weight: int, first: int, count: int, *, lookup: bool) -> torch.Tensor | None:
        """Return rows of the artifact's weight; None if it is no weight of this use."""
        import torch

        own = self.kinds[lookup].get(weight)
        if own is None:
            return None
        self.uses.used[own.name] = None
        key = weight, lookup, first, count
        found: torch.Tensor | None = self.known.get(key)
        if found is None:
            found = torch.from_numpy(own.read_rows(first, first + count))
        if self.keep:
            self.known[key] = found
        return found


class _OwnWeights(ChangedWeights):
    """Gives a call the rows of the artifact's weights, a lookup only those of its ids."""

    def __init__(self, originals: Mapping[int, torch.Tensor], rows: _Rows) -> None:
        super().__init__(originals, self._read)
        self._rows = rows

    def _read(self, part: torch.Tensor, weight: int, first: int) -> torch.Tensor:
        found = self._rows.read(weight, first, len(part), lookup=self._looks_up)
        return part if found is None else found.reshape(part.shape)

    _looks_up = False

    def _call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._looks_up = getattr(func, "__name__", "") in _LOOKUPS
        return super()._call(func, args, kwargs)

    def look_up(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the artifact's rows of these ids."""
        import torch

        table = args[1] if len(args) > 1 else kwargs["weight"]
        ids = args[0] if args else kwargs["input"]
        if id(table) not in self._rows.kinds[True]:
            factor = self._rows.kinds[False].get(id(table))
            if factor is not None:
                self._rows.uses.looked_up[factor.name] = None
            return func(*args, **kwargs)
        wanted, places = torch.unique(ids, return_inverse=True)
        rows = [self._rows.read(id(table), one, 1, lookup=True) for one in wanted.tolist()]
        return torch.cat([one for one in rows if one is not None])[places]


def _watch_originals(
    originals: Mapping[int, torch.Tensor],
    kinds: Mapping[bool, Mapping[int, RoundedWeight]],
    uses: WeightUses,
) -> TorchDispatchMode:
    """Return a mode that finds operators that read a weight as it is."""
    import torch

    places = {tensor.untyped_storage().data_ptr(): key for key, tensor in originals.items()}
    lookups = torch.ops.aten.embedding.default, torch.ops.aten.embedding_bag.default
    harmless = torch.ops.aten.detach.default, torch.ops.aten.slice.Tensor

    def check(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with torch._C.DisableTorchFunction():  # or the weight is exchanged here
            for one in flatten_tensors((*args, *kwargs.values())):
                if one.layout is not torch.strided or func in harmless or not one.numel():
                    continue
                key = places.get(one.untyped_storage().data_ptr())
                own = None if key is None else kinds[func in lookups].get(key)
                if own is not None:
                    uses.missed[own.name] = None
            return func(*args, **kwargs)

    return intercept_operators(check, branches=True)
