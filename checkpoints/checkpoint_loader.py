"""Load a checkpoint of any kind, and prepare its module: eval mode, float32, checks."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError, ErrorCode, Hint, Option, UsageError
from . import huggingface_folder, state_dict_checkpoint, torch_archives
from .enclosed_module import enclose
from .loaded_module import LoadedModule
from .method_wrapper import with_method
from .sniff import HUGGINGFACE, PT2, SAFETENSORS, STATE_DICT, TORCHSCRIPT
from .torchao_weights import unwrap_weights
from .weight_loading import check_form, tensor_form, unshare_elements

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ..core.records import Checkpoint

__all__ = ["LoadedModule", "load_checkpoint", "modules_in_training"]

_OPENERS: dict[str, Callable[[Checkpoint], LoadedModule]] = {
    STATE_DICT: state_dict_checkpoint.load_state_dict_file,
    SAFETENSORS: state_dict_checkpoint.load_safetensors,
    TORCHSCRIPT: torch_archives.load_torchscript,
    PT2: torch_archives.load_exported_program,
    HUGGINGFACE: huggingface_folder.load_huggingface,
}


def load_checkpoint(checkpoint: Checkpoint) -> LoadedModule:
    """Load a checkpoint's module in eval mode; half precision becomes float32.

    Raises:
        CheckpointError: it cannot be read, is rejected, or does not fit its module.
        UsageError: the factory does not exist or does not fit.
        MissingError: a required package is not installed.
    """
    from torch.nn.parameter import is_lazy

    if checkpoint.kind not in _OPENERS:
        raise CheckpointError(
            f"{checkpoint.path} has the unknown kind {checkpoint.kind!r}",
            hint=f"kinds are {', '.join(_OPENERS)}",
        )
    _check_arguments(checkpoint)
    loaded = _OPENERS[checkpoint.kind](checkpoint)
    unwrapped = unwrap_weights(loaded.module)
    for name, tensor in (*loaded.module.named_parameters(), *loaded.module.named_buffers()):
        if is_lazy(tensor):
            raise CheckpointError(
                f"{name} is lazy: it has no size until the module runs, and no weights",
                hint="run the module once on an example before its factory returns it",
            )
        check_form(name, tensor, tensor_form(tensor))  # factories may build anything
    _materialize_lazy_modules(loaded.module)
    if checkpoint.method is not None:
        loaded = with_method(loaded, checkpoint.method)
    notes = [*loaded.notes, *unwrapped]
    if checkpoint.factory and loaded.kind in (TORCHSCRIPT, PT2):
        notes.append(f"--model {checkpoint.factory} is not used: the file contains its own code")
    if loaded.kind != PT2:  # its graph fixes the precision
        notes.extend(_to_float32(loaded.module))
    unshare_elements(loaded.module.parameters())
    for parameter in (
        loaded.module.parameters()
    ):  # one by one: ScriptModules have no requires_grad_ of their own
        parameter.requires_grad_(False)
    notes.extend(_to_eval(loaded.module))
    loaded = replace(loaded, notes=tuple(notes), drop=checkpoint.drop_outputs)
    return enclose(loaded, checkpoint)


def _check_arguments(checkpoint: Checkpoint) -> None:
    """Reject arguments without effect.

    Raises:
        UsageError: an argument has no effect.
    """
    arguments, kind = checkpoint.factory_args, checkpoint.kind
    if arguments and checkpoint.factory is None and kind != HUGGINGFACE:
        raise UsageError(
            f"--model-arg {next(iter(arguments))} has no effect: {checkpoint.path} is not built by "
            "a factory",
            hint=Hint(
                "leave it out, or add ",
                Option("model"),
                " with the function or class that takes it",
            ),
            option="model-arg",
            code=ErrorCode.NO_EFFECT,
        )
    if checkpoint.weights_key is not None and kind not in (STATE_DICT, SAFETENSORS):
        raise UsageError(
            f"--weights-key has no effect: {checkpoint.path} contains its own code and weights",
            hint="leave it out",
            option="weights-key",
            code=ErrorCode.NO_EFFECT,
        )


def modules_in_training(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the modules in training mode; the root is '(the model)'."""
    return tuple(name or "(the model)" for name, part in module.named_modules() if part.training)


def _materialize_lazy_modules(module: torch.nn.Module) -> None:
    """Turn lazy modules with loaded weights into their final classes."""
    from torch.nn.modules.lazy import LazyModuleMixin

    for part in module.modules():
        if not isinstance(part, LazyModuleMixin):
            continue
        for name in ("_initialize_hook", "_load_hook"):
            if (hook := part.__dict__.pop(name, None)) is not None:
                hook.remove()
        if part.cls_to_become is not None:
            part.__class__ = part.cls_to_become


def _to_eval(module: torch.nn.Module) -> list[str]:
    try:
        module.eval()
    except NotImplementedError:  # an exported program's module rejects eval()
        for part in module.modules():
            part.training = False
    still = modules_in_training(module)
    return [f"in training mode after eval(): {', '.join(still)}"] if still else []


def _to_float32(module: torch.nn.Module) -> list[str]:
    """Cast half-precision parameters and buffers to float32, one at a time.

    A model that itself casts to half precision stays as it is.
    """
    import torch

    half = (torch.float16, torch.bfloat16)
    found = {
        id(tensor): tensor
        for tensor in (*module.parameters(), *module.buffers())
        if tensor.dtype in half
    }
    names = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in found.values()})
    place = find_half_cast(module) if found else None
    if place is not None:
        kept = f"{len(found)} {' and '.join(names)} tensors of the module were not cast"
        return [f"{kept} to float32: {place} casts to half precision"]
    for tensor in found.values():
        tensor.data = tensor.data.to(torch.float32)
    if not found:
        return []
    return [f"{len(found)} {' and '.join(names)} tensors of the module were cast to float32"]


# Models that cast to half precision in their own code: what they then meet must be half too.


_HALVES = frozenset({"half", "float16", "bfloat16"})
_LIBRARIES = frozenset(
    {"torch", "torchvision", "transformers", "timm"}
)  # their code follows the dtype of weights


def find_half_cast(module: torch.nn.Module) -> str | None:
    """Return where a user module's forward casts to half, as `file.py:12`; None if none does.

    Casts to the dtype of another tensor (`x.to(self.weight.dtype)`) do not count.
    """
    for kind in dict.fromkeys(type(part) for part in module.modules()):
        forward = getattr(kind, "forward", None)
        if kind.__module__.partition(".")[0] in _LIBRARIES or not inspect.isfunction(forward):
            continue
        line = _first_cast_line(forward)
        if line is not None:
            return f"{forward.__code__.co_filename.rpartition('/')[2]}:{line}"
    return None


def _first_cast_line(function: object) -> int | None:
    """Return the first line of a function that casts; None if there is none or no source."""
    try:
        lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]  # a function
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        return None
    found = [
        node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_half_cast(node)
    ]
    return min(found) + first - 1 if found else None


def _is_half_cast(call: ast.Call) -> bool:
    """Whether it is `x.half()`, `x.bfloat16()`, or `x.to(torch.float16)` and its like."""
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr in {"half", "bfloat16"}:
        return not call.args
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return call.func.attr in {"to", "type"} and any(
        isinstance(one, ast.Attribute) and one.attr in _HALVES for one in given
    )
