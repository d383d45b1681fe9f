"""The eager side of a job, as captures need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.contract import EagerModel, Job

if TYPE_CHECKING:
    import torch


def model_of(job: Job) -> EagerModel:
    """The eager model of a job that must have one."""
    if job.model is None:
        raise RuntimeError("a job captured from eager came without its model")
    return job.model


def example_tensors(job: Job) -> tuple[torch.Tensor, ...]:
    """The job's example feed as tensors of their own memory, in the signature's order."""
    import torch

    return tuple(torch.tensor(job.example[spec.name]) for spec in job.signature.inputs)
