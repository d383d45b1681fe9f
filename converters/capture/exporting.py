"""torch.export: sound or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.contract import Job
from ..guarded import call_framework
from ..solver_limit import limit_solver
from .dims import Shapes, export_in_ranges
from .eager import example_tensors, model_of
from .from_script import from_script, holds_script
from .program import Exported
from .symbolic import sizes_as_text

if TYPE_CHECKING:
    import torch

AS_TEXT = "as text"  # in a job's programs: a line at which the user's code writes a size as text


def exported(job: Job, *, strict: bool = False) -> Exported:
    """The model through `torch.export`, with the signature's dynamic dims and ranges."""
    import torch

    model = model_of(job)
    tensors = example_tensors(job)
    what = f"torch.export{' (strict)' if strict else ''}"
    flat = model.flat
    if holds_script(model):
        flat = call_framework(what, lambda: from_script(model, tensors))

    def export(shapes: Shapes) -> torch.export.ExportedProgram:
        return call_framework(
            what,
            lambda: torch.export.export(flat, tensors, dynamic_shapes=(shapes,), strict=strict),
            job.signature,
        )

    texts = sizes_as_text(lambda place: job.programs.update({AS_TEXT: place}))
    with torch.no_grad(), limit_solver(job.capture_timeout), texts:
        return export_in_ranges(job, export)


def exported_strictly(job: Job) -> Exported:
    """As `exported`, from bytecode: torch._dynamo reads forward and runs none of it."""
    return exported(job, strict=True)
