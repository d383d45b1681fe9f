"""What export and the build commands do with an order: plan or run it, show the result."""

from __future__ import annotations

import typer

from ..pipeline.manifest_file import as_json
from ..pipeline.order import Order
from ..pipeline.plan import make_plan
from ..pipeline.run import run
from .render import plan_rows, show_json, show_manifest, show_plan
from .screen import Screen


def carry_out(order: Order, *, dry_run: bool, json: bool, quiet: bool) -> None:
    """Run the order and show its manifest, or only its plan.

    Raises:
        typer.Exit: with the manifest's exit code.
    """
    if dry_run:
        rows = plan_rows(make_plan(order), order)
        if json:
            show_json(as_json(rows))
        else:
            show_plan(rows)
        return
    with Screen(quiet=quiet) as screen:
        manifest = run(order, screen)
    if json:
        show_json(as_json(manifest))
    else:
        show_manifest(manifest, str(order.out))
    raise typer.Exit(manifest.exit_code)
