"""Opens a checkpoint: one file a kind does it, and what holds for every module is done here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError, ErrorCode, Hint, Option, UsageError
from . import (
    exported_program,
    huggingface_folder,
    safetensors_files,
    state_dict_file,
    torchscript_archive,
)
from .half_casts import find_half_cast
from .loaded import LoadedModule
from .method import with_method
from .sniff import HUGGINGFACE, PT2, SAFETENSORS, STATE_DICT, TORCHSCRIPT
from .weights import check_form, tensor_form, unshare_elements

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ..core.records import Checkpoint

__all__ = ["LoadedModule", "load_checkpoint", "modules_in_training"]

_OPENERS: dict[str, Callable[[Checkpoint], LoadedModule]] = {
    STATE_DICT: state_dict_file.load_state_dict_file,
    SAFETENSORS: safetensors_files.load_safetensors,
    TORCHSCRIPT: torchscript_archive.load_torchscript,
    PT2: exported_program.load_exported_program,
    HUGGINGFACE: huggingface_folder.load_huggingface,
}


def load_checkpoint(checkpoint: Checkpoint) -> LoadedModule:
    """Open a checkpoint: its module in eval mode, in float32 where it was in half precision.

    Raises:
        CheckpointError: it cannot be read, is refused, or does not fit its module.
        UsageError: the factory is not what was asked for.
        MissingError: the kind needs a package that is not here.
    """
    from torch.nn.parameter import is_lazy

    if checkpoint.kind not in _OPENERS:
        raise CheckpointError(
            f"{checkpoint.path} is of the unknown kind {checkpoint.kind!r}",
            hint=f"kinds are {', '.join(_OPENERS)}",
        )
    _check_arguments(checkpoint)
    loaded = _OPENERS[checkpoint.kind](checkpoint)
    for name, tensor in (*loaded.module.named_parameters(), *loaded.module.named_buffers()):
        if is_lazy(tensor):
            raise CheckpointError(
                f"{name} is lazy: it has no size before the module has run, and no weights here",
                hint="run the module once on an example before its factory returns it",
            )
        check_form(name, tensor, tensor_form(tensor))  # whatever the factory built
    _materialize_lazy_modules(loaded.module)
    if checkpoint.method is not None:
        loaded = with_method(loaded, checkpoint.method)
    notes = list(loaded.notes)
    if checkpoint.factory and loaded.kind in (TORCHSCRIPT, PT2):
        notes.append(f"--model {checkpoint.factory} is not used: the file brings its own code")
    if loaded.kind != PT2:  # its graph has the precision written into it
        notes.extend(_to_float32(loaded.module))
    unshare_elements(loaded.module.parameters())
    for parameter in loaded.module.parameters():  # not at once: ScriptModules refuse that
        parameter.requires_grad_(False)
    notes.extend(_to_eval(loaded.module))
    return replace(loaded, notes=tuple(notes), drop=checkpoint.drop_outputs)


def _check_arguments(checkpoint: Checkpoint) -> None:
    """That no argument is without effect in silence.

    Raises:
        UsageError: there is nothing that takes it.
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
            f"--weights-key has no effect: {checkpoint.path} brings its own code and weights",
            hint="leave it out",
            option="weights-key",
            code=ErrorCode.NO_EFFECT,
        )


def modules_in_training(module: torch.nn.Module) -> tuple[str, ...]:
    """The names of the modules in training mode; the outermost is '(the model)'."""
    return tuple(name or "(the model)" for name, part in module.named_modules() if part.training)


def _materialize_lazy_modules(module: torch.nn.Module) -> None:
    """Make lazy modules what they become in their first run: their weights are filled already."""
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
    except NotImplementedError:  # an exported program's module has no modes to change
        for part in module.modules():
            part.training = False
    still = modules_in_training(module)
    return [f"still in training mode after eval(): {', '.join(still)}"] if still else []


def _to_float32(module: torch.nn.Module) -> list[str]:
    """Bring half-precision parameters and buffers to float32, one at a time.

    A model that casts to half precision itself computes in both, and is left as it is.
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
        kept = f"{len(found)} {' and '.join(names)} tensors of the module were kept so"
        return [f"{kept}, as {place} casts to half precision"]
    for tensor in found.values():
        tensor.data = tensor.data.to(torch.float32)
    if not found:
        return []
    return [f"{len(found)} {' and '.join(names)} tensors of the module were brought to float32"]
