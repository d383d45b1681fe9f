"""Weights in float64 one at a time: cast when a call uses them, freed afterwards."""

from __future__ import annotations

import copy
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ..core.torch_tools import intercept_calls, intercept_operators

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

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
    floats = {id(p): p for p in module.parameters() if p.is_floating_point()}
    copies = _Float64Copies()
    with ExitStack() as modes:
        modes.enter_context(_make_guard_mode(floats, copies))
        modes.enter_context(_make_cast_mode(floats, copies))
        yield


class _Float64Copies:
    """The float64 copies of weights that are alive."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}

    def of(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight in float64."""
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


def _make_cast_mode(
    weights: Mapping[int, torch.Tensor], copies: _Float64Copies
) -> TorchFunctionMode:
    import torch

    def cast(value: object) -> object:
        if isinstance(value, list | tuple) and any(id(one) in weights for one in value):
            return type(value)(cast(one) for one in value)
        if isinstance(value, torch.Tensor) and id(value) in weights:
            return copies.of(value)
        return value

    def cast_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        property_name = _property_name(func)
        if property_name == "dtype" and id(args[0]) in weights:
            return torch.float64
        if (
            property_name in _METADATA_PROPERTIES
            or getattr(func, "__name__", "") in _METADATA_CALLS
        ):
            return func(*args, **kwargs)
        if _is_lookup(func, args, kwargs):
            return func(*args, **kwargs).double()
        named = {key: cast(value) for key, value in kwargs.items()}
        return func(*map(cast, args), **named)

    return intercept_calls(cast_arguments)


def _property_name(func: Any) -> str:
    """Return the name of the property that `func` reads; empty for a call."""
    if getattr(func, "__name__", "") != "__get__":
        return ""
    return str(getattr(getattr(func, "__self__", None), "__name__", ""))


def _is_lookup(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call looks up rows of a table: cast the rows, not the table."""
    import torch

    renormalised = len(args) > 3 or kwargs.get("max_norm") is not None  # noqa: PLR2004
    return func is torch.nn.functional.embedding and not renormalised


def _argument_tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """Yield the strided tensors among arguments, lists included."""
    import torch

    for value in values:
        if isinstance(value, list | tuple):
            yield from _argument_tensors(value)
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
            yield value


def _make_guard_mode(
    weights: Mapping[int, torch.Tensor], copies: _Float64Copies
) -> TorchDispatchMode:
    """Reject operators on uncast parameters, which the cast mode did not see.

    Reject writes to cast weights as well: the next call would not see them.
    """
    import torch

    places = {p.untyped_storage().data_ptr() for p in weights.values()}
    copying = (torch.ops.aten._to_copy.default, torch.ops.aten.embedding.default)

    def is_weight(tensor: torch.Tensor) -> bool:
        return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() in places

    def check_operator(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        operands = list(_argument_tensors((*args, *kwargs.values())))
        if func not in copying and any(map(is_weight, operands)):
            raise UncastWeightError(f"{func} uses a weight without a cast")
        if func._schema.is_mutable and any(map(copies.hold, operands)):
            raise UncastWeightError(f"{func} may write to a weight")
        return func(*args, **kwargs)

    return intercept_operators(check_operator)
