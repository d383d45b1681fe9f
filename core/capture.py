"""The ways in which a model's program is taken down: a closed set."""

from __future__ import annotations

from enum import StrEnum


class Capture(StrEnum):
    """How the eager model became a graph; `converters/capture/` says when each is sound."""

    EXPORT = "export"  # torch.export: sound or refused, no data-dependent branches
    EXPORT_STRICT = "export-strict"  # torch.export from bytecode, by torch._dynamo
    SCRIPT = "script"  # torch.jit.script: compiled from source, keeps branches and loops
    MIXED = "mixed"  # submodules with data-dependent branches scripted, the rest traced
    TRACE = "trace"  # torch.jit.trace: one run taken down, branches frozen


TRACES = (Capture.TRACE, Capture.MIXED)  # at least a part of the model is traced
