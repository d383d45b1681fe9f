"""Capture with torch.jit.script, whole or in submodules of a trace (hybrid)."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.contract import Job
from ..core.errors import Hint, ModelcError, Option
from ..core.kinds import Capture
from .captured_program import ScriptCapture, capture_once, model_of
from .evidence import evidence_in_error, join_evidence
from .framework_errors import call_framework
from .refusals import REDUNDANT, RefusedError, most_specific
from .torch_trace import capture_trace

if TYPE_CHECKING:
    import torch
    from torch import nn


def capture_script(job: Job) -> ScriptCapture:
    """The user's own module through `torch.jit.script`: branches and loops are kept."""
    return ScriptCapture(module=compile_script(model_of(job).module), call="native")


def compile_script(module: nn.Module) -> torch.jit.ScriptModule:
    """The module compiled; as it is, where it is a script already.

    Raises:
        RefusedError: it is not within TorchScript's Python.
    """
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return module
    with _fresh_type_store(), _annotations_as_types(module):
        made = call_framework("torch.jit.script", lambda: torch.jit.script(module))
    if not isinstance(made, torch.jit.ScriptModule):
        raise RefusedError(
            f"torch.jit.script made a {type(made).__name__} of {type(module).__name__}",
            hint=Hint("try ", Option("capture", "trace"), " or ", Option("capture", "export")),
            option="capture",
        )
    return made


@contextmanager
def _annotations_as_types(module: nn.Module) -> Iterator[None]:
    """While in the block, classes say types of attributes as types, not as texts.

    `from __future__ import annotations` makes texts of them, which the compiler does not read; what
    names nothing here, as a name imported for type checkers alone, is left to it to infer.
    """
    classes = {one for part in module.modules() for one in type(part).__mro__}
    said = {one: vars(one).get("__annotations__", {}) for one in classes}
    texts = {
        one: held for one, held in said.items() if any(isinstance(x, str) for x in held.values())
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
    """Annotations whose texts are read where the class was written."""
    names = vars(sys.modules.get(owner.__module__, builtins))
    for name, said in annotations.items():
        try:
            # as typing.get_type_hints reads them: the user's own code
            yield name, eval(said, dict(names)) if isinstance(said, str) else said
        except Exception:  # noqa: BLE001 - whatever reading it raises, it names no type
            continue


@contextmanager
def _fresh_type_store() -> Iterator[None]:
    """Compile without the types of earlier tries: torch keeps those that it gave up half-made."""
    from torch.jit import _recursive

    kept = _recursive.concrete_type_store
    _recursive.concrete_type_store = _recursive.ConcreteTypeStore()
    try:
        yield
    finally:
        _recursive.concrete_type_store = kept


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
        evidence=join_evidence(map(evidence_in_error, errors[:_TOLD])),
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
