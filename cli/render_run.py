"""Render the result of a project run, its plan, and changes from the base run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from ..core.errors import join_some
from ..core.manifest import Manifest
from ..core.part_records import PARTS_FILE
from ..core.records import size_text
from ..pipeline.manifest_file import MANIFEST_FILE, encode_json
from ..pipeline.parts.parts_file import has_parts
from ..projects.project_faults import key_hint
from ..projects.project_records import (
    MeasureChange,
    ModelOrder,
    ModelOutcome,
    Regression,
)
from ..projects.run_record import ArtifactRun, ModelRun, RunRecord, count_results, record_file
from ..projects.setting_keys import RunSettings
from ..reports.comparison import Change
from ..reports.result_rows import Outcome
from ..reports.text_format import count_text, figure_text
from .console import (
    STATE_MARKS,
    new_table,
    print_line,
    print_lines,
    result_console,
    show_json,
    show_reasons_table,
)
from .render import plan_cells, plan_rows
from .render_manifest import (
    artifacts_to_show,
    lines_of_warnings,
    show_guilty_layer,
    show_pending,
    show_reason,
)

if TYPE_CHECKING:
    from rich.console import Console

_MAX_UNCHANGED = 50  # models up to which the table also lists those where nothing changed
_NAMES_SHOWN = 12  # models that share a warning
_SOURCE_MARKS = {
    "": "",
    "made": "built",
    "kept": "[dim]up to date[/]",
    "cache": "[dim]reused[/]",
}


def show_run(
    outcomes: Sequence[ModelOutcome],
    record: RunRecord,
    out: Path,
    *,
    console: Console | None = None,
) -> None:
    """Show a table of artifacts, the reasons by model, the changes, and the counts."""
    console = console or result_console()
    _show_artifacts(console, record.models)
    owners: dict[str, list[str]] = {}
    warnings = {
        one.name: lines_of_warnings(one.manifest, artifacts_to_show(one.manifest))
        for one in outcomes
        if one.manifest is not None
    }
    for name, lines in warnings.items():
        for line in dict.fromkeys(lines):
            owners.setdefault(line, []).append(name)
    for outcome, model in zip(outcomes, record.models, strict=True):
        own = [line for line in warnings.get(outcome.name, ()) if len(owners[line]) == 1]
        _show_model(console, outcome, model, own)
    _show_shared_warnings(console, owners)
    if record.regression is not None:
        show_regression(console, record.regression)
    file = escape(str(out / record_file(record)))
    print_line(console, f"{_run_summary(record)} · {record.seconds:.1f} s · {file}")


def _show_shared_warnings(console: Console, owners: Mapping[str, Sequence[str]]) -> None:
    """Show each warning that several models share once, below their names."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for line, names in owners.items():
        if len(names) > 1:
            shared.setdefault(tuple(names), []).append(line)
    for models, lines in shared.items():
        print_line(console, f"[bold]{escape(join_some(models, _NAMES_SHOWN))}[/]")
        print_lines(console, lines)


def _show_artifacts(console: Console, models: Sequence[ModelRun]) -> None:
    quiet = [one for one in models if _is_unchanged(one)] if len(models) > _MAX_UNCHANGED else []
    if quiet:
        models = [one for one in models if not _is_unchanged(one)]
        names = count_text(len(quiet), "model")
        artifacts = count_text(sum(len(one.artifacts) for one in quiet), "artifact")
        print_line(console, f"{names} with {artifacts}: passed, up to date")
    if not models:
        return
    right = ("size", "SQNR dB", "seconds")
    table = new_table("model", "artifact", "size", "SQNR dB", "verdict", "", "seconds", right=right)
    for model in models:
        empty = ("", "", "", STATE_MARKS[model.state], "")
        rows = [_artifact_cells(one) for one in model.artifacts] or [empty]
        for number, row in enumerate(rows):
            first = number == 0
            ran = first and model.state is not Outcome.SKIPPED
            seconds = f"{model.seconds:.1f}" if ran else ""
            table.add_row(escape(model.name) if first else "", *row, seconds)
    console.print(table)


def _is_unchanged(model: ModelRun) -> bool:
    """Whether all of its artifacts passed and are up to date, and no gate is broken."""
    ends = ((one.state, one.source) for one in model.artifacts)
    return not model.breaches and all(end == (Outcome.PASSED, "kept") for end in ends)


def _artifact_cells(one: ArtifactRun) -> tuple[str, ...]:
    sqnr = "exact" if one.exact else figure_text(one.sqnr, ".1f")
    return (
        escape(one.name),
        size_text(one.size) if one.size else "",
        sqnr if one.size else "",
        STATE_MARKS[one.state],
        _SOURCE_MARKS[one.source],
    )


def _show_model(
    console: Console, outcome: ModelOutcome, model: ModelRun, warnings: Sequence[str]
) -> None:
    """Show the error of a model, the reasons and warnings on its artifacts, and broken gates."""
    name = escape(outcome.name)
    if model.error:
        print_line(console, f"[red]{name}[/]: {escape(model.error)}")
        print_line(console, f"  [dim]hint: {escape(model.hint)}[/]")
    if outcome.manifest is not None:
        _show_model_artifacts(console, outcome, outcome.manifest, warnings)
    gates = [("red", "gate broken", one) for one in outcome.breaches]
    gates += [("yellow", "gate undecided", one) for one in outcome.doubts]
    for colour, state, breach in gates:
        origin = f"  [dim]{escape(str(breach.told))}[/]" if breach.told else ""
        what = f"[{colour}]{name}/{escape(breach.artifact)}[/]"
        print_line(console, f"{what}: {state}: {escape(breach.message)}{origin}")


def _show_model_artifacts(
    console: Console, one: ModelOutcome, manifest: Manifest, warnings: Sequence[str]
) -> None:
    """Show what did not pass, what is pending, and the warnings, as export does."""
    wrong = [
        artifact
        for artifact in artifacts_to_show(manifest)
        if (verdict := manifest.verdict_of(artifact.name)) is None or not verdict.passed
    ]
    waiting = [pending for pending in manifest.steps_pending if pending.step in manifest.steps]
    if wrong or waiting or manifest.failures or warnings:
        record = PARTS_FILE if has_parts(Path(one.folder)) else MANIFEST_FILE
        print_line(console, f"[bold]{escape(one.name)}[/]  [dim]{escape(one.folder)}/{record}[/]")
    for artifact in wrong:
        show_reason(console, artifact, manifest.verdict_of(artifact.name))
        show_guilty_layer(console, artifact, manifest, one.folder)
    for failure in manifest.failures:
        print_line(console, f"[red]{escape(failure.step)}[/]: {escape(failure.message)}")
        print_line(console, f"  [dim]hint: {escape(str(key_hint(failure.full_hint)))}[/]")
    for pending in waiting:
        show_pending(console, pending)
    for command in dict.fromkeys(pending.command for pending in waiting):
        print_line(console, f"  finish on a GPU host: {escape(f'{command} {one.folder}')}")
    print_lines(console, warnings)


def _run_summary(record: RunRecord) -> str:
    sources = Counter(one.source for model in record.models for one in model.artifacts)
    origins = [f"{sources['made']} built"]
    origins += [f"{sources['kept']} up to date"] if sources["kept"] else []
    origins += [f"{sources['cache']} reused"] if sources["cache"] else []
    return f"{count_results(record)} · {', '.join(origins)}"


def show_plans(models: Sequence[ModelOrder], file: Path, run: RunSettings, *, json: bool) -> None:
    """Show the plan of each model; only the project file is read."""
    plans = {model.name: plan_rows(model.plan, model.order, model.parts) for model in models}
    if json:
        show_json(encode_json({"models": plans}))
        return
    console = result_console()
    table = new_table("model", "artifact", "from", "method", "file")
    for model in models:
        for number, row in enumerate(plans[model.name]):
            table.add_row(escape(model.name) if number == 0 else "", *plan_cells(row))
    console.print(table)
    for model in models:
        for text in (*model.left_out, *model.unused):
            print_line(console, f"  [dim]{escape(model.name)}: {escape(text)}[/]")
    steps = count_text(sum(map(len, plans.values())), "artifact")
    summary = f"{steps} of {count_text(len(models), 'model')}"
    print_line(console, f"{summary} · {escape(str(file))} · output folder {escape(str(run.out))}")


CHANGE_MARKS = {
    Change.WORSE: "[red]worse[/]",
    Change.BETTER: "[green]better[/]",
    Change.NEW: "[cyan]new[/]",
    Change.INFO: "[yellow]info[/]",
}


def show_regression(console: Console, found: Regression) -> None:
    """Show the measures that changed, what was not compared, and the count of worse ones."""
    if found.changed:
        rows = [_change_row(one) for one in found.changed]
        show_reasons_table(console, rows, right=("base", "now"))
    for text in (*found.notes, *found.left_out):
        print_line(console, f"  [yellow]{escape(text)}[/]")
    counts = f"{len(found.worse)} of {found.compared} measures worse"
    print_line(console, f"{counts} than {escape(found.base)}")


def _change_row(one: MeasureChange) -> dict[str, str]:
    return {
        "model": escape(one.model),
        "artifact": escape(one.artifact),
        "measure": escape(one.measure),
        "base": escape(one.before),
        "now": escape(one.after),
        "": CHANGE_MARKS[one.change],
        "why": escape(one.why),
    }
