"""What export and the build commands do with an order: plan or run it, show the result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

from ..core.errors import MissingError
from ..core.events import Tell
from ..core.manifest import Manifest
from ..pipeline.finish_order import AnyOrder, FinishOrder
from ..pipeline.isolation.bounds import Bounds
from ..pipeline.manifest_file import as_json, as_text
from ..pipeline.order import Order
from ..pipeline.plan import make_plan
from ..pipeline.provenance.resigning import signing
from ..pipeline.reporting import fresh_reports
from ..reports.formats import Format
from .kept_folder import work_in
from .options_sign import private_key
from .render import plan_rows, show_plan
from .render_manifest import show_manifest
from .render_report import report_on
from .screen import Screen
from .tables import show_json


def carry_out(
    order: Order,
    *,
    dry_run: bool,
    json: bool,
    quiet: bool,
    prepare_only: bool = False,
    reports: Sequence[Format] = (),
    bounds: Bounds | None = None,
    sign_key: Path | None = None,
) -> None:
    """Run the order, show its manifest and write its reports; or show only its plan.

    With `bounds` it runs in a process of its own.

    Raises:
        typer.Exit: with the manifest's exit code; a step that is only pending is none to
            `prepare_only`.
    """
    if dry_run:
        rows = plan_rows(make_plan(order), order)
        if json:
            show_json(as_json({"plan": rows}))
        else:
            show_plan(rows)
        return
    key = private_key(sign_key)
    work_in(order.out)
    with (
        fresh_reports(order.out, reports),
        Screen(quiet=quiet) as screen,
        signing(order.out, key, screen),
    ):
        manifest = _run(order, screen, bounds)
    _show(manifest, str(order.out), json=json)
    report_on(manifest, order.out, reports, json=json)
    raise typer.Exit(_code(manifest, prepare_only=prepare_only))


def _run(order: AnyOrder, tell: Tell, bounds: Bounds | None) -> Manifest:
    if bounds is not None:
        from ..pipeline.isolation.supervising import run_isolated

        return run_isolated(order, tell, bounds=bounds)
    if isinstance(order, FinishOrder):
        from ..pipeline.finishing import finish

        return finish(order, tell)
    from ..pipeline.run import run

    return run(order, tell)


def _code(manifest: Manifest, *, prepare_only: bool) -> int:
    """The manifest's exit code; where only a step is pending and that was meant, 0."""
    code = manifest.exit_code
    pending_only = code == MissingError.exit_code and not manifest.failures
    return 0 if prepare_only and pending_only else code


def finish_off(
    order: FinishOrder,
    *,
    json: bool,
    quiet: bool,
    prepare_only: bool,
    reports: Sequence[Format] = (),
    bounds: Bounds | None = None,
    sign_key: Path | None = None,
) -> NoReturn:
    """Carry out what is pending in a folder, show its manifest and write its reports.

    With `bounds` it runs in a process of its own.

    Raises:
        typer.Exit: with the manifest's exit code.
    """
    key = private_key(sign_key)
    work_in(order.out)
    with (
        fresh_reports(order.out, reports),
        Screen(quiet=quiet) as screen,
        signing(order.out, key, screen),
    ):
        manifest = _run(order, screen, bounds)
    _show(manifest, str(order.out), json=json)
    report_on(manifest, order.out, reports, json=json)
    raise typer.Exit(_code(manifest, prepare_only=prepare_only))


def _show(manifest: Manifest, out: str, *, json: bool) -> None:
    if json:
        show_json(as_text(manifest))
    else:
        show_manifest(manifest, out)
