"""`modelc debug`: name the layer that first leaves eager."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from ..pipeline.option_spec import Given, read_record
from ..pipeline.option_table import CallOptions, FileOptions
from .command_options import with_options
from .judging_options import read_limits
from .run_options import file_move, process_bounds, run_call
from .validate import read_eager_side


@with_options("debug")
def debug(
    artifact: Annotated[Path, typer.Argument(help="A converted model, also a rejected one.")],
    *,
    given: Given,
) -> None:
    """Name the layer of a converted model that first leaves eager, and why."""
    from ..core.findings import Localisation
    from ..pipeline.inspection import ApiCall
    from ..pipeline.make_order import make_judging
    from ..pipeline.manifest_file import encode_json
    from ..pipeline.provenance.signing import keep_signature
    from ..projects.setting_values import parse_bytes
    from .console import Screen, show_json
    from .render_debug import show_localisation, warn_no_reproducer

    call, files = read_record(CallOptions, given), read_record(FileOptions, given)
    source = read_eager_side(given)
    with ExitStack() as held:
        bounds = process_bounds(call)
        screen = held.enter_context(Screen(quiet=call.quiet))
        held.enter_context(keep_signature(artifact.parent, None, screen))
        held.enter_context(keep_signature(artifact.parent.parent, None, screen))
        arguments = {
            "path": artifact, "against": source, "moved": file_move(given),
            "precision": files.precision, "feed": files.feed,
            "memory": parse_bytes(files.activations), "out": files.debug_folder,
            "judging": make_judging(given, read_limits()),
        }  # fmt: skip
        localise = ApiCall(function="localise", arguments=arguments)
        result = run_call(localise, Localisation, bounds, screen)
    if call.json:
        show_json(encode_json(result))
        warn_no_reproducer(result, files.debug_folder)
    else:
        show_localisation(result, artifact, files.debug_folder)
    raise typer.Exit(1 if result.guilty or result.whole else 0)
