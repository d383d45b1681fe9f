"""The ways in which a model's program is taken down: a closed set."""

from __future__ import annotations

from enum import StrEnum


class Capture(StrEnum):
    """How the eager model became a graph."""

    EXPORT = "export"  # torch.export: sound or refused, no data-dependent branches
    SCRIPT = "script"  # torch.jit.script: compiled from source, keeps branches and loops
    TRACE = "trace"  # torch.jit.trace: one run taken down, branches frozen
