"""Submodules with branches on data scripted, the rest traced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core.capture import Capture
from ...core.contract import Job
from ...core.errors import Hint, ModelcError, Option
from .causes import REDUNDANT, RefusedError, most_specific
from .eager import model_of
from .program import ScriptCapture, capture_once
from .scripting import compile_script
from .tracing import capture_trace

if TYPE_CHECKING:
    import torch
    from torch import nn

_TOLD = 3  # submodules that would not script, by name


def capture_hybrid(job: Job) -> ScriptCapture:
    """The flat model traced, with the smallest submodules scripted that turn tensors into values.

    A trace says which these are. One that will not script gives way to the module that holds it.

    Raises:
        RefusedError: the tracer met no such submodule, or none will script.
    """
    first = capture_once(job, Capture.TRACE, lambda: capture_trace(job))
    if not isinstance(first, ScriptCapture):
        raise TypeError("a trace gave no TorchScript")
    if not first.within:
        raise RefusedError(
            "no submodule is worth scripting: the tracer saw no tensor become a Python value",
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
    """By path, the scripts of these submodules, or of what holds them; none within another."""
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
    """That nothing will script: the smallest and what holds it, each with its reason."""
    told = [
        f"{path or type(root).__name__}: {error.message}"
        for path, error in list(refusals.items())[:_TOLD]
    ]
    errors: list[ModelcError] = list(refusals.values())
    most = most_specific(errors)
    cause = most.cause if isinstance(most, RefusedError) else None
    return RefusedError(
        f"no submodule with a branch on data will script: {'; '.join(told)}",
        hint=most.advice,
        cause=cause,
    )


def _ancestors(path: str) -> Iterator[str]:
    """`a.b.c`, `a.b`, `a` and the model itself."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


@contextmanager
def _substitute_scripts(
    flat: nn.Module, made: Mapping[str, torch.jit.ScriptModule]
) -> Iterator[None]:
    """While in the block, the scripts stand where their modules stood, wherever these are used."""
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
