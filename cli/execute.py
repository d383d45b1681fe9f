"""Plans or executes the order of an export or build command, and shows the result."""

from __future__ import annotations

from typing import NoReturn

import typer

from ..core.errors import MissingError
from ..core.manifest import Manifest
from ..pipeline.call_options import CallOptions
from ..pipeline.isolation.worker import run_request
from ..pipeline.manifest_file import encode_json, encode_manifest
from ..pipeline.order import Order
from ..pipeline.plan import make_plan
from ..pipeline.provenance.signing import keep_signature
from ..pipeline.recorded_run import AnyRequest
from ..pipeline.report_files import remove_stale_reports
from .console import Screen, show_json
from .judging_options import parse_formats
from .render import plan_rows, show_plan
from .render_manifest import show_manifest
from .render_report import report_run
from .run_options import load_private_key, process_bounds
from .streams import set_output_folder


def execute(order: Order, call: CallOptions) -> None:
    """Run the order, show its manifest and write its reports; or show only its plan.

    Raises:
        typer.Exit: as `execute_request`.
    """
    if not call.dry_run:
        execute_request(order, call)
    process_bounds(call)  # raises the same errors as a run
    parse_formats(call.report)
    rows = plan_rows(make_plan(order), order)
    if call.json:
        show_json(encode_json({"plan": rows}))
    else:
        show_plan(rows)


def execute_request(order: AnyRequest, call: CallOptions) -> NoReturn:
    """Run an order, or what is pending in a folder; show the manifest and write its reports.

    With a time or memory limit, and by default on POSIX, it runs in a child process.

    Raises:
        typer.Exit: with the manifest's exit code; with `prepare_only`, steps that are only pending
            do not affect it.
    """
    bounds, reports = process_bounds(call), parse_formats(call.report)
    key = load_private_key(call.sign_key)
    set_output_folder(order.out)
    with (
        remove_stale_reports(order.out, reports),
        Screen(quiet=call.quiet) as screen,
        keep_signature(order.out, key, screen),
    ):
        manifest = run_request(order, bounds, screen)
    _show_result(manifest, str(order.out), json=call.json)
    report_run(manifest, order.out, reports, json=call.json)
    raise typer.Exit(exit_code_of(manifest, call))


def exit_code_of(manifest: Manifest, call: CallOptions) -> int:
    """Return the exit code of a run.

    With `prepare_only`, steps that are only pending do not affect it.
    """
    code = manifest.exit_code
    pending_only = code == MissingError.exit_code and not manifest.failures
    return 0 if call.prepare_only and pending_only else code


def _show_result(manifest: Manifest, out: str, *, json: bool) -> None:
    if json:
        show_json(encode_manifest(manifest))
    else:
        show_manifest(manifest, out)
