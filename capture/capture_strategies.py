"""Capture a job's model by any of the captures; scripts within a trace (hybrid)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.contract import Job
from ..core.errors import Hint, ModelcError, Option, UsageError
from ..core.kinds import Capture
from .captured_program import (
    CapturedProgram,
    ExportCapture,
    ScriptCapture,
    capture_once,
    model_of,
    preserve_module,
)
from .evidence import evidence_in_error, join_evidence
from .refusals import REDUNDANT, RefusedError, most_specific
from .torch_export import capture_export, capture_export_strict
from .torch_script import capture_script, compile_script
from .torch_trace import capture_trace

if TYPE_CHECKING:
    import torch
    from torch import nn


def capture_program(job: Job) -> CapturedProgram:
    """Capture the job's model, once in a run.

    Raises:
        RefusedError: the capture rejects the model.
        SizesError: it does not hold at all requested sizes.
    """
    capture = job.capture
    if capture is None or capture not in CAPTURES:
        raise UsageError(f"unknown capture {capture}", hint="see modelc export --help")

    def capture_job() -> CapturedProgram:
        with preserve_module(model_of(job).flat):
            return CAPTURES[capture](job)

    return capture_once(job, capture, capture_job)


def capture_exported_program(job: Job) -> ExportCapture:
    """Capture the job's model for a format that requires torch.export."""
    program = capture_program(job)
    if not isinstance(program, ExportCapture):
        raise TypeError(f"{job.capture} does not produce a program of torch.export")
    return program


def capture_torchscript(job: Job) -> ScriptCapture:
    """Capture the job's model for a format that requires TorchScript."""
    program = capture_program(job)
    if not isinstance(program, ScriptCapture):
        raise TypeError(f"{job.capture} does not produce TorchScript")
    return program


# Hybrid captures: a trace with scripted submodules.


_LISTED = 3  # failed submodules in a message


def capture_hybrid(job: Job) -> ScriptCapture:
    """Trace the flat model with scripted submodules, the smallest that convert tensors to values.

    A trace finds these. If one fails to script, its parent is tried.

    Raises:
        RefusedError: there is no such submodule, or none can be scripted.
    """
    first = capture_once(job, Capture.TRACE, lambda: capture_trace(job))
    if not isinstance(first, ScriptCapture):
        raise TypeError("a trace did not produce TorchScript")
    if not first.within:
        raise RefusedError(
            "nothing to script: no tensor becomes a Python value",
            hint=Hint("use ", Option("capture", "trace")),
            cause=REDUNDANT,
            option="capture",
        )
    model = model_of(job)
    made = _script_submodules(model.module, first.within)
    with _substitute_scripts(model.flat, made):
        program = capture_trace(job)
    names = ", ".join(path or type(model.module).__name__ for path in made)
    notes = (*program.notes, f"scripted: {names}; the rest is traced")
    return replace(program, notes=notes, scripts=tuple(made))


def _script_submodules(root: nn.Module, paths: Iterable[str]) -> dict[str, torch.jit.ScriptModule]:
    """Return scripts of these submodules or their parents by path; none within another."""
    made: dict[str, torch.jit.ScriptModule] = {}
    refusals: dict[str, RefusedError] = {}
    for path in paths:
        for candidate in _ancestors(path):
            if candidate not in made and candidate not in refusals:
                try:
                    made[candidate] = compile_script(root.get_submodule(candidate))
                except RefusedError as error:
                    refusals[candidate] = error
            if candidate in made:
                break
    if not made:
        raise _no_script_error(root, refusals)
    return {
        path: module
        for path, module in made.items()
        if not any(other in made for other in _ancestors(path) if other != path)
    }


def _no_script_error(root: nn.Module, refusals: Mapping[str, RefusedError]) -> RefusedError:
    """Return the error if nothing can be scripted, with the reason for each module."""
    listed = [
        f"{path or type(root).__name__}: {error.message}"
        for path, error in list(refusals.items())[:_LISTED]
    ]
    errors: list[ModelcError] = list(refusals.values())
    most = most_specific(errors)
    cause = most.cause if isinstance(most, RefusedError) else None
    return RefusedError(
        f"no submodule with a branch on data can be scripted: {'; '.join(listed)}",
        hint=most.advice,
        cause=cause,
        evidence=join_evidence(map(evidence_in_error, errors[:_LISTED])),
    )


def _ancestors(path: str) -> Iterator[str]:
    """Yield `a.b.c`, `a.b`, `a` and the model itself."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


@contextmanager
def _substitute_scripts(
    flat: nn.Module, made: Mapping[str, torch.jit.ScriptModule]
) -> Iterator[None]:
    """Replace submodules by their scripts within the context."""
    import torch

    (scope,) = dict(flat.named_children())
    by_id = {id(flat.get_submodule(f"{scope}.{p}".rstrip("."))): m for p, m in made.items()}
    parents = [part for part in flat.modules() if not isinstance(part, torch.jit.ScriptModule)]
    kept = [
        (parent, name, child)
        for parent in parents
        for name, child in parent._modules.items()
        if id(child) in by_id
    ]
    try:
        for parent, name, child in kept:
            parent._modules[name] = by_id[id(child)]
        yield
    finally:
        for parent, name, child in kept:
            parent._modules[name] = child


# How each capture is made, and when its program holds for every feed; the verdict decides.
CAPTURES: Mapping[Capture, Callable[[Job], CapturedProgram]] = {
    Capture.EXPORT: capture_export,  # always: it rejects what it cannot follow
    # always; tried if export fails for a reason that bytecode may resolve
    Capture.EXPORT_STRICT: capture_export_strict,
    Capture.SCRIPT: capture_script,  # always, within TorchScript's Python
    Capture.MIXED: capture_hybrid,  # if all branches on data are in submodules of that kind
    Capture.TRACE: capture_trace,  # if no branch and no constant depends on data
}
