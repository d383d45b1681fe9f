"""A program that was taken down: what every capture gives and every format starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ...core.capture import Capture
from ...core.contract import Branch, Job
from ...core.findings import Warned
from .causes import RefusedError
from .constraints import SizeConstraintError

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
