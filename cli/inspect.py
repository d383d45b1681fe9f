"""`modelc inspect`: what an artifact says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as o
from . import options_bounds as b


def inspect(
    path: Annotated[Path, typer.Argument(help="A converted model.")],
    trust: o.Trust = False,
    isolate: b.Isolate = None,
    timeout: b.Timeout = None,
    memory: b.Memory = None,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Show inputs, outputs, dims, opset, size, precision, operators and lineage."""
    from ..pipeline.calls import Call, Looked
    from ..pipeline.manifest_file import as_json
    from .render import show_inspection
    from .tables import show_json

    call = Call(function="inspect", arguments={"path": path, "trust": trust})
    bounds = b.bounds_of(isolate, timeout=timeout, memory=memory)
    looked = b.answer(call, Looked, bounds)
    if json:
        show_json(as_json(looked))
        return
    show_inspection(looked.inspection, looked.size, looked.lineage)
