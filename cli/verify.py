"""`modelc verify`: files, what they say inside, lineage and signature, without running a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as o
from .options_sign import load_public_key


def verify(
    out: Annotated[Path, typer.Argument(help="What modelc export or modelc run wrote.")],
    json: o.Json = False,
    quiet: o.Quiet = False,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            metavar="PEM",
            help="Public key that the manifest must be signed with.",
            rich_help_panel=o.Panel.SIGNING,
        ),
    ] = None,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Check a folder's files, records and lineage again; no model is run and nothing is written."""
    from ..pipeline.manifest_file import encode_json
    from ..projects.verifying import verify_results as look
    from .render_verify import show_verification
    from .tables import show_json

    found = look(out, key=load_public_key(key))
    if json:
        show_json(encode_json(found))
    else:
        show_verification(found, str(out), quiet=quiet)
    raise typer.Exit(found.exit_code)
