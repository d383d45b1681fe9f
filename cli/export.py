"""`modelc export`: a checkpoint in, proven artifacts out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..pipeline.option_spec import Given, read_record
from ..pipeline.option_table import ArtifactOptions, CallOptions
from .command_options import with_options


@with_options("export")
def export(
    checkpoint: Annotated[
        Path, typer.Argument(help="state_dict, safetensors, TorchScript, .pt2 or a HF folder.")
    ],
    *,
    given: Given,
) -> None:
    """Convert a checkpoint and validate every artifact against eager."""
    from ..pipeline.make_order import choose_precision, make_order
    from ..pipeline.order import Wanted
    from .execute import execute
    from .judging_options import read_limits
    from .run_options import cache_folder

    call, artifacts = read_record(CallOptions, given), read_record(ArtifactOptions, given)
    precision = choose_precision(artifacts)
    order = make_order(
        given,
        checkpoint,
        tuple(Wanted.parse(text, precision) for text in artifacts.to),
        limits=read_limits(call.tolerance),
        cache=cache_folder(),
    )
    execute(order, call)
