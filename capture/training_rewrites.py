"""Remove training code: hooks, `if self.training`, autograd functions and the like."""

from __future__ import annotations

import dis
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FunctionType, MethodType
from typing import Any

from .evidence import Symptom
from .rewrite import Module, Rewrite, give_own_class, replace_parts, swap_attribute, swaps

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_NAME_INSTRUCTIONS = frozenset(("LOAD_METHOD", "LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME"))
_LIBRARY_PREFIXES = ("torch.", "transformers.")  # whose code torch.jit and torch.export support


def _user_methods(part: Module) -> Iterator[FunctionType]:
    """Yield a module's methods from the user's classes."""
    for kind in type(part).__mro__:
        if not kind.__module__.startswith(_LIBRARY_PREFIXES):
            yield from (one for one in vars(kind).values() if isinstance(one, FunctionType))


def _is_observer(hook: object) -> bool:
    """Whether a hook always returns None and writes nothing in place.

    In-place writes (`out.add_(1)`, `out[0] = 1`) would change an output. A return that is a jump
    target (`return out * 2 if wide else None`) may return something else.
    """
    function = hook.__func__ if isinstance(hook, MethodType) else hook
    if not isinstance(function, FunctionType):
        return False
    code = list(dis.get_instructions(function))
    if any(_may_write(one, code[max(index - 2, 0)]) for index, one in enumerate(code)):
        return False
    ends = [index for index, one in enumerate(code) if one.opname == "RETURN_VALUE"]
    constant = [one for one in code if one.opname == "RETURN_CONST"]
    return all(one.argval is None for one in constant) and all(
        code[index - 1].opname == "LOAD_CONST"
        and code[index - 1].argval is None
        and not code[index].is_jump_target
        for index in ends
    )


def _may_write(instruction: dis.Instruction, container: dis.Instruction) -> bool:
    """Whether it may write into a tensor: an item, `+=`, a function named `..._`.

    Items of the hook's outer variables, such as `features[name] = output`, are allowed.
    """
    kept = container.opname in ("LOAD_DEREF", "LOAD_GLOBAL")
    name = str(instruction.argval)
    in_place = name.endswith("_") and not name.endswith("__")
    return (
        (instruction.opname in _NAME_INSTRUCTIONS and in_place)
        or (instruction.opname in ("STORE_SUBSCR", "STORE_SLICE") and not kept)
        or (instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("="))
        or instruction.opname.startswith("INPLACE_")
    )


def _has_observers(module: Module) -> bool:
    return any(
        _is_observer(hook)
        for part in module.modules()
        for kind in _HOOKS
        for hook in getattr(part, kind).values()
    )


def _remove_observers(module: Module) -> Module:
    for part in module.modules():
        for kind in _HOOKS:
            hooks = getattr(part, kind)
            for key in [key for key, hook in hooks.items() if _is_observer(hook)]:
                del hooks[key]
    return module


def _branches_on_training(part: Module) -> bool:
    """Whether a method of the user's class reads `self.training`."""
    return any("training" in method.__code__.co_names for method in _user_methods(part))


def _fix_training_flag(module: Module) -> Module:
    """Make `training` a constant, so that torch.jit.script omits `if self.training`."""
    for part in module.modules():
        if not part.training and _branches_on_training(part):
            constants = [*getattr(part, "__constants__", ()), "training"]
            give_own_class(part, {"__constants__": constants})
    return module


def _is_compiled(module: Module) -> bool:
    return any(
        hasattr(part, "_orig_mod") or part._compiled_call_impl is not None or _find_compiled(part)
        for part in module.modules()
    )


def _find_compiled(part: Module) -> dict[str, Callable[..., Any]]:
    """Return the original functions of compiled methods by name."""
    found: dict[str, Callable[..., Any]] = {}
    for kind in reversed(type(part).__mro__):
        for name, member in vars(kind).items():
            inner = getattr(member, "_torchdynamo_orig_callable", None)
            if callable(inner) and isinstance(member, FunctionType):
                found[name] = inner
    return found


def _undo_compile(module: Module) -> Module:
    def inner(part: Any) -> Module:
        while hasattr(part, "_orig_mod"):
            part = part._orig_mod
        found: Module = part
        return found

    module = replace_parts(module, inner)
    for part in module.modules():
        vars(part).pop("_compiled_call_impl", None)
        originals = _find_compiled(part)
        if originals:
            give_own_class(part, originals)
    return module


def _uses_checkpoint(module: Module) -> bool:
    return any(
        "checkpoint" in method.__code__.co_names
        for part in module.modules()
        for method in _user_methods(part)
    )


def _call_directly(  # noqa: PLR0913 - torch's signature
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,  # noqa: ARG001
    context_fn: object = None,  # noqa: ARG001
    determinism_check: str = "",  # noqa: ARG001
    debug: bool = False,  # noqa: ARG001
    early_stop: bool = True,  # noqa: ARG001
    preserve_rng_state: bool = True,  # noqa: ARG001
    **kwargs: Any,
) -> Any:
    return function(*args, **kwargs)


SCRIPT_REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        name="no-observers",
        summary="forward hooks that only observe removed",
        suits=_has_observers,
        change=_remove_observers,
    ),
    Rewrite(
        name="no-training-code",
        summary="the code under `if self.training` removed",
        suits=lambda module: any(map(_branches_on_training, module.modules())),
        change=_fix_training_flag,
    ),
    Rewrite(
        name="not-compiled",
        summary="the modules behind torch.compile",
        suits=_is_compiled,
        change=_undo_compile,
    ),
    Rewrite(
        name="no-checkpointing",
        summary="activation checkpoints called directly",
        suits=_uses_checkpoint,
        during=swaps({"torch.utils.checkpoint.checkpoint": _call_directly}),
    ),
)


# Custom autograd functions, which a capture would keep as Python calls.


class _ForwardContext:
    """Replaces `ctx`, and ignores what forward saves for backward."""

    def save_for_backward(self, *tensors: object) -> None:
        self.saved_tensors = tensors

    def _nothing(self, *given: object) -> None:
        """Ignore an argument for backward."""

    save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = _nothing


def _call_forward_only(_: Module) -> AbstractContextManager[None]:
    from torch.autograd import Function

    return swap_attribute(Function, "apply", classmethod(_run_forward))


def _run_forward(cls: Any, *args: Any, **kwargs: Any) -> Any:
    from torch.autograd import Function

    if cls.setup_context is not Function.setup_context:  # then forward takes no `ctx`
        return cls.forward(*args, **kwargs)
    context: Any = _ForwardContext()
    context.needs_input_grad = (False,) * len(args)
    return cls.forward(context, *args, **kwargs)


PLAIN_FUNCTIONS = Rewrite(
    name="plain-functions",
    summary="only the forward of torch.autograd.Function",
    suits=lambda _: True,  # unknown from the classes
    during=_call_forward_only,
    needs=frozenset((Symptom.AUTOGRAD_FUNCTION,)),
)


# Parametrized weights, computed once.


def _has_parametrizations(module: Module) -> bool:
    from torch.nn.utils.parametrize import is_parametrized

    return any(is_parametrized(part) or _weight_norms(part) for part in module.modules())


def _weight_norms(part: Any) -> list[tuple[str, Any]]:
    """Return the names of weights with older weight_norm or spectral_norm, and their removers."""
    from torch.nn.utils import remove_spectral_norm, remove_weight_norm
    from torch.nn.utils.spectral_norm import SpectralNorm
    from torch.nn.utils.weight_norm import WeightNorm

    undo = {SpectralNorm: remove_spectral_norm, WeightNorm: remove_weight_norm}
    hooks = part._forward_pre_hooks.values()
    return [(hook.name, undo[type(hook)]) for hook in hooks if type(hook) in undo]


def _bake_parametrizations(module: Module) -> Module:
    import torch
    from torch.nn.utils import parametrize

    for part in list(module.modules()):
        if parametrize.is_parametrized(part):
            _give_parametrized_class(part)
            for name in list(part.parametrizations):  # type: ignore[arg-type]  # a ModuleDict
                parametrize.remove_parametrizations(part, name, leave_parametrized=True)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the older norms are deprecated
            for name, undo in _weight_norms(part):
                undo(part, name)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module


def _give_parametrized_class(part: Module) -> None:
    """Give a separate class: removal deletes properties from it."""
    made = type(part)
    give_own_class(part, {})
    part.__class__.__bases__ = made.__bases__
    for name, member in vars(made).items():
        if name not in ("__dict__", "__weakref__"):
            setattr(part.__class__, name, member)


PLAIN_WEIGHTS = Rewrite(
    name="plain-weights",
    summary="parametrized weights (weight_norm, spectral_norm and the like) computed once",
    suits=_has_parametrizations,
    change=_bake_parametrizations,
)
