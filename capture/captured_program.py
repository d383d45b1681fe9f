"""Captured programs, and the eager model that they are captured from, which stays unchanged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..core.contract import Branch, EagerModel, Job
from ..core.findings import Warned
from ..core.kinds import Capture
from .refusals import RefusedError
from .size_constraints import SizeConstraintError

if TYPE_CHECKING:
    import torch
    from torch import nn

else:
    Export: TypeAlias = Any  # a record's fields are read by type at run time, without torch
    Script: TypeAlias = Any

if TYPE_CHECKING:
    import torch

    Export: TypeAlias = torch.export.ExportedProgram
    Script: TypeAlias = torch.jit.ScriptModule
else:
    Export: TypeAlias = Any  # a record's fields are read by type at run time, without torch
    Script: TypeAlias = Any


@dataclass(frozen=True, kw_only=True)
class ExportCapture:
    """A program of torch.export: flat tensors in, a flat tuple out. None writes into it.

    `places` are sizes of the free dims for which torch did not mean it: what is made of it is to be
    judged there as well.
    """

    program: Export
    notes: tuple[str, ...] = ()
    places: tuple[Mapping[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ScriptCapture:
    """A TorchScript module. `call` is `flat`, or `native` where it keeps the model's own call.

    `frozen` are the user's lines at which a tracer made Python values of tensors, `within` the
    paths of the modules whose code that was, `warned` what it said of the user's lines, `scripts`
    the paths of the modules that stand scripted in a trace.
    """

    module: Script
    call: str
    frozen: tuple[Branch, ...] = ()
    within: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    warned: tuple[Warned, ...] = ()
    notes: tuple[str, ...] = ()


CapturedProgram: TypeAlias = ExportCapture | ScriptCapture
Refused = TypeVar("Refused", bound=RefusedError | SizeConstraintError)


def capture_once(
    job: Job, capture: Capture, take: Callable[[], CapturedProgram]
) -> CapturedProgram:
    """What this capture gives, once in a run; afterwards it comes from `job.programs`.

    What was refused once is refused again without another try.

    Raises:
        RefusedError: the capture refused the model.
        SizesError: it does not hold at all sizes that were asked for.
    """
    known = job.programs.get(str(capture))
    if known is None:
        try:
            known = take()
        except (RefusedError, SizeConstraintError) as error:
            known = _drop_frames(error)
            job.programs[str(capture)] = known
            raise
        job.programs[str(capture)] = known
    if isinstance(known, RefusedError | SizeConstraintError):
        raise _drop_frames(known)
    if not isinstance(known, ExportCapture | ScriptCapture):
        raise TypeError(f"{type(known).__name__} is no program")
    return known


def _drop_frames(error: Refused) -> Refused:
    """The error again: what was raised holds the frames of the capture, and so the model."""
    again = type(error).__new__(type(error), *error.args)
    again.__dict__.update(error.__dict__)
    return again


def model_of(job: Job) -> EagerModel:
    """The eager model of a job that must have one."""
    if job.model is None:
        raise RuntimeError("a job captured from eager came without its model")
    return job.model


def example_tensors(job: Job) -> tuple[torch.Tensor, ...]:
    """The job's example feed as tensors of their own memory, in the signature's order."""
    import torch

    return tuple(torch.tensor(job.example[spec.name]) for spec in job.signature.inputs)


@contextmanager
def preserve_module(module: nn.Module) -> Iterator[None]:
    """Put back every attribute that a capture sets, with the entries of lists and dicts in them.

    torch.export leaves its fake tensors in attributes that forward sets, and what runs after would
    compute with them. Values of buffers stay as they are: forward changes them in eager as well.
    """
    import torch

    _reset_compiled()
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


def _reset_compiled() -> None:
    """Drop what eager compiled in its runs, where the model calls torch.cond or torch.compile.

    What was compiled while eager was watched is of no use to a capture, which would meet it.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def restore_container(value: dict[object, object] | list[object], before: object) -> None:
    """Have a list or dict hold what another one holds."""
    value.clear()
    if isinstance(value, list) and isinstance(before, list):
        value.extend(before)
    elif isinstance(value, dict) and isinstance(before, dict):
        value.update(before)
