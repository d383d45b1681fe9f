"""torch.export: sound or refused."""

from __future__ import annotations

from ...core.contract import Job
from ...core.signature import Dim
from ..guarded import guarded
from .eager import example_tensors, model_of
from .program import Exported


def exported(job: Job) -> Exported:
    """The model through `torch.export`, with the signature's dynamic dims and ranges."""
    import torch

    model = model_of(job)
    axes = job.signature.axes()
    dims = job.signature.dynamic_dims
    shapes = tuple(
        {axis: _hint(dims[name]) for axis, name in axes.get(spec.name, {}).items()}
        for spec in job.signature.inputs
    )
    tensors = example_tensors(job)
    with torch.no_grad():
        program = guarded(
            "torch.export",
            lambda: torch.export.export(
                model.flat, tensors, dynamic_shapes=(shapes,), strict=False
            ),
            job.signature,
        )
    return Exported(program=program)


def _hint(dim: Dim) -> object:
    import torch

    if not dim.bounded:
        return torch.export.Dim.DYNAMIC
    return torch.export.Dim.DYNAMIC(min=dim.low, max=dim.high)
