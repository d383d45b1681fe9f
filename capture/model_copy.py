"""Copies for rewrites, which share the reference's weights, and the user's `--patch`."""

from __future__ import annotations

import copy
import traceback
import warnings
import zlib
from typing import TYPE_CHECKING

from ..checkpoints.enclosed_module import find_steps
from ..checkpoints.factory import import_object
from ..checkpoints.method_wrapper import find_owner, rebind_method
from ..core.errors import CheckpointError, ConversionError, UsageError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_SMALL_TENSOR_BYTES = 1 << 20  # bytes: smaller buffers are copied, as forward may write into them


def copy_sharing_weights(module: torch.nn.Module) -> torch.nn.Module:
    """Return a deep copy that shares the memory of parameters and of large buffers.

    Each parameter is a separate object, so that the copy's can be replaced.

    Raises:
        ConversionError: the module cannot be copied.
    """
    import torch

    memo: dict[int, object] = {}
    for tensor in _module_tensors(module):
        if isinstance(tensor, torch.nn.Parameter):
            memo[id(tensor)] = _alias_parameter(tensor)
        elif not tensor.is_leaf or (  # tensors with a history cannot be copied
            tensor.layout is torch.strided and tensor.nbytes > _SMALL_TENSOR_BYTES
        ):
            memo[id(tensor)] = tensor.detach()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about gradients, which are not used
            return copy.deepcopy(module, memo)
    except Exception as error:  # the user's own __deepcopy__, or a lock among the attributes
        raise ConversionError(
            f"the model cannot be copied for rewrites: {first_line(error)}",
            hint="do not store objects in attributes that cannot be copied",
        ) from error


def _alias_parameter(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return a parameter on the same memory; subclasses of Parameter are shared themselves."""
    import torch

    if type(parameter) is not torch.nn.Parameter:
        return parameter
    return torch.nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)


def _module_tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield every parameter, buffer and tensor attribute."""
    import torch

    yield from module.parameters()
    yield from module.buffers()
    for part in module.modules():
        yield from (one for one in vars(part).values() if isinstance(one, torch.Tensor))


def weight_checksums(module: torch.nn.Module) -> dict[str, int]:
    """Return the CRC-32 of every parameter and buffer, by name."""
    import torch

    named = (*module.named_parameters(), *module.named_buffers())
    sums: dict[str, int] = {}
    for name, tensor in named:
        if tensor.layout is torch.strided and not tensor.is_quantized:
            flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            sums[name] = zlib.crc32(flat.numpy().data)
    return sums


# `--patch pkg.mod:fn`: the user's own change to the copy that is captured.


PATCH = "patch:"  # the prefix of such a rewrite's name


def apply_patch(module: torch.nn.Module, spec: str) -> torch.nn.Module:
    """Apply `package.module:fn` to the copy; the function returns a module, or changes it in place.

    With `--method` it gets the user's module, whose method is then called.

    Raises:
        UsageError: the function does not exist.
        CheckpointError: it raised, or returned something else than a suitable module.
    """
    from torch import nn

    function = import_object(spec, "--patch")
    if not callable(function) or isinstance(function, nn.Module):
        raise UsageError(
            f"--patch {spec} is a {type(function).__name__}, which is not called with a module",
            hint="name a function that takes the module, and changes it or returns another",
            option="patch",
        )
    if find_steps(module) is not None:
        module.model = apply_patch(module.get_submodule("model"), spec)
        return module
    owner = find_owner(module)
    try:
        given = function(module if owner is None else owner)
    except Exception as error:  # the user's code raises anything
        raise CheckpointError(
            f"--patch {spec} raised {type(error).__name__}{_location(error)}: {first_line(error)}",
            hint="the error is in the patch; call it in Python with your model for the traceback",
            option="patch",
        ) from error
    if given is not None and not isinstance(given, nn.Module):
        raise CheckpointError(
            f"--patch {spec} returned {type(given).__name__}, not a torch.nn.Module",
            hint="change the module in place and return nothing, or return a module",
            option="patch",
        )
    if given is None:
        return module
    return given.eval() if owner is None else rebind_method(module, given.eval())


def check_unmodified(reference: torch.nn.Module, before: dict[str, int], names: str) -> None:
    """Check that the weights shared with the reference did not change.

    Raises:
        CheckpointError: a patch wrote into them, and so into the reference.
    """
    now = weight_checksums(reference)
    changed = [name for name, value in before.items() if now.get(name) != value]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise CheckpointError(
            f"{names} writes into weights that the copy shares with the reference: "
            f"{changed[0]}{more}",
            hint="give the copy its own tensor: module.weight = nn.Parameter(new)",
        )


def _location(error: BaseException) -> str:
    """Return ` at file:line` of the innermost frame outside installed packages."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
