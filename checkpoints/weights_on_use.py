"""Weights that are changed when a call uses them: cast to float64, perturbed, or rounded.

One changed weight is in memory at a time, and of the large one of a linear layer, a block of rows.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ..core.torch_tools import flatten_tensors, intercept_calls, intercept_operators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

_BLOCK = 1 << 24  # elements of a linear layer's weight that are changed at once

# Metadata of a weight, available without a cast.
_METADATA_CALLS = frozenset((
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "is_contiguous",
    "get_device", "__len__", "__hash__", "__bool__",
))  # fmt: skip
_METADATA_PROPERTIES = frozenset((
    "shape", "ndim", "device", "layout", "requires_grad", "grad", "is_cuda", "is_sparse",
    "is_quantized", "is_mkldnn", "is_meta", "is_leaf", "names", "grad_fn",
))  # fmt: skip


class UncastWeightError(Exception):  # not a ModelcError: there is no reference then
    """A weight was used without a cast, or written to; the message says how in one line."""


def share_parameters(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of the module with the same parameters, and its buffers in float64."""
    copied = copy.deepcopy(module, {id(p): p for p in module.parameters()})
    for part in copied.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                part._buffers[name] = buffer.double()
    return copied


@contextmanager
def cast_weights_on_use(module: torch.nn.Module) -> Iterator[None]:
    """Cast float parameters of the module to float64 in every call within the context.

    Raises:
        UncastWeightError: a call used a parameter without a cast, as TorchScript does.
    """
    import torch

    floats = {id(p): p for p in module.parameters() if p.is_floating_point()}
    copies = _Float64Copies()
    with ExitStack() as modes:
        modes.enter_context(_make_guard_mode(floats, copies))
        change = ChangedWeights(floats, lambda part, *_: copies.of(part), torch.float64)
        modes.enter_context(change.as_mode())
        yield


@contextmanager
def perturb_weights_on_use(module: torch.nn.Module, share: float, seed: int) -> Iterator[None]:
    """Multiply float parameters by 1 + share * N(0, 1) per element in calls within the context.

    The same call gets the same noise again. Uses that are not calls of torch's Python functions, as
    in TorchScript, see the weights as they are.
    """
    import torch

    floats = {id(p): p for p in module.parameters() if p.is_floating_point()}
    numbers = {key: number for number, key in enumerate(floats)}

    def perturb(part: torch.Tensor, weight: int, first: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((seed, numbers[weight], first)) % 2**63)
        noise = torch.randn(part.shape, generator=generator)
        return noise.mul_(share).add_(1).to(part.dtype).mul_(part)

    with ChangedWeights(floats, perturb).as_mode():
        yield


def largest_use(module: torch.nn.Module) -> int:
    """Return the elements of the largest weight, or block of one, that one call needs changed."""
    import torch

    blocks = (torch.nn.Linear, torch.nn.Embedding)
    return max(
        (
            min(tensor.numel(), _BLOCK) if type(part) in blocks else tensor.numel()
            for part in module.modules()
            for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False))
        ),
        default=0,
    )


class ChangedWeights:
    """What calls get in place of weights, or of rows of them.

    `make` takes a part of a weight, the identity of the weight, and the first row. `dtype` is that
    of all results, if it is not the weight's.
    """

    def __init__(
        self,
        weights: Mapping[int, torch.Tensor],
        make: Callable[[torch.Tensor, int, int], torch.Tensor],
        dtype: torch.dtype | None = None,
    ) -> None:
        self._weights = weights
        self._make = make
        self._dtype = dtype

    def as_mode(self) -> TorchFunctionMode:
        """Return a mode in which calls get changed weights."""
        return intercept_calls(self._call)

    def _call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        import torch

        read = _property_name(func)
        if self._dtype is not None and read == "dtype" and id(args[0]) in self._weights:
            return self._dtype
        if read in _METADATA_PROPERTIES or getattr(func, "__name__", "") in _METADATA_CALLS:
            return func(*args, **kwargs)
        if _is_lookup(func, args, kwargs):
            return self.look_up(func, args, kwargs)
        if func is torch.nn.functional.linear and self._is_large(args):
            return self._multiply_blocks(*args, **kwargs)
        named = {key: self._replace(value) for key, value in kwargs.items()}
        return func(*map(self._replace, args), **named)

    def look_up(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the rows of a table, changed; the table is not."""
        table = args[1] if len(args) > 1 else kwargs["weight"]
        found = func(*args, **kwargs)
        changed = id(table) in self._weights or self._dtype is not None
        return self._make(found, id(table), 0) if changed else found

    def _replace(self, value: Any) -> Any:
        if isinstance(value, list | tuple) and any(id(one) in self._weights for one in value):
            return type(value)(self._replace(one) for one in value)
        return self._make(value, id(value), 0) if id(value) in self._weights else value

    def _is_large(self, args: Sequence[Any]) -> bool:
        """Whether the weight of a linear layer, its second argument, is larger than a block."""
        weight = self._weights.get(id(args[1])) if len(args) > 1 else None
        return weight is not None and weight.ndim > 1 and weight.numel() > _BLOCK

    def _multiply_blocks(
        self, data: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return a linear layer's result, of some rows of its weight at a time."""
        import torch

        own, rows = self._replace(bias), max(_BLOCK // weight.shape[1], 1)
        parts = []
        for first in range(0, len(weight), rows):
            part = self._make(weight.detach()[first : first + rows], id(weight), first)
            of_part = None if own is None else own[first : first + rows]
            parts.append(torch.nn.functional.linear(data, part, of_part))
            del part  # or two would be in memory
        return torch.cat(parts, dim=-1)


class _Float64Copies:
    """The float64 copies of weights that are alive."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}

    def of(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight, or a part of it, in float64."""
        from torch.multiprocessing.reductions import StorageWeakRef

        gone = [key for key, storage in self._storages.items() if storage.expired()]  # type: ignore[no-untyped-call]  # torch's own
        for key in gone:
            del self._storages[key]
        made = weight.double()
        storage = StorageWeakRef(made.untyped_storage())  # type: ignore[no-untyped-call]  # torch's own
        self._storages[storage.cdata] = storage
        return made

    def hold(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor shares memory with one of the copies."""
        return tensor.untyped_storage()._cdata in self._storages


def _property_name(func: Any) -> str:
    """Return the name of the property that a call reads; empty if it is another call."""
    if getattr(func, "__name__", "") != "__get__":
        return ""
    return str(getattr(getattr(func, "__self__", None), "__name__", ""))


def _is_lookup(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call looks up rows of a table: cast the rows, not the table."""
    import torch

    renormalised = len(args) > 3 or kwargs.get("max_norm") is not None  # noqa: PLR2004
    return func is torch.nn.functional.embedding and not renormalised


def _make_guard_mode(
    weights: Mapping[int, torch.Tensor], copies: _Float64Copies
) -> TorchDispatchMode:
    """Reject operators on uncast parameters, which the cast mode did not see.

    Reject writes to cast weights as well: the next call would not see them.
    """
    import torch

    with torch._C.DisableTorchFunction():  # another mode may exchange the weights
        places = {p.untyped_storage().data_ptr() for p in weights.values()}
    aten = torch.ops.aten
    copying = (
        aten._to_copy.default, aten.embedding.default, aten.slice.Tensor, aten.detach.default,
    )  # fmt: skip

    def is_weight(tensor: torch.Tensor) -> bool:
        return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() in places

    def check_operator(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with torch._C.DisableTorchFunction():
            operands = [
                one
                for one in flatten_tensors((*args, *kwargs.values()))
                if one.layout is torch.strided
            ]
            if func not in copying and any(map(is_weight, operands)):
                raise UncastWeightError(f"{func} uses a weight without a cast")
            if func._schema.is_mutable and any(map(copies.hold, operands)):
                raise UncastWeightError(f"{func} may write to a weight")
            return func(*args, **kwargs)

    return intercept_operators(check_operator)
