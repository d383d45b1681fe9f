"""`modelc inspect`: what an artifact says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as o
from . import options_bounds as b


def inspect(
    path: Annotated[Path, typer.Argument(help="A converted model, or a checkpoint of weights.")],
    trust: o.Trust = False,
    json: o.Json = False,
    quiet: o.Quiet = False,  # noqa: ARG001 - there is only the result
    isolate: b.Isolate = None,
    timeout: b.Timeout = None,
    memory: b.Memory = None,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Show what a converted model takes, gives and computes, or the weights of a checkpoint."""
    from ..pipeline.inspection import ApiCall, CheckpointContents, InspectedFile
    from ..pipeline.manifest_file import encode_json
    from ..sources.weight_sets import weights_kind
    from .render import show_checkpoint, show_inspection
    from .tables import show_json

    bounds = b.process_bounds(isolate, timeout=timeout, memory=memory)
    if weights_kind(path):
        call = ApiCall(function="inspect_checkpoint", arguments={"path": path})
        contents = b.run_call(call, CheckpointContents, bounds)
        show_json(encode_json(contents)) if json else show_checkpoint(contents, path)
        return
    call = ApiCall(function="inspect", arguments={"path": path, "trust": trust})
    looked = b.run_call(call, InspectedFile, bounds)
    if json:
        show_json(encode_json(looked))
        return
    show_inspection(looked.inspection, looked.size, looked.lineage)
