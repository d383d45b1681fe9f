"""torch.export: sound or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.contract import Job
from ..guarded import call_framework
from ..solver_limit import limit_solver
from .dims import DynamicShapes, export_in_ranges
from .eager import example_tensors, model_of
from .from_script import is_torchscript, module_from_script
from .program import ExportCapture
from .symbolic import watch_size_text

if TYPE_CHECKING:
    import torch

AS_TEXT = "as text"  # in a job's programs: a line at which the user's code writes a size as text


def capture_export(job: Job, *, strict: bool = False) -> ExportCapture:
    """The model through `torch.export`, with the signature's dynamic dims and ranges."""
    import torch

    model = model_of(job)
    tensors = example_tensors(job)
    what = f"torch.export{' (strict)' if strict else ''}"
    flat = model.flat
    if is_torchscript(model):
        flat = call_framework(what, lambda: module_from_script(model, tensors))

    def export(shapes: DynamicShapes) -> torch.export.ExportedProgram:
        return call_framework(
            what,
            lambda: torch.export.export(flat, tensors, dynamic_shapes=(shapes,), strict=strict),
            job.signature,
        )

    texts = watch_size_text(lambda place: job.programs.update({AS_TEXT: place}))
    with torch.no_grad(), limit_solver(job.capture_timeout), texts:
        return export_in_ranges(job, export)


def capture_export_strict(job: Job) -> ExportCapture:
    """As `capture_export`, from bytecode: torch._dynamo reads forward and runs none of it."""
    return capture_export(job, strict=True)
