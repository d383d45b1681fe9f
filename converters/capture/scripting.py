"""torch.jit.script: compiled from source, branches and loops are kept."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...core.contract import Job
from ...core.errors import Hint, Option
from ..guarded import call_framework
from .causes import RefusedError
from .eager import model_of
from .program import ScriptCapture

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
