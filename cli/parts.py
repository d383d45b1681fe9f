"""`modelc export --part` and `modelc validate` of its folder: each part alone, then the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from ..core.children.limits import ProcessLimits
from ..core.errors import ErrorCode, Hint, ModelcError, Option, Place, UsageError
from ..core.manifest import Manifest
from ..core.part_records import PARTS_FILE, PartsManifest, PartsPlan
from ..core.verdict import Limits, Verdict
from ..pipeline.call_options import CallOptions, PartsChoice
from ..pipeline.isolation.worker import ApiCall
from ..pipeline.make_order import make_judging, make_order, make_source
from ..pipeline.manifest_file import encode_json
from ..pipeline.option_spec import Given, read_record, specs_of
from ..pipeline.option_table import JudgingOptions, SourceOptions
from ..pipeline.order import Wanted
from ..pipeline.parts.parts_file import part_folder, read_parts
from ..pipeline.parts.run_parts import PartsRequest, split_inputs
from ..reports.result_rows import Outcome, failure_outcome, sqnr_text, verdict_outcome
from ..reports.text_format import figure_text
from .command_options import refuse_others
from .console import STATE_MARKS, Screen, fit_table, print_line, result_console, show_json
from .execute import run_order
from .judging_options import read_limits
from .render_manifest import margin_text, show_manifest
from .run_options import cache_folder, file_move, process_bounds, run_call
from .streams import set_output_folder

if TYPE_CHECKING:
    from rich.console import Console

_CALLS = {
    *(one.name for record in (CallOptions, JudgingOptions) for one in specs_of(record))
} - {"sign-key", "dry-run", "report"}  # fmt: skip
_EXPORT_OPTIONS = _CALLS | {
    "part", "compose", "model", "model-arg", "weights-key", "input", "samples", "allow-pickle",
    "trust", "no-strict", "to", "fp16", "bf16", "int8-weights", "int4", "group-size", "overwrite",
    "capture", "opset", "external-data", "guard", "capture-timeout", "custom-op", "for",
}  # fmt: skip
_VALIDATE_OPTIONS = (_CALLS | {"checkpoint", "samples", "allow-pickle", "trust"}) - {"artifact"}
_OF_THE_WHOLE = {"part", "compose", "input", "samples", "out"}  # a part has its own


@dataclass(frozen=True, kw_only=True)
class PartsCall:
    """How the steps of one command run and report."""

    call: CallOptions
    bounds: ProcessLimits | None
    screen: Screen


def export_parts(checkpoint: Path, wanted: tuple[Wanted, ...], given: Given) -> int:
    """Convert every part of a model, judge each alone and the whole; the exit code.

    Raises:
        UsageError: an option that parts cannot have.
        ModelcError: the checkpoint, a part or the pipeline cannot be used.
    """
    choice, call = read_record(PartsChoice, given), read_record(CallOptions, given)
    if choice.compose is None or not choice.parts:
        missing = Option("part", "NAME=METHOD")
        if choice.parts:
            missing = Option("compose", "PKG.MOD:FN")
        raise UsageError(
            f"--{'compose' if choice.compose else 'part'} has no effect without --{missing.name}",
            hint=Hint("add ", missing),
            option=missing.name,
            code=ErrorCode.NO_EFFECT,
        )
    refuse_others(given, _EXPORT_OPTIONS, "with --part", "remove it")
    limits = _read_shared_limits(call)
    source = make_source(checkpoint, {k: v for k, v in given.items() if k != "input"})
    inputs, of_parts = split_inputs(read_record(SourceOptions, given).inputs, [*choice.parts])
    request = PartsRequest(
        source=replace(source, inputs=inputs),
        methods=choice.parts,
        compose=choice.compose,
        out=call.out,
        judging=make_judging(given, (limits, {})),
        part_inputs=of_parts,
    )
    own = {key: value for key, value in given.items() if key not in _OF_THE_WHOLE}
    manifests: dict[str, Manifest] = {}
    with _open_screen(call, call.out) as on:
        record = ApiCall(function="record_parts", arguments={"request": request})
        plan = run_call(record, PartsPlan, on.bounds, on.screen)
        for part in plan.parts:
            mine = {
                **own, "method": part.method, "input": list(part.inputs),
                "samples": Path(part.samples), "out": call.out / part.name,
            }  # fmt: skip
            manifests[part.name] = _export_part(checkpoint, wanted, mine, limits, on)
        arguments = {"request": request, "artifacts": tuple(one.name for one in wanted)}
        judge = ApiCall(function="judge_parts", arguments=arguments)
        whole = run_call(judge, PartsManifest, on.bounds, on.screen)
    notes = (note for part in plan.parts for note in part.notes)
    whole = replace(whole, notes=(*whole.notes, *notes))
    return _finish(whole, manifests, {}, call.out, json=call.json)


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
    judging = make_judging(given, (_read_shared_limits(call), {}))
    moved, then = file_move(given), read_parts(folder)
    request = PartsRequest.of_record(folder, moved, judging)
    names = dict.fromkeys(
        [*(one.artifact for one in then.verdicts), *(one.step for one in then.failures)]
    )
    manifests: dict[str, Manifest] = {}
    errors: dict[str, ModelcError] = {}
    with _open_screen(call, folder) as on:
        arguments = {"request": request, "artifacts": tuple(names)}
        judge = ApiCall(function="judge_parts", arguments=arguments)
        whole = run_call(judge, PartsManifest, on.bounds, on.screen)
        for part in then.parts:
            mine = {
                "path": part_folder(folder, part.name), "judging": judging,
                "moved": replace(moved, samples=None),
            }  # fmt: skip
            try:
                alone = ApiCall(function="validate", arguments=mine)
                manifests[part.name] = run_call(alone, Manifest, on.bounds, on.screen)
            except ModelcError as error:
                errors[part.name] = error
    return _finish(whole, manifests, errors, folder, json=call.json)


@contextmanager
def _open_screen(call: CallOptions, out: Path) -> Iterator[PartsCall]:
    bounds = process_bounds(call)
    set_output_folder(out)
    with Screen(quiet=call.quiet) as screen:
        yield PartsCall(call=call, bounds=bounds, screen=screen)


def _read_shared_limits(call: CallOptions) -> Limits:
    """Return the limits of all outputs; parts and the whole have outputs of other names.

    Raises:
        UsageError: a limit is for one output.
    """
    shared, by_output = read_limits(call.tolerance)
    if by_output:
        raise UsageError(
            f"--tolerance {next(iter(by_output))}: parts and the whole have other outputs",
            hint="give a limit for all outputs, as --tolerance min-sqnr=60",
            option="tolerance",
            code=ErrorCode.NO_EFFECT,
        )
    return shared


def _export_part(
    checkpoint: Path, wanted: tuple[Wanted, ...], given: Given, limits: Limits, on: PartsCall
) -> Manifest:
    """Convert one part in its own folder.

    Raises:
        ModelcError: nothing was made; the error names the part.
    """
    cache = cache_folder()
    try:
        order = make_order(given, checkpoint, wanted, limits=(limits, {}), cache=cache)
        return run_order(order, on.screen, on.bounds)
    except ModelcError as error:
        part = Path(str(given["out"])).name
        raise error.at(error.place or Place(key=f"part {part}"), hint=error.advice) from error


def _finish(
    whole: PartsManifest,
    manifests: Mapping[str, Manifest],
    errors: Mapping[str, ModelcError],
    out: Path,
    *,
    json: bool,
) -> int:
    """Show the parts and the whole; return the exit code."""
    if json:
        show_json(encode_json({"whole": whole, "parts": manifests}))
    else:
        show_parts(whole, manifests, errors, out)
    codes = [whole.exit_code, *(one.exit_code for one in manifests.values())]
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
    _show_whole(console, whole, out)


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
