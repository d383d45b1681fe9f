"""Captured programs, and the eager model that they are captured from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..core.contract import Branch, EagerModel, Job
from ..core.findings import Warned
from ..core.kinds import Capture
from ..core.torch_tools import reset_compiled
from .refusals import RefusedError
from .size_constraints import SizeConstraintError

if TYPE_CHECKING:
    import torch
    from torch import nn

    Export: TypeAlias = torch.export.ExportedProgram
    Script: TypeAlias = torch.jit.ScriptModule
else:
    Export: TypeAlias = Any  # a record's fields are read by type at run time, without torch
    Script: TypeAlias = Any


@dataclass(frozen=True, kw_only=True)
class ExportCapture:
    """A program of torch.export, from flat tensors to a flat tuple; immutable.

    `places` are sizes of free dims beyond torch's conditions, at which artifacts must be judged.
    """

    program: Export
    notes: tuple[str, ...] = ()
    places: tuple[Mapping[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ScriptCapture:
    """A TorchScript module. `call` is `flat`, or `native` for the model's own call.

    `frozen` are the user's lines at which a tracer converted tensors to Python values, `within` the
    paths of their modules, `warned` the tracer's warnings, `scripts` the paths of the scripted
    modules in a trace.
    """

    module: Script
    call: str
    frozen: tuple[Branch, ...] = ()
    within: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    warned: tuple[Warned, ...] = ()
    notes: tuple[str, ...] = ()


CapturedProgram: TypeAlias = ExportCapture | ScriptCapture
Rejection = TypeVar("Rejection", bound=RefusedError | SizeConstraintError)


def capture_once(
    job: Job, capture: Capture, run_capture: Callable[[], CapturedProgram]
) -> CapturedProgram:
    """Return the result of a capture, run once and then cached in `job.programs`.

    A refusal is cached as well.

    Raises:
        RefusedError: the capture rejects the model.
        SizesError: it does not hold at all requested sizes.
    """
    known = job.programs.get(str(capture))
    if known is None:
        try:
            known = run_capture()
        except (RefusedError, SizeConstraintError) as error:
            known = _drop_frames(error)
            job.programs[str(capture)] = known
            raise
        job.programs[str(capture)] = known
    if isinstance(known, RefusedError | SizeConstraintError):
        raise _drop_frames(known)
    if not isinstance(known, ExportCapture | ScriptCapture):
        raise TypeError(f"{type(known).__name__} is not a program")
    return known


def _drop_frames(error: Rejection) -> Rejection:
    """Copy the error without traceback, whose frames hold the model."""
    again = type(error).__new__(type(error), *error.args)
    again.__dict__.update(error.__dict__)
    return again


def model_of(job: Job) -> EagerModel:
    """Return the job's eager model, which must exist."""
    if job.model is None:
        raise RuntimeError("the job has no eager model")
    return job.model


def example_tensors(job: Job) -> tuple[torch.Tensor, ...]:
    """Return copies of the job's example feed as tensors, in the signature's order."""
    import torch

    return tuple(torch.tensor(job.example[spec.name]) for spec in job.signature.inputs)


@contextmanager
def preserve_module(module: nn.Module) -> Iterator[None]:
    """Restore all attributes, and lists and dicts in them, after a capture.

    torch.export leaves fake tensors in attributes that forward sets. Values of buffers are not
    restored: forward changes them in eager as well.
    """
    import torch

    reset_compiled()  # captures would reuse what eager compiled
    parts = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
    kept = [(part, dict(vars(part))) for part in parts]
    entries = [(value, value.copy()) for _, held in kept for value in held.values()
               if type(value) in (dict, list)]  # fmt: skip
    try:
        yield
    finally:
        for value, before in entries:
            restore_container(value, before)
        for part, held in kept:
            vars(part).clear()
            vars(part).update(held)


def restore_container(value: dict[object, object] | list[object], before: object) -> None:
    """Restore the entries of a list or dict."""
    value.clear()
    if isinstance(value, list) and isinstance(before, list):
        value.extend(before)
    elif isinstance(value, dict) and isinstance(before, dict):
        value.update(before)
