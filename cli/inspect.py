"""`modelc inspect`: what an artifact says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as o


def inspect(
    path: Annotated[Path, typer.Argument(help="A converted model, or a checkpoint of weights.")],
    trust: o.Trust = False,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Show what a converted model takes, gives and computes, or the weights of a checkpoint."""
    from ..pipeline.inspecting import inspect as look
    from ..pipeline.inspecting import inspect_checkpoint
    from ..pipeline.manifest_file import as_json
    from ..sources.weight_sets import weights_kind
    from .render import show_checkpoint, show_inspection
    from .tables import show_json

    if weights_kind(path):
        contents = inspect_checkpoint(path)
        show_json(as_json(contents)) if json else show_checkpoint(contents, path)
        return
    looked = look(path, trust=trust)
    if json:
        show_json(as_json(looked))
        return
    show_inspection(looked.inspection, looked.size, looked.lineage)
