"""`modelc export --part`, and `validate` and `finish` of its folder: each part, and the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from rich.markup import escape

from ..core.children.limits import ProcessLimits
from ..core.errors import ModelcError
from ..core.events import Noted
from ..core.manifest import Manifest
from ..core.part_records import PARTS_FILE, PartsManifest
from ..core.verdict import Verdict
from ..pipeline.call_options import CallOptions
from ..pipeline.isolation.worker import ApiCall, run_call
from ..pipeline.make_order import make_judging
from ..pipeline.manifest_file import encode_json
from ..pipeline.option_spec import Given, read_record, specs_of
from ..pipeline.option_table import JudgingOptions
from ..pipeline.order import Order
from ..pipeline.parts.export_parts import finish_parts, judge_whole, make_parts
from ..pipeline.parts.joined_manifest import join_parts
from ..pipeline.parts.parts_file import list_built, part_folder, read_parts
from ..pipeline.parts.parts_order import PartsOrder, check_limits
from ..pipeline.parts.run_parts import PartsRequest
from ..pipeline.plan import make_plan
from ..pipeline.report_files import remove_stale_reports
from ..reports.result_rows import Outcome, failure_outcome, sqnr_text, verdict_outcome
from ..reports.text_format import figure_text
from .command_options import refuse_others
from .console import STATE_MARKS, Screen, fit_table, print_line, result_console, show_json
from .execute import exit_code_of
from .judging_options import parse_formats, read_limits
from .render import plan_rows, show_plan
from .render_manifest import margin_text, show_manifest
from .render_report import report_run
from .run_options import file_move, hold_signatures, load_private_key, process_bounds
from .streams import set_output_folder

if TYPE_CHECKING:
    from rich.console import Console

    from ..pipeline.recorded_run import FinishRequest

_VALIDATE_OPTIONS = {
    "checkpoint", "samples", "allow-pickle", "trust",
    *(one.name for record in (CallOptions, JudgingOptions) for one in specs_of(record)),
} - {"artifact", "dry-run"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PartsCall:
    """How one command runs and reports; `trusts` is whether limits are read from records."""

    bounds: ProcessLimits | None
    screen: Screen
    trusts: bool


def export_parts(order: Order, parts: PartsOrder, call: CallOptions) -> int:
    """Convert every part of a model, judge each alone and the whole; the exit code.

    Raises:
        UsageError: an option that parts cannot have.
        ModelcError: the checkpoint, a part or the pipeline cannot be used.
    """
    plan = make_plan(order)
    if call.dry_run:
        rows = plan_rows(plan, order, parts)
        show_json(encode_json({"plan": rows})) if call.json else show_plan(rows)
        return 0
    with _open_call(call, order.out, parts.methods) as on:
        whole, manifests = make_parts(order, parts, on.bounds, on.screen)
    return _finish(whole, manifests, {}, order.out, call)


def validate_parts(folder: Path, given: Given) -> int:
    """Judge the whole in a folder again, then each part alone; the exit code.

    The whole is first: an artifact that is rejected alone is moved away.

    Raises:
        UsageError: an option that parts cannot have.
        ModelcError: the checkpoint or the pipeline cannot be used.
    """
    refuse_others(
        given, _VALIDATE_OPTIONS, f"with {folder}, which holds several parts", "remove it"
    )
    call = read_record(CallOptions, given)
    judging = make_judging(given, read_limits(call.tolerance))
    check_limits(judging)
    moved, then = file_move(given), read_parts(folder)
    manifests: dict[str, Manifest] = {}
    errors: dict[str, ModelcError] = {}
    methods = [part.name for part in then.parts]
    with _open_call(call, folder, methods, judges_all=True) as on:
        judging = replace(judging, trusts_record=on.trusts)
        request = PartsRequest.of_record(folder, moved, judging)
        whole = judge_whole(request, list_built(then, folder), on.bounds, on.screen)
        for part in then.parts:
            mine = {
                "path": part_folder(folder, part.name), "judging": judging,
                "moved": replace(moved, samples=None),
            }  # fmt: skip
            on.screen(Noted(text=f"part {part.name}"))
            try:
                alone = ApiCall(function="validate", arguments=mine)
                manifests[part.name] = run_call(alone, Manifest, on.bounds, on.screen)
            except ModelcError as error:
                errors[part.name] = error
    return _finish(whole, manifests, errors, folder, call)


def finish_folder(folder: Path, request_of: Callable[[Path], FinishRequest], given: Given) -> int:
    """Finish what is pending in each part of a folder, then judge the whole; the exit code.

    Raises:
        ModelcError: a part, the checkpoint or the pipeline cannot be used.
    """
    call, then = read_record(CallOptions, given), read_parts(folder)
    judging = make_judging(given, read_limits(()))
    with _open_call(call, folder, [part.name for part in then.parts]) as on:
        judging = replace(judging, trusts_record=on.trusts)
        request = PartsRequest.of_record(folder, file_move(given), judging)
        whole, manifests = finish_parts(request, request_of, on.bounds, on.screen)
    return _finish(whole, manifests, {}, folder, call)


@contextmanager
def _open_call(
    call: CallOptions, out: Path, parts: Iterable[str], *, judges_all: bool = False
) -> Iterator[PartsCall]:
    """Open what a command reports to, and keep the signatures of all records."""
    bounds, reports = process_bounds(call), parse_formats(call.report)
    key = load_private_key(call.sign_key)
    set_output_folder(out)
    with ExitStack() as held:
        held.enter_context(remove_stale_reports(out, reports))
        screen = held.enter_context(Screen(quiet=call.quiet))
        trusts = hold_signatures(held, out, key, screen, parts=parts, judges_all=judges_all)
        yield PartsCall(bounds=bounds, screen=screen, trusts=trusts)


def _finish(
    whole: PartsManifest,
    manifests: Mapping[str, Manifest],
    errors: Mapping[str, ModelcError],
    out: Path,
    call: CallOptions,
) -> int:
    """Show the parts and the whole, and write the reports; return the exit code."""
    if call.json:
        show_json(encode_json({"whole": whole, "parts": manifests}))
    else:
        show_parts(whole, manifests, errors, out)
    reports = parse_formats(call.report)
    report_run(join_parts(whole, manifests), out, reports, json=call.json)
    codes = [whole.exit_code, *(exit_code_of(one, call) for one in manifests.values())]
    codes += [error.exit_code for error in errors.values()]
    return 1 if 1 in codes else next(filter(None, codes), 0)


def show_parts(
    whole: PartsManifest,
    manifests: Mapping[str, Manifest],
    errors: Mapping[str, ModelcError],
    out: Path,
) -> None:
    """Show the artifacts of each part, then the verdicts on the whole."""
    console = result_console()
    for part in whole.parts:
        method = "" if part.method == part.name else f" ({escape(part.method)})"
        print_line(console, f"[bold]{escape(part.name)}[/]{method}")
        if part.name in manifests:
            show_manifest(manifests[part.name], str(out / part.name))
        if part.name in errors:
            error = errors[part.name]
            _show_failure(console, part.name, error.message, error.hint)
        console.print()
    _show_whole(console, whole, out)
    if any(one.pending for one in manifests.values()):
        command = f"modelc finish {quote(str(out))}"
        text = "finish all parts on a GPU host that has the checkpoint"
        print_line(console, f"{text}: [bold]{escape(command)}[/]")


def _show_failure(console: Console, name: str, message: str, hint: str) -> None:
    print_line(console, f"[red]{escape(name)}[/]: {escape(message)}")
    print_line(console, f"  [dim]hint: {escape(hint)}[/]")


def _show_whole(console: Console, whole: PartsManifest, out: Path) -> None:
    print_line(console, f"[bold]end to end[/] ({escape(whole.compose)})")
    rows = [
        {
            "artifacts": escape(one.artifact),
            "feeds": str(len(one.feeds)),
            "max abs": figure_text(one.max_abs),
            "SQNR dB": sqnr_text(one),
            "margin": margin_text(one),
            "verdict": STATE_MARKS[verdict_outcome(one)],
            "seconds": f"{one.seconds:.1f}",
        }
        for one in whole.verdicts
    ]
    rows += [
        {"artifacts": escape(one.step), "verdict": STATE_MARKS[failure_outcome(one)]}
        for one in whole.failures
    ]
    columns = ("artifacts", "feeds", "max abs", "SQNR dB", "margin", "verdict", "seconds")
    console.print(
        fit_table(console, columns, rows, right=(*columns[1:5], "seconds"), less=("max abs",))
    )
    for verdict in whole.verdicts:
        _show_verdict(console, verdict)
    for failure in whole.failures:
        _show_failure(console, failure.step, failure.message, failure.hint)
    for note in whole.notes:
        print_line(console, f"  [yellow]{escape(note)}[/]")
    states = Counter(map(verdict_outcome, whole.verdicts))
    states.update(map(failure_outcome, whole.failures))
    always = (Outcome.PASSED, Outcome.REJECTED)
    counts = ", ".join(f"{states[one]} {one}" for one in Outcome if states[one] or one in always)
    print_line(console, f"{counts} · {escape(str(out / PARTS_FILE))}")


def _show_verdict(console: Console, verdict: Verdict) -> None:
    """Show why the whole did not pass, and the notes."""
    if not verdict.passed:
        first, *more = [one.text for one in verdict.reasons] or [str(verdict.state)]
        print_line(console, f"[red]{escape(verdict.artifact)}[/]: {escape(first)}")
        for text in more:
            print_line(console, f"  {escape(text)}")
    for note in verdict.notes:
        print_line(console, f"  [yellow]{escape(verdict.artifact)}: {escape(note)}[/]")
