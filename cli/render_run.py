"""Renders the result of a project run, its plan, and what changed from the base run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from ..core.manifest import Manifest
from ..pipeline.manifest_file import encode_json
from ..projects.project_faults import key_hint
from ..projects.project_records import (
    MeasureChange,
    ModelOrder,
    ModelOutcome,
    Regression,
)
from ..projects.run_record import RUN_FILE, ArtifactRun, ModelRun, RunRecord
from ..projects.setting_keys import RunSettings
from ..reports.comparison import Change
from ..reports.text_format import count_text, figure_text, size_text
from .console import (
    new_table,
    print_line,
    print_lines,
    result_console,
    show_json,
    show_reasons_table,
)
from .render import PlanRow, plan_rows
from .render_manifest import (
    artifacts_to_show,
    lines_of_warnings,
    show_guilty_layer,
    show_pending,
    show_reason,
)

if TYPE_CHECKING:
    from rich.console import Console

_RUN_STATE_MARKS = {
    "passed": "[green]pass[/]",
    "failed": "[red]FAIL[/]",
    "error": "[red]error[/]",
    "pending": "[yellow]pending[/]",
    "not-run": "[dim]not run[/]",
}
_SOURCE_MARKS = {"": "", "made": "made", "kept": "[dim]kept[/]", "cache": "[dim]cache[/]"}


def show_run(
    ended: Sequence[ModelOutcome], record: RunRecord, out: Path, *, console: Console | None = None
) -> None:
    """A row an artifact; then, model by model, what is wrong; what changed; then the sum."""
    console = console or result_console()
    _show_artifacts(console, record.models)
    for one, end in zip(ended, record.models, strict=True):
        _show_model(console, one, end)
    if record.regression is not None:
        show_regression(console, record.regression)
    print_line(
        console, f"{_run_summary(record)} · {record.seconds:.1f} s · {escape(str(out / RUN_FILE))}"
    )


def _show_artifacts(console: Console, models: Sequence[ModelRun]) -> None:
    right = ("size", "SQNR dB", "seconds")
    table = new_table("model", "artifact", "size", "SQNR dB", "verdict", "", "seconds", right=right)
    for model in models:
        rows = [_artifact_cells(one) for one in model.artifacts] or [
            ("", "", "", _RUN_STATE_MARKS[model.state], "")
        ]
        for number, row in enumerate(rows):
            first = number == 0
            seconds = f"{model.seconds:.1f}" if first and model.state != "not-run" else ""
            table.add_row(escape(model.name) if first else "", *row, seconds)
    console.print(table)


def _artifact_cells(one: ArtifactRun) -> tuple[str, ...]:
    sqnr = "exact" if one.exact else figure_text(one.sqnr, ".1f")
    return (
        escape(one.name),
        size_text(one.size) if one.size else "",
        sqnr if one.size else "",
        _RUN_STATE_MARKS[one.state],
        _SOURCE_MARKS[one.source],
    )


def _show_model(console: Console, one: ModelOutcome, end: ModelRun) -> None:
    """What stopped a model, what of it is not proven, its warnings, which gates it breaks."""
    name = escape(one.name)
    if end.error:
        print_line(console, f"[red]{name}[/]: {escape(end.error)}")
        print_line(console, f"  [dim]hint: {escape(end.hint)}[/]")
    if one.manifest is not None:
        _show_model_artifacts(console, one, one.manifest)
    for breach in one.breaches:
        told = f"  [dim]{escape(str(breach.told))}[/]" if breach.told else ""
        print_line(
            console,
            f"[red]{name}/{escape(breach.artifact)}[/]: {escape(breach.message)}{told}",
        )


def _show_model_artifacts(console: Console, one: ModelOutcome, manifest: Manifest) -> None:
    """What is not proven and why, what waits for another host, the warnings as export has them."""
    shown = artifacts_to_show(manifest)
    wrong = [
        artifact
        for artifact in shown
        if (verdict := manifest.verdict_of(artifact.name)) is None or not verdict.passed
    ]
    waiting = [pending for pending in manifest.steps_pending if pending.step in manifest.steps]
    warnings = lines_of_warnings(manifest, shown)
    if wrong or waiting or manifest.failures or warnings:
        print_line(
            console, f"[bold]{escape(one.name)}[/]  [dim]{escape(one.folder)}/manifest.json[/]"
        )
    for artifact in wrong:
        show_reason(console, artifact, manifest.verdict_of(artifact.name))
        show_guilty_layer(console, artifact, manifest, one.folder)
    for failure in manifest.failures:
        print_line(console, f"[red]{escape(failure.step)}[/]: {escape(failure.message)}")
        print_line(
            console,
            f"  [dim]hint: {escape(str(key_hint(failure.full_hint)))}[/]",
        )
    for pending in waiting:
        show_pending(console, pending)
        print_line(
            console, f"  finish it on a GPU host: {escape(pending.command)} {escape(one.folder)}"
        )
    print_lines(console, warnings)


def _run_summary(record: RunRecord) -> str:
    artifacts = [one for model in record.models for one in model.artifacts]
    states = Counter(one.state for one in artifacts)
    sources = Counter(one.source for one in artifacts)
    parts = [f"{states['passed']} proven", f"{states['failed']} refused"]
    parts += [f"{states[s]} {text}" for s, text in _OTHER_STATES if states[s]]
    stopped = sum(model.state == "error" for model in record.models)
    parts += [f"{stopped} of {count_text(len(record.models), 'model')} stopped"] if stopped else []
    unrun = sum(model.state == "not-run" for model in record.models)
    parts += [f"{count_text(unrun, 'model')} not begun (--keep-going)"] if unrun else []
    breaches = sum(len(model.breaches) for model in record.models)
    parts += [f"{count_text(breaches, 'gate')} broken"] if breaches else []
    taken_up = sources["kept"] + sources["cache"]
    return f"{', '.join(parts)} · {sources['made']} made, {taken_up} taken up"


_OTHER_STATES = (("error", "not judged"), ("pending", "pending"))


def show_plans(models: Sequence[ModelOrder], file: Path, run: RunSettings, *, json: bool) -> None:
    """What would be made, model by model; nothing is read but the project."""
    plans = {model.name: plan_rows(model.plan, model.order) for model in models}
    if json:
        show_json(encode_json({"models": plans}))
        return
    console = result_console()
    table = new_table("model", "artifact", "from", "by", "file")
    for model in models:
        for number, row in enumerate(plans[model.name]):
            table.add_row(escape(model.name) if number == 0 else "", *_plan_cells(row, model))
    console.print(table)
    for model in models:
        for text in (*model.left_out, *model.unused):
            print_line(console, f"  [dim]{escape(model.name)}: {escape(text)}[/]")
    steps = count_text(sum(map(len, plans.values())), "artifact")
    of = count_text(len(models), "model")
    print_line(console, f"{steps} of {of} by {escape(str(file))} in {escape(str(run.out))}")


def _plan_cells(row: PlanRow, model: ModelOrder) -> tuple[str, ...]:
    needed = "" if row.asked else " [dim](needed by others)[/]"
    made_from = str(model.order.source.checkpoint) if row.made_from == "eager" else row.made_from
    return (
        escape(row.artifact) + needed,
        escape(made_from),
        ", ".join(row.captures) or "-",
        escape(Path(row.file).name) + (" [yellow](pending)[/]" if row.pending else ""),
    )


CHANGE_MARKS = {
    Change.WORSE: "[red]worse[/]",
    Change.BETTER: "[green]better[/]",
    Change.NEW: "[cyan]new[/]",
    Change.TOLD: "[yellow]info[/]",
}


def show_regression(console: Console, found: Regression) -> None:
    """A row a measure that changed; what was not compared; the sum."""
    if found.changed:
        rows = [_change_row(one) for one in found.changed]
        show_reasons_table(console, rows, right=("base", "now"))
    for text in (*found.notes, *found.left_out):
        print_line(console, f"  [yellow]{escape(text)}[/]")
    worse = len(found.worse)
    told = f"{worse} worse" if worse else "nothing worse"
    print_line(console, f"{told} of {found.compared} measures beside {escape(found.base)}")


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
