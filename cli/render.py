"""Turns results into tables on stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..core.contract import EAGER, Inspection, Readiness, Target, TensorInfo
from ..core.manifest import Manifest
from ..core.records import Artifact
from ..core.verdict import State, Verdict
from ..pipeline.order import Order
from ..pipeline.plan import Step

_STATES = {
    State.PASSED: "[green]pass[/]",
    State.FAILED: "[red]FAIL[/]",
    State.ERROR: "[red]error[/]",
}
_KILO = 1000
_WIDE = 200  # what is piped is not cut to 80 columns


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)


def _table(*columns: str, right: Iterable[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _say(console: Console, text: str) -> None:
    """One line of prose: what is piped stays one line."""
    console.print(text, soft_wrap=not console.is_terminal)


def show_json(document: bytes) -> None:
    """One JSON document, as it is."""
    sys.stdout.buffer.write(document)
    sys.stdout.flush()


def show_manifest(manifest: Manifest, out: str) -> None:
    """The verdict table of the last run, the reasons of what did not pass, where the record is."""
    console = _console()
    table = _table(
        "format", "precision", "capture", "size", "max abs", "SQNR dB", "verdict", "seconds",
        right=("size", "max abs", "SQNR dB", "seconds"),
    )  # fmt: skip
    shown = _shown(manifest)
    for artifact in shown:
        table.add_row(*_row(artifact, manifest.verdict_of(artifact.name)))
    for failure in manifest.failures:
        table.add_row(escape(failure.step), "", "", "", "", "", "[red]error[/]", "")
    console.print(table)
    for artifact in shown:
        _explain(console, artifact, manifest.verdict_of(artifact.name))
    for failure in manifest.failures:
        _say(console, f"[red]{escape(failure.step)}[/]: {escape(failure.message)}")
        _say(console, f"  [dim]hint: {escape(failure.hint)}[/]")
    passed = sum(1 for a in shown if (v := manifest.verdict_of(a.name)) and v.passed)
    refused = len(shown) - passed + len(manifest.failures)
    _say(console, f"{passed} proven, {refused} refused · {escape(out)}/manifest.json")


def _shown(manifest: Manifest) -> list[Artifact]:
    """The last run's artifacts; what was there before is not what a failed step gave."""
    by_name = {artifact.name: artifact for artifact in manifest.artifacts}
    broken = {failure.step for failure in manifest.failures}
    steps = [step for step in manifest.steps if step not in broken]
    found = (by_name.get(f"rejected/{step}") or by_name.get(step) for step in steps)
    return [artifact for artifact in found if artifact is not None]


def _row(artifact: Artifact, verdict: Verdict | None) -> Sequence[str]:
    return (
        escape(artifact.target),
        str(artifact.precision),
        artifact.capture or "",
        size_text(artifact.size),
        number_text(verdict.max_abs) if verdict else "",
        sqnr_text(verdict) if verdict else "",
        _STATES[verdict.state] if verdict else "not judged",
        f"{artifact.seconds:.1f}",
    )


def _explain(console: Console, artifact: Artifact, verdict: Verdict | None) -> None:
    """Why it did not pass, and the notes of what did."""
    if verdict is None:
        return
    if not verdict.passed:
        _say(console, f"[red]{escape(artifact.name)}[/]: {escape(verdict.reason)}")
    for note in verdict.notes:
        _say(console, f"  [yellow]{escape(artifact.name)}: {escape(note)}[/]")
    if artifact.rejected:
        _say(console, f"  [dim]it is in {escape(artifact.files[0].name)}, not under its name[/]")


def show_verdict(verdict: Verdict) -> None:
    """The verdict on one file, a row an output."""
    console = _console()
    table = _table(
        "output", "worst feed", "max abs", "SQNR dB", "cosine", "argmax", "verdict",
        right=("max abs", "SQNR dB", "cosine", "argmax"),
    )  # fmt: skip
    for name in dict.fromkeys(output.output for output in verdict.outputs):
        rows = [output for output in verdict.outputs if output.output == name]
        worst = min(
            rows,
            key=lambda o: (
                o.passed,
                o.sqnr if o.sqnr is not None else float("inf"),
                -(o.max_abs or 0),
            ),
        )
        table.add_row(
            escape(name),
            escape(worst.feed),
            number_text(worst.max_abs),
            "exact" if worst.exact else number_text(worst.sqnr, ".1f"),
            number_text(worst.cosine, ".6f"),
            number_text(worst.argmax_agreement, ".2%"),
            "[green]pass[/]" if all(o.passed for o in rows) else "[red]FAIL[/]",
        )
    console.print(table)
    state = _STATES[verdict.state]
    reason = f": {escape(verdict.reason)}" if verdict.reason else ""
    limit = verdict.tolerance
    within = f"atol {limit.atol:g}, rtol {limit.rtol:g}, SQNR {limit.min_sqnr:g} dB"
    feeds = f"{len(verdict.feeds)} feeds"
    _say(console, f"{escape(verdict.artifact)} {state} on {feeds} within {within}{reason}")
    for note in verdict.notes:
        _say(console, f"  [yellow]{escape(note)}[/]")


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One step of a plan, as it is shown."""

    artifact: str
    asked: bool
    made_from: str
    captures: tuple[str, ...]
    file: str


def plan_rows(steps: Sequence[Step], order: Order) -> tuple[PlanRow, ...]:
    """What would be done, in order."""
    origin = EAGER if order.parent is None else str(order.parent)
    return tuple(
        PlanRow(
            artifact=step.name,
            asked=step.asked,
            made_from=step.parent or origin,
            captures=tuple(map(str, step.captures)),
            file=str(order.out / step.file),
        )
        for step in steps
    )


def show_plan(rows: Sequence[PlanRow]) -> None:
    """The steps as a table."""
    console = _console()
    table = _table("step", "artifact", "from", "capture", "file")
    for number, row in enumerate(rows, start=1):
        needed = "" if row.asked else " [dim](needed by others)[/]"
        table.add_row(
            str(number),
            escape(row.artifact) + needed,
            escape(row.made_from),
            ", then ".join(row.captures) or "-",
            escape(row.file),
        )
    console.print(table)
    _say(console, "each is validated against eager; what is wrong goes to rejected/")


def show_targets(rows: Sequence[tuple[Target, Readiness]]) -> None:
    """Every format: ready or not, why not, and the line that makes it so."""
    console = _console()
    table = _table("target", "ready", "makes", "precisions", "version or what is missing")
    for target, readiness in rows:
        mark = "[green]yes[/]" if readiness.ready else "[red]no[/]"
        told = readiness.version or f"{readiness.reason}: {readiness.mend}"
        precisions = " ".join(map(str, target.PRECISIONS))
        table.add_row(target.NAME, mark, escape(target.SUMMARY), precisions, escape(told))
    console.print(table)


def show_inspection(inspection: Inspection, size: int, lineage: Sequence[tuple[str, str]]) -> None:
    """What an artifact says of itself, and what its manifest says of it."""
    console = _console()
    facts = _table("", "")
    facts.show_header = False
    facts.add_row("format", inspection.target)
    facts.add_row("size", size_text(size))
    for key, value in inspection.facts.items():
        facts.add_row(key, escape(value))
    facts.add_row("weights", escape(_counts(inspection.weights)))
    facts.add_row("operators", escape(_counts(inspection.operators, limit=12)))
    for key, value in inspection.metadata.items():
        facts.add_row(escape(key), escape(value))
    for key, value in lineage:
        facts.add_row(escape(key), escape(value))
    console.print(facts)
    ports = _table("", "name", "dtype", "dims")
    for kind, infos in (("input", inspection.inputs), ("output", inspection.outputs)):
        for info in infos:
            ports.add_row(kind, escape(info.name), escape(info.dtype), escape(_dims(info)))
    console.print(ports)


def _dims(info: TensorInfo) -> str:
    return f"[{', '.join(info.dims)}]" if info.dims else ""


def _counts(counts: object, limit: int = 8) -> str:
    pairs = sorted(dict(counts).items(), key=lambda item: -item[1])  # type: ignore[call-overload]  # a mapping
    text = ", ".join(f"{name} {count:,}" for name, count in pairs[:limit])
    return f"{text}, … ({len(pairs)} kinds)" if len(pairs) > limit else text


def size_text(size: int) -> str:
    """Bytes as people read them, in powers of 1000."""
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < _KILO:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _KILO
    return f"{amount:.2f} GB"


def number_text(value: float | None, form: str = ".1e") -> str:
    """A figure, or a dash where it is not defined."""
    return "-" if value is None else format(value, form)


def sqnr_text(verdict: Verdict) -> str:
    """The smallest SQNR, or `exact` where there is no error at all."""
    if verdict.sqnr is not None:
        return f"{verdict.sqnr:.1f}"
    exact = bool(verdict.outputs) and all(output.exact for output in verdict.outputs)
    return "exact" if exact else "-"
