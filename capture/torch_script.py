"""Capture with torch.jit.script."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from ..core.contract import Job
from ..core.errors import Hint, Option
from .captured_program import ScriptCapture, model_of
from .framework_errors import call_framework
from .refusals import RefusedError
from .rewrite import swap_attribute

if TYPE_CHECKING:
    import torch
    from torch import nn


def capture_script(job: Job) -> ScriptCapture:
    """Capture the user's module with `torch.jit.script`, which keeps branches and loops."""
    return ScriptCapture(module=compile_script(model_of(job).module), call="native")


def compile_script(module: nn.Module) -> torch.jit.ScriptModule:
    """Compile the module; a ScriptModule is returned unchanged.

    Raises:
        RefusedError: it is not within TorchScript's Python.
    """
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return module
    with fresh_type_store(), _annotations_as_types(module):
        made = call_framework("torch.jit.script", lambda: torch.jit.script(module))
    if not isinstance(made, torch.jit.ScriptModule):
        raise RefusedError(
            f"torch.jit.script returned a {type(made).__name__} for {type(module).__name__}",
            hint=Hint("try ", Option("capture", "trace"), " or ", Option("capture", "export")),
            option="capture",
        )
    return made


@contextmanager
def _annotations_as_types(module: nn.Module) -> Iterator[None]:
    """Evaluate string annotations of classes within the context.

    The compiler does not read the strings of `from __future__ import annotations`. Names that only
    type checkers know are left for it to infer.
    """
    classes = {one for part in module.modules() for one in type(part).__mro__}
    annotated = {one: vars(one).get("__annotations__", {}) for one in classes}
    texts = {
        one: held
        for one, held in annotated.items()
        if any(isinstance(x, str) for x in held.values())
    }
    try:
        for one, held in texts.items():
            one.__annotations__ = dict(_evaluate_annotations(one, held))
        yield
    finally:
        for one, held in texts.items():
            one.__annotations__ = held


def _evaluate_annotations(
    owner: type, annotations: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    """Yield annotations evaluated in the module of the class."""
    names = vars(sys.modules.get(owner.__module__, builtins))
    for name, annotated in annotations.items():
        try:
            # as typing.get_type_hints does: the user's own code
            yield name, eval(annotated, dict(names)) if isinstance(annotated, str) else annotated
        except Exception:  # noqa: BLE001 - it is not a type
            continue


def fresh_type_store() -> AbstractContextManager[None]:
    """Compile without cached types: torch keeps incomplete types of failed compilations."""
    from torch.jit import _recursive

    return swap_attribute(_recursive, "concrete_type_store", _recursive.ConcreteTypeStore())
