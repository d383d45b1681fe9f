"""torch.jit.script: compiled from source, branches and loops are kept."""

from __future__ import annotations

from ...core.contract import Job
from ...core.errors import ConversionError
from ..guarded import guarded
from .eager import model_of
from .program import Scripted


def scripted(job: Job) -> Scripted:
    """The user's own module through `torch.jit.script`: branches and loops are kept."""
    import torch

    module = model_of(job).module
    if isinstance(module, torch.jit.ScriptModule):
        return Scripted(module=module, call="native")
    made = guarded("torch.jit.script", lambda: torch.jit.script(module))
    if not isinstance(made, torch.jit.ScriptModule):
        raise ConversionError(
            f"torch.jit.script made a {type(made).__name__} of the model",
            hint="try --capture trace or --capture export",
        )
    return Scripted(module=made, call="native")
