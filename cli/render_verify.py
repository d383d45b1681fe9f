"""Draws what `modelc verify` found: a row for each artifact, then all that needs words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from ..pipeline.provenance.artifact_checks import (
    CheckOutcome,
    FolderVerification,
    ProvenanceCheck,
    Verification,
)
from .tables import new_table, print_line, result_console

if TYPE_CHECKING:
    from rich.console import Console

_FINDING_MARKS = {
    CheckOutcome.HOLDS: "[green]holds[/]",
    CheckOutcome.FAILED: "[red]FAIL[/]",
    CheckOutcome.LACKING: "[yellow]lacking[/]",
    CheckOutcome.UNCHECKED: "[dim]unchecked[/]",
}
_FINDING_ORDER = tuple(CheckOutcome)[1:]  # what is worth a line, the worst first
_VERIFY_COLUMNS = ("form", "files", "inside", "chain", "verdict", "seal", "signature")
_NOT_RUN_NOTE = "no model was run: that a verdict is right says modelc validate"


def show_verification(found: Verification, folder: str, *, quiet: bool = False) -> None:
    """A table and notes for each model, what the run's record says, then one line for all."""
    console = result_console()
    for model in found.models:
        _show_verified_model(console, model, quiet=quiet)
    _show_finding_lines(console, found.run, "", quiet=quiet)
    checks = [check for model in found.models for check in model.checks] + list(found.run)
    counts = ", ".join(
        f"{_count_findings(checks, kind)} {_FINDING_NAMES[kind]}" for kind in CheckOutcome
    )
    print_line(console, f"{counts} · {escape(folder)}")
    if not quiet:
        print_line(console, f"[dim]{_NOT_RUN_NOTE}[/]")


_FINDING_NAMES = {
    CheckOutcome.HOLDS: "hold",
    CheckOutcome.FAILED: "failed",
    CheckOutcome.LACKING: "lacking",
    CheckOutcome.UNCHECKED: "unchecked",
}


def _count_findings(checks: Iterable[ProvenanceCheck], kind: CheckOutcome) -> int:
    return sum(check.found is kind for check in checks)


def _show_verified_model(console: Console, model: FolderVerification, *, quiet: bool) -> None:
    if model.name:
        print_line(console, f"[bold]{escape(model.name)}[/]")
    columns = [one for one in _VERIFY_COLUMNS if any(check.what == one for check in model.checks)]
    table = new_table("", *columns)
    for of in dict.fromkeys(check.of for check in model.checks):
        worst = {column: _worst_finding(model.checks, of, column) for column in columns}
        table.add_row(escape(of), *(_mark_of_finding(worst[column]) for column in columns))
    console.print(table)
    _show_finding_lines(console, model.checks, "  ", quiet=quiet)


def _worst_finding(checks: Sequence[ProvenanceCheck], of: str, what: str) -> CheckOutcome | None:
    """How one thing was found, where it was looked at: the worst, where more than once."""
    found = [check.found for check in checks if (check.of, check.what) == (of, what)]
    return next((kind for kind in (*_FINDING_ORDER, CheckOutcome.HOLDS) if kind in found), None)


def _mark_of_finding(found: CheckOutcome | None) -> str:
    return "" if found is None else _FINDING_MARKS[found]


def _show_finding_lines(
    console: Console, checks: Sequence[ProvenanceCheck], before: str, *, quiet: bool
) -> None:
    """A line for each thing that failed, is lacking or was not checked; quietly, for the first."""
    for kind in _FINDING_ORDER[:1] if quiet else _FINDING_ORDER:
        for check in checks:
            if check.found is kind and check.detail:
                what = f"{escape(check.of)}, {check.what}"
                print_line(
                    console, f"{before}{_FINDING_MARKS[kind]} {what}: {escape(check.detail)}"
                )
