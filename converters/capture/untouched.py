"""Leaves the user's module as it was: captures run its code, which may keep what it computed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


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
