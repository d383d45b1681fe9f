"""`modelc validate` and `modelc debug`: judge again, and name the layer that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.events import Tell
from ..core.manifest import Manifest
from ..core.part_records import PARTS_FILE
from ..core.verdict import Verdict
from ..pipeline.call_options import CallOptions, FileOptions
from ..pipeline.option_spec import Given, read_record, specs_of
from ..pipeline.option_table import SourceOptions
from .command_options import refuse, refuse_others, with_options
from .judging_options import parse_folder_formats, read_limits
from .run_options import file_move, process_bounds
from .validate_elsewhere import (
    ELSEWHERE,
    SERVED_ONLY,
    FolderCall,
    call_on_folder,
    keep_folder_signature,
    validate_elsewhere,
)

if TYPE_CHECKING:
    from ..core.children.limits import ProcessLimits
    from ..pipeline.order import Source
    from ..reports.report_formats import ReportFormat

_MOVE_OPTIONS = {"samples", "allow-pickle", "trust"}  # these are of the record as well
_COMPILED_OPTIONS = {
    "compiled", "checkpoint", "samples", "allow-pickle", "trust", "feeds", "seed", "atol", "rtol",
    "min-sqnr", "tolerance", "search", "sign-key", "json", "quiet", "debug", "isolate", "timeout",
    "memory",
}  # fmt: skip
_REJUDGE_OPTIONS = {
    "rejudge", "atol", "rtol", "min-sqnr", "tolerance", "report", "sign-key", "json", "quiet",
    "debug",
}  # fmt: skip


@with_options("validate")
def validate(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="An output folder, or a converted model.")],
    *,
    given: Given,
) -> None:
    """Check the digests of artifacts and validate them against the eager model again."""
    from ..pipeline.api import rejudge
    from ..pipeline.make_order import make_judging, make_measuring, make_settings
    from ..pipeline.report_files import remove_stale_reports
    from .console import Screen
    from .streams import set_output_folder

    call, files = read_record(CallOptions, given), read_record(FileOptions, given)
    code = _validate_otherwise(path, context, given)
    if code is not None:
        raise typer.Exit(code)
    refuse(given, SERVED_ONLY, "without --served", "name the server: --served URL")
    refuse(given, ["artifact"], "without --served, --in or --outside", "remove it")
    trusts_code = bool(given.get("trust") or given.get("trust-engine"))
    source = _read_eager_side(given, trust=trusts_code)
    measuring = make_measuring(given, calibrates=False)
    if files.rejudge:
        refuse_others(given, _REJUDGE_OPTIONS, "with --rejudge, which runs no model", "remove it")
    judging = make_judging(given, read_limits(call.tolerance))
    reports = parse_folder_formats(path, call.report)
    settings = make_settings({**given, "trust-engine": trusts_code})
    set_output_folder(path)
    sign = keep_folder_signature(path, call.sign_key, context, judges_all=not files.rejudge)
    with (
        remove_stale_reports(path, reports),
        Screen(quiet=call.quiet) as screen,
        sign(screen) as trusts,
    ):
        if files.rejudge:
            result: Manifest | Verdict = rejudge(path, judging=judging, tell=screen)
        else:
            arguments = {
                "path": path, "against": source, "precision": files.precision,
                "settings": settings, "judging": replace(judging, trusts_record=trusts),
                "measuring": measuring, "moved": file_move(given, trust=trusts_code),
                "replay": files.replay,
            }  # fmt: skip
            result = _judge_again(path, arguments, process_bounds(call), screen)
    raise typer.Exit(_show_result(result, path, reports, json=call.json))


@with_options("debug")
def debug(
    artifact: Annotated[Path, typer.Argument(help="A converted model; it may be in rejected/.")],
    *,
    given: Given,
) -> None:
    """Find the first layer of a converted model that differs from the eager model, and why."""
    from ..core.findings import Localisation
    from ..pipeline.isolation.worker import ApiCall, run_call
    from ..pipeline.make_order import make_judging
    from ..pipeline.manifest_file import encode_json
    from ..pipeline.provenance.signing import keep_signature
    from ..projects.setting_values import parse_bytes
    from .console import Screen, show_json
    from .render_debug import no_reproducer_reason, show_localisation
    from .render_setup import print_warnings

    call, files = read_record(CallOptions, given), read_record(FileOptions, given)
    source = _read_eager_side(given)
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
        print_warnings(filter(None, [no_reproducer_reason(result, files.debug_folder)]))
    else:
        show_localisation(result, artifact, files.debug_folder)
    raise typer.Exit(1 if result.guilty or result.whole else 0)


def _read_eager_side(given: Given, *, trust: bool = False) -> Source | None:
    """The eager side that `--against` names; None for that of the record.

    Raises:
        UsageError: an option of the eager side was given without `--against`, or one of the record
            with it.
    """
    from ..pipeline.make_order import make_source

    checkpoint = read_record(FileOptions, given).against
    hint = "remove it, or name the eager reference with --against CHECKPOINT"
    if checkpoint is None:
        names = [one.name for one in specs_of(SourceOptions) if one.name not in _MOVE_OPTIONS]
        if given.get("model") is not None:
            hint = "for a model on a server add --served URL, for another reference --against FILE"
        refuse(given, names, "without --against", hint)
        return None
    refuse(given, ["checkpoint"], "with --against", hint)
    source = make_source(checkpoint, given)
    return replace(source, trust=source.trust or trust)


def _judge_again(
    path: Path, arguments: Mapping[str, object], bounds: ProcessLimits | None, tell: Tell
) -> Manifest | Verdict:
    """The manifest of a folder, or the verdict on a file."""
    from ..pipeline.isolation.worker import ApiCall, run_call

    call = ApiCall(function="validate", arguments=arguments)
    if path.is_dir():
        return run_call(call, Manifest, bounds, tell)
    return run_call(call, Verdict, bounds, tell)


def _validate_otherwise(path: Path, context: typer.Context, given: Given) -> int | None:
    """Judge parts, a compiled module or artifacts elsewhere; None if none of them is asked for."""
    if (path / PARTS_FILE).is_file():
        from .parts import validate_parts

        return validate_parts(path, given)
    if given.get("compiled"):
        return _validate_compiled(path, context, given)
    if any(map(given.get, ELSEWHERE)):
        return validate_elsewhere(path, context, given)
    return None


def _validate_compiled(path: Path, context: typer.Context, given: Given) -> int:
    """Judge the eager module of a folder under torch.compile, show the verdict; the exit code."""
    where = "with --compiled, which judges no artifact"
    refuse_others(given, _COMPILED_OPTIONS, where, "remove it")
    call = FolderCall(
        function="validate_compiled",
        arguments={"mode": read_record(FileOptions, given).compiled, "moved": file_move(given)},
    )
    verdict = call_on_folder(path, call, Verdict, context, given)
    return _show_result(verdict, path, (), json=bool(given.get("json")))


def _show_result(
    result: Manifest | Verdict, path: Path, reports: Sequence[ReportFormat], *, json: bool
) -> int:
    """Show a folder's manifest with its reports, or the verdict on a file; the exit code."""
    from ..pipeline.manifest_file import encode_json
    from .console import show_json
    from .render import show_verdict
    from .render_manifest import show_manifest
    from .render_report import report_run

    if json:
        show_json(encode_json(result))
    elif isinstance(result, Verdict):
        show_verdict(result)
    else:
        show_manifest(result, str(path))
    if not isinstance(result, Verdict):
        report_run(result, path, reports, json=json)
    return result.exit_code
