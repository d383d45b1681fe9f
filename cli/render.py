"""Render plans, targets, inspections, verdicts on single files, and verifications."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from ..checkpoints.weight_sets import percent_text
from ..converters.registry import package_of
from ..core.contract import EAGER, Inspection, Readiness, Target
from ..core.installation import readiness_text
from ..core.part_records import PARTS_FILE, WHOLE
from ..core.records import size_text
from ..core.segments import Segment, SegmentPlan
from ..core.verdict import OutputVerdict, Verdict
from ..pipeline.inspection import CheckpointContents
from ..pipeline.order import Order
from ..pipeline.parts.joined_manifest import rename_step
from ..pipeline.parts.parts_order import PartsOrder
from ..pipeline.plan import Step
from ..pipeline.provenance.artifact_checks import (
    CheckOutcome,
    FolderVerification,
    ProvenanceCheck,
    Verification,
)
from ..reports.result_rows import Outcome, sensitivity_lines, verdict_outcome
from ..reports.text_format import count_text, figure_text, readable_dim
from ..reports.token_rows import token_lines
from .console import (
    STATE_MARKS,
    fit_table,
    new_table,
    print_line,
    ready_mark,
    result_console,
)

if TYPE_CHECKING:
    from rich.console import Console


def show_verdict(verdict: Verdict) -> None:
    """Show the verdict on one file: one row per output, on its worst feed."""
    console = result_console()
    rows = [_output_row(verdict, name) for name in dict.fromkeys(o.output for o in verdict.outputs)]
    right = ("max abs", "SQNR dB", "cosine", "argmax", "x noise floor", "margin")
    columns = ["output", "worst feed", *right, "verdict"]
    console.print(
        fit_table(
            console,
            columns,
            rows,
            right=right,
            less=("argmax", "cosine", "x noise floor", "max abs"),
        )
    )
    state = STATE_MARKS[verdict_outcome(verdict)]
    reason = f": {escape(verdict.reason)}" if verdict.reason else ""
    feeds = count_text(len(verdict.feeds), "feed")
    within = f" within {tolerance_text(verdict)}" if verdict.passed else ""
    print_line(console, f"{escape(verdict.artifact)} {state} on {feeds}{within}{reason}")
    if verdict.domain is not None:
        print_line(console, f"domain: {escape(verdict.domain.describe())}")
    for line in (*sensitivity_lines([verdict]), *token_lines([verdict])):
        print_line(console, escape(line))
    for note in verdict.notes:
        print_line(console, f"  [yellow]{escape(note)}[/]")


def _output_row(verdict: Verdict, name: str) -> dict[str, str]:
    """Return the row of one output on its worst feed."""
    found = [output for output in verdict.outputs if output.output == name]
    rows = [output for output in found if not output.loose]
    counted = [output for output in rows if not output.is_excused]
    worst = min(counted or rows or found, key=_worst_first_key)
    known = worst.sqnr if worst.is_floating or not worst.passed else None  # integers have none
    sqnr = "exact" if worst.exact else figure_text(known, ".1f")
    mark = STATE_MARKS[Outcome.PASSED if all(o.passed for o in rows) else Outcome.REJECTED]
    return {
        "output": escape(name),
        "worst feed": escape(worst.feed),
        "max abs": figure_text(worst.max_abs),
        "SQNR dB": f"{sqnr} (excused)" if worst.is_excused and worst.is_floating else sqnr,
        "cosine": figure_text(worst.cosine, ".6f"),
        "argmax": figure_text(worst.argmax_agreement, ".2%"),
        "x noise floor": figure_text(worst.times_floor, ".2f"),
        "margin": "" if worst.headroom is None else f"{worst.headroom:+.0f} dB",
        "verdict": mark if rows else "[dim]not judged[/]",
    }


def _worst_first_key(output: OutputVerdict) -> tuple[bool, float, float, float]:
    """Sort wrong outputs first, then by margin, SQNR and the largest error."""
    room = math.inf if output.headroom is None else output.headroom
    sqnr = math.inf if output.sqnr is None else output.sqnr
    return output.passed, room, sqnr, -(output.max_abs or 0.0)


def tolerance_text(verdict: Verdict) -> str:
    """Format the limits that the verdict applied."""
    limit = verdict.tolerance
    table = f"atol {limit.atol:g}, rtol {limit.rtol:g}, SQNR {limit.min_sqnr:g} dB"
    floats = [o for o in verdict.outputs if o.headroom is not None]
    by_floor = [o for o in floats if o.times_floor is not None]
    if limit.floor_factor is None or not by_floor:
        return table
    floor = f"{limit.floor_factor:g} times the noise floor"
    return floor if len(by_floor) == len(floats) else f"{floor} (outputs without one: {table})"


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One step of a plan, as text."""

    artifact: str
    asked: bool
    made_from: str
    captures: tuple[str, ...]
    pending: str
    file: str
    loads_in: str = ""


def plan_rows(
    steps: Sequence[Step], order: Order, parts: PartsOrder | None = None
) -> tuple[PlanRow, ...]:
    """Return the steps of a plan as rows; with `parts`, those of each part."""
    if parts is not None:
        return tuple(_parts_rows(steps, order, parts))
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


def _parts_rows(steps: Sequence[Step], order: Order, parts: PartsOrder) -> Iterator[PlanRow]:
    """Yield the steps of each part, then the verdicts on all parts together."""
    for part in parts.methods:
        for row in plan_rows(steps, replace(order, out=order.out / part)):
            parent = row.made_from if row.made_from == EAGER else rename_step(part, row.made_from)
            yield replace(row, artifact=rename_step(part, row.artifact), made_from=parent)
    for step in steps:
        if step.asked:
            yield PlanRow(
                artifact=f"{WHOLE}/{step.name}",
                asked=True,
                made_from=", ".join(parts.methods),
                captures=(parts.compose,),
                pending="",
                file=str(order.out / PARTS_FILE),
            )


def show_plan(rows: Sequence[PlanRow]) -> None:
    """Show the steps as a table."""
    console = result_console()
    table = new_table("step", "artifact", "from", "method", "file")
    for number, row in enumerate(rows, start=1):
        table.add_row(str(number), *plan_cells(row))
    console.print(table)
    for row in rows:
        if row.loads_in:
            print_line(console, f"{escape(row.artifact)}: {escape(row.loads_in)}")
        if row.pending:
            print_line(
                console, f"[yellow]{escape(row.artifact)}[/]: pending: {escape(row.pending)}"
            )
    if rows:
        print_line(console, f"output folder: {escape(str(Path(rows[0].file).parent))}")


def plan_cells(row: PlanRow) -> tuple[str, ...]:
    """Return artifact, parent, method and file."""
    needed = "" if row.asked else " [dim](intermediate)[/]"
    return (
        escape(row.artifact) + needed,
        escape(row.made_from),
        ", ".join(row.captures) or "-",
        escape(Path(row.file).name) + (" [yellow](pending)[/]" if row.pending else ""),
    )


_WIDE_ENOUGH = 110  # columns, for the summaries of the targets


def show_targets(rows: Sequence[tuple[Target, Readiness]]) -> None:
    """Show every target: whether it is ready, its version, or the reason and the fix."""
    console = result_console()
    packages = [package_of(target) for target, _ in rows]
    whose = ("from",) if any(packages) else ()
    columns = ("target", "ready", "output", "precisions", "version, or reason and fix", *whose)
    cells = []
    for (target, readiness), package in zip(rows, packages, strict=True):
        mark = ready_mark(ready=readiness.ready, builds=readiness.builds)
        detail = readiness_text(readiness)
        detail += "" if readiness.ready else f": {readiness.mend}"
        precisions = " ".join(map(str, target.MADE_FROM))
        texts = (target.NAME, mark, escape(target.SUMMARY), precisions, escape(detail))
        cells.append(dict(zip(columns, (*texts, escape(package or "modelc")), strict=False)))
    less = ("output",) if console.width < _WIDE_ENOUGH else ()
    console.print(fit_table(console, columns, cells, less=less))


def show_inspection(inspection: Inspection, size: int, rows: Sequence[tuple[str, str]]) -> None:
    """Show what an artifact contains, and further rows: its metadata, its lineage."""
    console = result_console()
    shown = [("format", inspection.target), ("size", size_text(size)), *inspection.facts.items()]
    if inspection.weights:
        shown.append(("weights", _counts_text(inspection.weights)))
    shown.append(("operators", _counts_text(inspection.operators, limit=12)))
    for key, value in inspection.metadata.items():
        name = key.removeprefix("modelc.")  # the prefix of modelc's keys in ONNX metadata
        whole = console.width >= _WHOLE_DIGEST_WIDTH or not _DIGEST.fullmatch(value)
        most = _MOST_METADATA if whole else 12
        text = f"{value[:most]}…" if len(value) > most else value
        shown.append((_DIGESTS.get(name, name), text))
    facts = new_table("", "")
    facts.show_header = False
    width = console.width - max(len(key) for key, _ in (*shown, *rows)) - _FACT_PADDING
    for key, value in (*shown, *rows):
        for number, line in enumerate(_break_at_commas(value, width)):
            facts.add_row("" if number else escape(key), escape(line))
    console.print(facts)
    ports = new_table("", "name", "dtype", "dims")
    for kind, infos in (("input", inspection.inputs), ("output", inspection.outputs)):
        for info in infos:
            dims = f"[{', '.join(map(readable_dim, info.dims))}]" if info.dims else ""
            ports.add_row(kind, *map(escape, (info.name, info.dtype, dims)))
    console.print(ports)


def show_checkpoint(contents: CheckpointContents, path: str) -> None:
    """Show the sets of weights in a checkpoint, and how much they differ."""
    console = result_console()
    print_line(console, escape(f"{path}: {contents.kind}, {size_text(contents.size)}"))
    table = new_table("weights key", "tensors", "parameters", "difference")
    for one in contents.sets:
        differences = [f"{percent_text(share)} from {key}" for key, share in one.differs.items()]
        cells = (one.key, f"{one.tensors:,}", f"{one.parameters:,}", ", ".join(differences) or "-")
        table.add_row(*map(escape, cells))
    console.print(table)
    if len(contents.sets) > 1:
        print_line(console, "select one with --weights-key; default: the one that fits the module")


# Digests in the metadata of the model; the lineage of the manifest has the paths.
_DIGESTS = {"checkpoint": "checkpoint sha256", "parent": "parent sha256"}


_DIGEST = re.compile("[0-9a-f]{64}")
_WHOLE_DIGEST_WIDTH = 90  # columns that a line with a whole digest needs
_MOST_METADATA = 240  # characters of a value that the terminal shows; --json has all of it
_FACT_PADDING = 4  # columns around the two cells of a row


def _break_at_commas(text: str, width: int) -> list[str]:
    """Split the text into lines of this width, if possible only between its parts."""
    lines = [""]
    for part in re.split(r"(?<=,)", text):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part if lines[-1] else part.lstrip()
    return lines


def _counts_text(counts: object, limit: int = 8) -> str:
    pairs = sorted(dict(counts).items(), key=lambda item: -item[1])  # type: ignore[call-overload]  # a mapping
    text = ", ".join(f"{name} {count:,}" for name, count in pairs[:limit])
    return f"{text}, … ({len(pairs)} kinds)" if len(pairs) > limit else text


_CHECK_NAMES = {
    CheckOutcome.HOLDS: ("ok", "green"),
    CheckOutcome.FAILED: ("failed", "red"),
    CheckOutcome.LACKING: ("missing", "yellow"),
    CheckOutcome.UNCHECKED: ("unchecked", "dim"),
}
_CHECK_MARKS = {kind: f"[{style}]{name}[/]" for kind, (name, style) in _CHECK_NAMES.items()}
_REPORTED = tuple(CheckOutcome)[1:]  # outcomes that get a line each, the worst first
_VERIFY_COLUMNS = ("form", "files", "inside", "chain", "verdict", "runtimes", "seal", "signature")


def show_verification(found: Verification, folder: str, *, quiet: bool = False) -> None:
    """Show the checks of each model and of the run, then their counts."""
    console = result_console()
    for model in found.models:
        _show_verified_model(console, model, quiet=quiet)
    _show_check_lines(console, found.run, "", quiet=quiet)
    checks = [check for model in found.models for check in model.checks] + list(found.run)
    found_counts = Counter(check.found for check in checks)
    counts = ", ".join(f"{found_counts[kind]} {name}" for kind, (name, _) in _CHECK_NAMES.items())
    print_line(console, f"{counts} · {escape(folder)}")
    if not quiet:
        print_line(console, "[dim]no model was run; modelc validate repeats the verdicts[/]")


def _show_verified_model(console: Console, model: FolderVerification, *, quiet: bool) -> None:
    if model.name:
        print_line(console, f"[bold]{escape(model.name)}[/]")
    columns = [one for one in _VERIFY_COLUMNS if any(check.what == one for check in model.checks)]
    table = new_table("", *columns)
    for name in dict.fromkeys(check.of for check in model.checks):
        table.add_row(escape(name), *(_worst_mark(model.checks, name, one) for one in columns))
    console.print(table)
    _show_check_lines(console, model.checks, "  ", quiet=quiet)


def _worst_mark(checks: Sequence[ProvenanceCheck], name: str, what: str) -> str:
    """Return the worst outcome of one check of one artifact; empty if it does not apply."""
    found = [check.found for check in checks if (check.of, check.what) == (name, what)]
    kinds = (*_REPORTED, CheckOutcome.HOLDS)
    return next((_CHECK_MARKS[kind] for kind in kinds if kind in found), "")


def _show_check_lines(
    console: Console, checks: Sequence[ProvenanceCheck], indent: str, *, quiet: bool
) -> None:
    """Show a line for each check that is not ok; if `quiet`, only for those that failed."""
    for kind in _REPORTED[:1] if quiet else _REPORTED:
        for check in checks:
            if check.found is kind and check.detail:
                text = f"{check.of}, {check.what}: {check.detail}"
                print_line(console, f"{indent}{_CHECK_MARKS[kind]} {escape(text)}")


_MOST_OPERATORS = 6  # of one segment


def show_segments(plan: SegmentPlan) -> None:
    """Show each segment with its operators and its share of the work, and what stays in torch."""
    console = result_console()
    table = new_table("segment", "runs in", "nodes", "work", "operators", right=("nodes", "work"))
    for number, one in enumerate(plan.segments, start=1):
        table.add_row(str(number), *_segment_cells(one, plan.rest))
    console.print(table)
    print_line(
        console,
        f"{percent_text(plan.share)} of the {plan.work} in TensorRT, engines: {plan.engines}, "
        f"switches: {plan.switches}, --min-block-size {plan.min_block_size}, by {plan.source}",
    )
    _show_left_out(console, plan)
    if plan.uncertain:
        operators = _operators_text(plan.uncertain)
        print_line(console, f"[yellow]may be rejected when an engine is built[/]: {operators}")
    if plan.data_dependent:
        print_line(
            console, f"output sizes depend on the data: {_operators_text(plan.data_dependent)}"
        )


def _segment_cells(one: Segment, rest: str) -> tuple[str, str, str, str]:
    names = sorted(one.operators.items(), key=lambda pair: -pair[1])
    more = f", and {len(names) - _MOST_OPERATORS} more" if len(names) > _MOST_OPERATORS else ""
    operators = _operators_text(dict(names[:_MOST_OPERATORS])) + more
    place = "[green]TensorRT[/]" if one.engine else f"[yellow]{rest}[/]"
    return place, str(one.nodes), percent_text(one.share), operators


def _show_left_out(console: Console, plan: SegmentPlan) -> None:
    for one in plan.left_out:
        where = f" in {one.module}" if one.module else ""
        detail = f" ({one.detail})" if one.detail else ""
        text = f"{one.count} {one.operator}{where}: {one.reason}{detail}"
        print_line(console, f"  [yellow]in {plan.rest}[/]: {escape(text)}")


def _operators_text(counts: Mapping[str, int]) -> str:
    return escape(", ".join(f"{count} {name}" for name, count in counts.items()))
