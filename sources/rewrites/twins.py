"""The copy that rewrites are made on: its own module, the reference's weights."""

from __future__ import annotations

import copy
import warnings
import zlib
from typing import TYPE_CHECKING

from ...core.errors import ConversionError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_SMALL_TENSOR_BYTES = (
    1 << 20
)  # bytes: buffers up to this are copied, as forward may write into them


def copy_sharing_weights(module: torch.nn.Module) -> torch.nn.Module:
    """A deep copy that shares the memory of parameters and of large buffers.

    Each parameter is an object of its own, so that one that is replaced in the copy stays as it is
    in the module.

    Raises:
        ConversionError: the module cannot be copied.
    """
    import torch

    memo: dict[int, object] = {}
    for tensor in _module_tensors(module):
        if isinstance(tensor, torch.nn.Parameter):
            memo[id(tensor)] = _alias_parameter(tensor)
        elif _is_large(tensor) or not tensor.is_leaf:  # what has a history cannot be copied
            memo[id(tensor)] = tensor.detach()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of gradients, which nobody asks for
            return copy.deepcopy(module, memo)
    except Exception as error:  # the user's own __deepcopy__, or a lock among the attributes
        raise ConversionError(
            f"the model cannot be copied to be rewritten: {first_line(error)}",
            hint="keep what cannot be copied out of the module's attributes",
        ) from error


def _alias_parameter(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Another parameter on the same memory; one of a class of its own is shared as it is."""
    import torch

    if type(parameter) is not torch.nn.Parameter:
        return parameter
    return torch.nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)


def _is_large(tensor: torch.Tensor) -> bool:
    import torch

    return tensor.layout is torch.strided and tensor.nbytes > _SMALL_TENSOR_BYTES


def _module_tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Every parameter, buffer and plain tensor attribute."""
    import torch

    yield from module.parameters()
    yield from module.buffers()
    for part in module.modules():
        yield from (one for one in vars(part).values() if isinstance(one, torch.Tensor))


def weight_checksums(module: torch.nn.Module) -> dict[str, int]:
    """CRC-32 of the bytes of every parameter and buffer, by name."""
    import torch

    named = (*module.named_parameters(), *module.named_buffers())
    sums: dict[str, int] = {}
    for name, tensor in named:
        if tensor.layout is torch.strided and not tensor.is_quantized:
            flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            sums[name] = zlib.crc32(flat.numpy().data)
    return sums
