"""torch.jit.script: compiled from source, branches and loops are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...core.contract import Job
from ..guarded import guarded
from .causes import RefusedError
from .eager import model_of
from .program import Scripted

if TYPE_CHECKING:
    import torch
    from torch import nn


def scripted(job: Job) -> Scripted:
    """The user's own module through `torch.jit.script`: branches and loops are kept."""
    return Scripted(module=script(model_of(job).module), call="native")


def script(module: nn.Module) -> torch.jit.ScriptModule:
    """The module compiled; as it is, where it is a script already.

    Raises:
        RefusedError: it is not within TorchScript's Python.
    """
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return module
    with _types_of_its_own():
        made = guarded("torch.jit.script", lambda: torch.jit.script(module))
    if not isinstance(made, torch.jit.ScriptModule):
        raise RefusedError(
            f"torch.jit.script made a {type(made).__name__} of {type(module).__name__}",
            hint="try --capture trace or --capture export",
        )
    return made


@contextmanager
def _types_of_its_own() -> Iterator[None]:
    """Compile without the types of earlier tries: torch keeps those that it gave up half-made."""
    from torch.jit import _recursive

    kept = _recursive.concrete_type_store
    _recursive.concrete_type_store = _recursive.ConcreteTypeStore()
    try:
        yield
    finally:
        _recursive.concrete_type_store = kept
