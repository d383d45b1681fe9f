"""Capture with torch.jit.script, whole or in submodules of a trace (hybrid)."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.contract import Job
from ..core.errors import Hint, ModelcError, Option
from ..core.kinds import Capture
from .captured_program import ScriptCapture, capture_once, model_of
from .evidence import evidence_in_error, join_evidence
from .framework_errors import call_framework
from .refusals import REDUNDANT, RefusedError, most_specific
from .rewrite import swap_attribute
from .torch_trace import capture_trace

if TYPE_CHECKING:
    import torch
    from torch import nn


def capture_script(job: Job) -> ScriptCapture:
    """Capture the user's module with `torch.jit.script`, which keeps branches and loops."""
    return ScriptCapture(module=compile_script(model_of(job).module), call="native")


def compile_script(module: nn.Module) -> torch.jit.ScriptModule:
    """Compile the module; a ScriptModule is returned unchanged.

    Raises:
        RefusedError: it is not within TorchScript's Python.
    """
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return module
    with fresh_type_store(), _annotations_as_types(module):
        made = call_framework("torch.jit.script", lambda: torch.jit.script(module))
    if not isinstance(made, torch.jit.ScriptModule):
        raise RefusedError(
            f"torch.jit.script returned a {type(made).__name__} for {type(module).__name__}",
            hint=Hint("try ", Option("capture", "trace"), " or ", Option("capture", "export")),
            option="capture",
        )
    return made


@contextmanager
def _annotations_as_types(module: nn.Module) -> Iterator[None]:
    """Evaluate string annotations of classes within the context.

    The compiler does not read the strings of `from __future__ import annotations`. Names that only
    type checkers know are left for it to infer.
    """
    classes = {one for part in module.modules() for one in type(part).__mro__}
    annotated = {one: vars(one).get("__annotations__", {}) for one in classes}
    texts = {
        one: held
        for one, held in annotated.items()
        if any(isinstance(x, str) for x in held.values())
    }
    try:
        for one, held in texts.items():
            one.__annotations__ = dict(_evaluate_annotations(one, held))
        yield
    finally:
        for one, held in texts.items():
            one.__annotations__ = held


def _evaluate_annotations(
    owner: type, annotations: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    """Yield annotations evaluated in the module of the class."""
    names = vars(sys.modules.get(owner.__module__, builtins))
    for name, annotated in annotations.items():
        try:
            # as typing.get_type_hints does: the user's own code
            yield name, eval(annotated, dict(names)) if isinstance(annotated, str) else annotated
        except Exception:  # noqa: BLE001 - it is not a type
            continue


def fresh_type_store() -> AbstractContextManager[None]:
    """Compile without cached types: torch keeps incomplete types of failed compilations."""
    from torch.jit import _recursive

    return swap_attribute(_recursive, "concrete_type_store", _recursive.ConcreteTypeStore())


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
