"""`modelc sbom`: a bill of materials of an output folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as o


def sbom(
    out: Annotated[Path, typer.Argument(help="What modelc export wrote.")],
    file: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="Where to; default: stdout.",
            rich_help_panel=o.Panel.OUTPUT,
        ),
    ] = None,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001 - read at the door
) -> None:
    """Write the artifacts, their checkpoint and packages as CycloneDX 1.6 JSON."""
    from ..pipeline.provenance.bill_of_materials import make_bill, write_bill
    from .tables import print_line, result_console, show_document

    bill = make_bill(out)
    if file is None:
        show_document(bill)
        return
    written = write_bill(bill, file)
    if not quiet:
        print_line(result_console(), f"wrote {written}")
