"""Renders plans, targets, inspections, verdicts on single files, and verifications."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from ..checkpoints.weight_sets import percent_text
from ..converters.registry import package_of
from ..core.contract import EAGER, Inspection, Readiness, Target, TensorInfo
from ..core.verdict import OutputVerdict, Verdict
from ..pipeline.inspection import CheckpointContents
from ..pipeline.order import Order
from ..pipeline.plan import Step
from ..pipeline.provenance.artifact_checks import (
    CheckOutcome,
    FolderVerification,
    ProvenanceCheck,
    Verification,
)
from ..reports.result_rows import sensitivity_lines
from ..reports.text_format import count_text, figure_text, readable_dim, size_text
from .console import STATE_MARKS, fit_table, new_table, print_line, result_console

if TYPE_CHECKING:
    from rich.console import Console


def show_verdict(verdict: Verdict) -> None:
    """The verdict on one file, a row an output: on the feed on which it is worst."""
    console = result_console()
    rows = [_output_row(verdict, name) for name in dict.fromkeys(o.output for o in verdict.outputs)]
    right = ("max abs", "SQNR dB", "cosine", "argmax", "x eager", "headroom")
    columns = ["output", "worst feed", *right, "verdict"]
    console.print(fit_table(console, columns, rows, right=right, less=("argmax", "cosine")))
    state = STATE_MARKS[verdict.state]
    reason = f": {escape(verdict.reason)}" if verdict.reason else ""
    feeds = count_text(len(verdict.feeds), "feed")
    within = f" within {tolerance_text(verdict)}" if verdict.passed else ""
    print_line(console, f"{escape(verdict.artifact)} {state} on {feeds}{within}{reason}")
    if verdict.domain is not None:
        print_line(console, f"domain: {escape(verdict.domain.describe())}")
    for line in sensitivity_lines([verdict]):
        print_line(console, escape(line))
    for note in verdict.notes:
        print_line(console, f"  [yellow]{escape(note)}[/]")


def _output_row(verdict: Verdict, name: str) -> dict[str, str]:
    """One output on its worst feed; where no feed counts, the figures of one, and that."""
    found = [output for output in verdict.outputs if output.output == name]
    rows = [output for output in found if not output.loose]
    held = [output for output in rows if not output.is_excused]
    worst = min(held or rows or found, key=_worst_first_key)
    known = worst.sqnr if worst.is_floating or not worst.passed else None  # of integers it is none
    sqnr = "exact" if worst.exact else figure_text(known, ".1f")
    mark = "[green]pass[/]" if all(o.passed for o in rows) else "[red]FAIL[/]"
    return {
        "output": escape(name),
        "worst feed": escape(worst.feed),
        "max abs": figure_text(worst.max_abs),
        "SQNR dB": f"{sqnr} (excused)" if worst.is_excused and worst.is_floating else sqnr,
        "cosine": figure_text(worst.cosine, ".6f"),
        "argmax": figure_text(worst.argmax_agreement, ".2%"),
        "x eager": figure_text(worst.times_floor, ".2f"),
        "headroom": "" if worst.headroom is None else f"{worst.headroom:+.0f} dB",
        "verdict": mark if rows else "[dim]does not count[/]",
    }


def _worst_first_key(output: OutputVerdict) -> tuple[bool, float, float, float]:
    """Sorts what is wrong first, then by headroom, SQNR and the largest error."""
    room = math.inf if output.headroom is None else output.headroom
    sqnr = math.inf if output.sqnr is None else output.sqnr
    return output.passed, room, sqnr, -(output.max_abs or 0.0)


def tolerance_text(verdict: Verdict) -> str:
    """What the verdict was within, as it was measured."""
    limit = verdict.tolerance
    table = f"atol {limit.atol:g}, rtol {limit.rtol:g}, SQNR {limit.min_sqnr:g} dB"
    floats = [o for o in verdict.outputs if o.headroom is not None]
    by_floor = [o for o in floats if o.times_floor is not None]
    if limit.floor_factor is None or not by_floor:
        return table
    floor = f"{limit.floor_factor:g} times eager's own distance from float64"
    return floor if len(by_floor) == len(floats) else f"{floor} (where that is unknown: {table})"


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One step of a plan, as it is shown."""

    artifact: str
    asked: bool
    made_from: str
    captures: tuple[str, ...]
    pending: str
    file: str
    loads_in: str = ""


def plan_rows(steps: Sequence[Step], order: Order) -> tuple[PlanRow, ...]:
    """What would be done, in order."""
    origin = EAGER if order.parent is None else str(order.parent)
    return tuple(
        PlanRow(
            artifact=step.name,
            asked=step.asked,
            made_from=step.parent or origin,
            captures=(*map(str, step.captures), *(q.NAME for q in step.quantizers)),
            pending="" if step.pending is None else step.pending.reason,
            file=str(order.out / step.file),
            loads_in=step.loads_in,
        )
        for step in steps
    )


def show_plan(rows: Sequence[PlanRow]) -> None:
    """The steps as a table."""
    console = result_console()
    table = new_table("step", "artifact", "from", "by", "file")
    for number, row in enumerate(rows, start=1):
        needed = "" if row.asked else " [dim](needed by others)[/]"
        table.add_row(
            str(number),
            escape(row.artifact) + needed,
            escape(row.made_from),
            ", ".join(row.captures) or "-",
            escape(Path(row.file).name) + (" [yellow](pending)[/]" if row.pending else ""),
        )
    console.print(table)
    for row in rows:
        if row.loads_in:
            print_line(console, f"{escape(row.artifact)}: {escape(row.loads_in)}")
    for row in rows:
        if row.pending:
            why = escape(row.pending)
            print_line(console, f"[yellow]{escape(row.artifact)}[/] is only prepared: {why}")
    if rows:
        print_line(console, f"all go to {escape(str(Path(rows[0].file).parent))}")
    print_line(console, "each is validated against eager; what is wrong goes to rejected/")


_ROOMY_WIDTH = 110  # columns: with less, what a target makes would stand below itself in thin lines


def show_targets(rows: Sequence[tuple[Target, Readiness]]) -> None:
    """Every format: ready or not, why not, and the line that makes it so."""
    console = result_console()
    packages = [package_of(target) for target, _ in rows]
    whose = ("from",) if any(packages) else ()
    columns = ("target", "ready", "makes", "precisions", "version or what is missing", *whose)
    cells = []
    for (target, readiness), package in zip(rows, packages, strict=True):
        mark = "[green]yes[/]" if readiness.ready else "[red]no[/]"
        told = readiness.version or f"{readiness.reason}: {readiness.mend}"
        precisions = " ".join(map(str, target.MADE_FROM))
        texts = (target.NAME, mark, escape(target.SUMMARY), precisions, escape(told))
        cells.append(dict(zip(columns, (*texts, escape(package or "modelc")), strict=False)))
    less = ("makes",) if console.width < _ROOMY_WIDTH else ()
    console.print(fit_table(console, columns, cells, less=less))


def show_inspection(inspection: Inspection, size: int, lineage: Sequence[tuple[str, str]]) -> None:
    """What an artifact says of itself, and what its manifest says of it."""
    console = result_console()
    facts = new_table("", "")
    facts.show_header = False
    facts.add_row("format", inspection.target)
    facts.add_row("size", size_text(size))
    for key, value in inspection.facts.items():
        facts.add_row(key, escape(value))
    facts.add_row("weights", escape(_counts_text(inspection.weights)))
    facts.add_row("operators", escape(_counts_text(inspection.operators, limit=12)))
    for key, value in inspection.metadata.items():
        name = key.removeprefix("modelc.")  # what ONNX has before keys of modelc's
        whole = console.width >= _WHOLE_DIGEST_WIDTH or not _DIGEST.fullmatch(value)
        shown = value if whole else f"{value[:12]}…"
        facts.add_row(escape(_DIGESTS.get(name, name)), escape(shown))
    for key, value in lineage:
        facts.add_row(escape(key), escape(value))
    console.print(facts)
    ports = new_table("", "name", "dtype", "dims")
    for kind, infos in (("input", inspection.inputs), ("output", inspection.outputs)):
        for info in infos:
            ports.add_row(kind, escape(info.name), escape(info.dtype), escape(_dims_text(info)))
    console.print(ports)


def show_checkpoint(contents: CheckpointContents, path: Path) -> None:
    """The sets of weights in a checkpoint, and how far they are from one another."""
    console = result_console()
    print_line(console, escape(f"{path}: {contents.kind}, {size_text(contents.size)}"))
    table = new_table("weights key", "tensors", "parameters", "difference")
    for one in contents.sets:
        told = [f"{percent_text(share)} from {key}" for key, share in one.differs.items()]
        cells = (one.key, f"{one.tensors:,}", f"{one.parameters:,}", ", ".join(told) or "-")
        table.add_row(*map(escape, cells))
    console.print(table)
    if len(contents.sets) > 1:
        print_line(
            console, "export takes the one that fits the module, or that of --weights-key KEY"
        )


# What a model says of its origin by digest, beside what the manifest says of it by path.
_DIGESTS = {"checkpoint": "checkpoint sha256", "parent": "parent sha256"}


_DIGEST = re.compile("[0-9a-f]{64}")
_WHOLE_DIGEST_WIDTH = 90  # columns: with less, a digest does not fit on a line


def _dims_text(info: TensorInfo) -> str:
    return f"[{', '.join(map(readable_dim, info.dims))}]" if info.dims else ""


def _counts_text(counts: object, limit: int = 8) -> str:
    pairs = sorted(dict(counts).items(), key=lambda item: -item[1])  # type: ignore[call-overload]  # a mapping
    text = ", ".join(f"{name} {count:,}" for name, count in pairs[:limit])
    return f"{text}, … ({len(pairs)} kinds)" if len(pairs) > limit else text


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
