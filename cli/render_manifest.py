"""Render a manifest: artifacts, attempts, reasons, warnings and pending steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from rich.markup import escape

from ..core.kinds import QUANTIZED, TRACES, Precision
from ..core.manifest import Failure, Manifest, Pending
from ..core.records import Artifact, CalibrationRecord, Coverage, Latency, size_text
from ..core.verdict import State, Verdict
from ..reports.result_rows import (
    STATE_OUTCOMES,
    Outcome,
    describe_narrowed_values,
    domain_lines,
    failure_outcome,
    pending_reason,
    sensitivity_lines,
    sqnr_text,
    verdict_outcome,
)
from ..reports.summary import (
    list_notes,
    list_sample_findings,
    list_shared_warnings,
    pipeline_text,
    random_warning,
)
from ..reports.text_format import count_text, figure_text, has_size_symbols
from ..reports.token_rows import token_lines
from .console import STATE_MARKS, fit_table, new_table, print_line, print_lines, result_console
from .render_accuracy import show_accuracy, show_tradeoffs

if TYPE_CHECKING:
    from rich.console import Console

# Dropped in this order on a narrow terminal.
_OPTIONAL_COLUMNS = ("max abs", "seconds", "method", "size", "compute dtype")


def show_manifest(manifest: Manifest, out: str) -> None:
    """Show the verdicts of the last run, the reasons, and the path of the manifest."""
    console = result_console()
    shown = artifacts_to_show(manifest)
    rows = [_artifact_row(artifact, manifest.verdict_of(artifact.name)) for artifact in shown]
    waiting = [pending for pending in manifest.steps_pending if pending.step in manifest.steps]
    for step, mark in (
        *((failure.step, STATE_MARKS[failure_outcome(failure)]) for failure in manifest.failures),
        *((pending.step, STATE_MARKS[Outcome.PENDING]) for pending in waiting),
    ):
        rows.append({"format": escape(step), "verdict": mark})
    right = ("size", "max abs", "SQNR dB", "margin", "ms (fp32)", "seconds")
    console.print(
        fit_table(console, _columns_in_use(shown), rows, right=right, less=_OPTIONAL_COLUMNS)
    )
    print_lines(console, map(escape, domain_lines(shown, manifest.signature)))
    print_lines(console, map(escape, describe_narrowed_values(shown, manifest.signature)))
    print_lines(console, map(escape, sensitivity_lines(manifest.verdict_of(a.name) for a in shown)))
    print_lines(console, map(escape, token_lines(manifest.verdict_of(a.name) for a in shown)))
    show_accuracy(console, shown)
    print_lines(console, [escape(pipeline_text(manifest))] if manifest.pipeline else ())
    for artifact in shown:
        _show_attempts(console, artifact)
        show_tradeoffs(console, artifact)
    print_lines(console, (*sample_finding_lines(shown), *calibration_lines(shown)))
    print_lines(console, size_increase_lines(manifest, shown))
    for artifact in shown:
        show_reason(console, artifact, manifest.verdict_of(artifact.name))
        show_guilty_layer(console, artifact, manifest, out)
    print_lines(console, (*note_lines(manifest, shown), *trace_warning_lines(manifest, shown)))
    hints = [_failure_hint(failure, out) for failure in manifest.failures]
    for number, failure in enumerate(manifest.failures):
        print_line(console, f"[red]{escape(failure.step)}[/]: {escape(failure.message)}")
        if hints[number] not in hints[number + 1 :]:
            print_line(console, f"  [dim]hint: {escape(hints[number])}[/]")
    for pending in waiting:
        show_pending(console, pending)
    for command in dict.fromkeys(pending.command for pending in waiting):
        print_line(console, f"finish on a GPU host: [bold]{escape(f'{command} {quote(out)}')}[/]")
    print_line(console, f"{_count_text(manifest, shown)} · {escape(out)}/manifest.json")


def _failure_hint(failure: Failure, out: str) -> str:
    """Return the hint, with the path of the log if it refers to the log."""
    log = Path(out) / "logs" / f"{failure.step}.log"
    if failure.full_hint.names_log and log.is_file():
        return f"{failure.hint}: {log}"
    return failure.hint


def _count_text(manifest: Manifest, shown: Sequence[Artifact]) -> str:
    """Count the artifacts and steps of the last run by state."""
    verdicts = [manifest.verdict_of(artifact.name) for artifact in shown]
    states = Counter(map(verdict_outcome, verdicts))
    states.update(map(failure_outcome, manifest.failures))
    states[Outcome.PENDING] = len(manifest.steps_pending)
    always = (Outcome.PASSED, Outcome.REJECTED)
    return ", ".join(f"{states[one]} {one}" for one in Outcome if states[one] or one in always)


def _columns_in_use(shown: Sequence[Artifact]) -> list[str]:
    """Return the columns that have a value for at least one artifact."""
    columns = ["format", "precision", "method", "size", "max abs", "SQNR dB", "margin"]
    if any(artifact.latency for artifact in shown):
        columns.append("ms (fp32)")
    if any(artifact.coverage for artifact in shown):
        columns.append("compute dtype")
    return [*columns, "verdict", "seconds"]


def _show_attempts(console: Console, artifact: Artifact) -> None:
    """Show the result of each quantizer, if several were tried."""
    if len(artifact.attempts) <= 1 or artifact.calibration is None:
        return
    table = new_table(
        f"{escape(artifact.name)} by", "SQNR dB", "ms (fp32)", "size", "seconds", "outcome",
        right=("SQNR dB", "ms (fp32)", "size", "seconds"),
    )  # fmt: skip
    for attempt in artifact.attempts:
        passed = attempt.outcome == State.PASSED
        outcome = STATE_OUTCOMES.get(attempt.outcome, attempt.outcome)
        reason = f": {attempt.reason}" if attempt.reason else ""
        table.add_row(
            escape(attempt.label),
            figure_text(attempt.sqnr, ".1f"),
            latency_text(attempt.latency),
            "" if attempt.size is None else size_text(attempt.size),
            f"{attempt.seconds:.1f}",
            "[green]chosen[/]"
            if passed and attempt.capture == artifact.capture
            else escape(f"{outcome}{reason}"),
        )
    console.print(table)
    if artifact.capture and not artifact.rejected:
        from ..pipeline.trial_choice import CHOICE_RULE  # it imports what judges

        print_line(console, f"  [dim]{escape(artifact.capture)} was chosen: {CHOICE_RULE}[/]")


def show_pending(console: Console, pending: Pending) -> None:
    """Show why a step is pending, its warnings and its estimated memory."""
    print_line(
        console, f"[yellow]{escape(pending.step)}[/]: pending: {escape(pending_reason(pending))}"
    )
    for warning in pending.warnings:
        print_line(console, f"  [yellow]{escape(warning)}[/]")
    if pending.memory:
        size = size_text(pending.memory)
        print_line(console, f"  [dim]estimated device memory: {size}[/]")
    if pending.references:
        size = size_text(sum(file.size for file in pending.references))
        text = f"references: {size}; the other host needs neither checkpoint nor model code"
        print_line(console, f"  [dim]{text}[/]")


def artifacts_to_show(manifest: Manifest) -> list[Artifact]:
    """Return the artifacts of the last run, without earlier ones of failed steps."""
    by_name = {artifact.name: artifact for artifact in manifest.artifacts}
    broken = {failure.step for failure in manifest.failures}
    steps = [step for step in manifest.steps if step not in broken]
    found = (by_name.get(f"rejected/{step}") or by_name.get(step) for step in steps)
    return [artifact for artifact in found if artifact is not None]


def _artifact_row(artifact: Artifact, verdict: Verdict | None) -> dict[str, str]:
    return {
        "format": escape(artifact.target),
        "precision": str(artifact.precision),
        "method": escape(artifact.capture or ""),
        "size": size_text(artifact.size),
        "max abs": figure_text(verdict.max_abs) if verdict else "",
        "SQNR dB": sqnr_text(verdict) if verdict else "",
        "margin": margin_text(verdict),
        "ms (fp32)": latency_text(artifact.latency),
        "compute dtype": escape(coverage_text(artifact.coverage)),
        "verdict": STATE_MARKS[verdict_outcome(verdict)],
        "seconds": f"{artifact.seconds:.1f}",
    }


def show_reason(console: Console, artifact: Artifact, verdict: Verdict | None) -> None:
    """Show why an artifact did not pass, and where it was moved."""
    if verdict is None:
        return
    if not verdict.passed:
        texts = [one.text for one in verdict.reasons] or [verdict_outcome(verdict)]
        first, *more = texts if console.is_terminal else [verdict.reason]  # piped: one line
        print_line(console, f"[red]{escape(artifact.name)}[/]: {escape(first)}")
        for part in more:
            print_line(console, f"  {escape(part)}")
    if artifact.rejected:
        print_line(console, f"  [dim]moved to {escape(artifact.files[0].name)}[/]")


def show_guilty_layer(console: Console, artifact: Artifact, manifest: Manifest, out: str) -> None:
    """Show the first wrong layer of a rejected artifact, and the command for details."""
    from ..pipeline.debug.rejection import describe_guilty

    found = next((one for one in manifest.localisations if one.artifact == artifact.name), None)
    if found is None or not found.guilty or not artifact.rejected:
        return
    command = f"modelc debug {quote(f'{out}/{artifact.files[0].name}')}"
    print_line(console, f"  [bold]{escape(describe_guilty(found))}[/]")
    print_line(console, f"  [dim]details: {escape(command)}[/]")


def latency_text(latency: Latency | None) -> str:
    """Format milliseconds, with those of the FP32 parent in brackets."""
    return "" if latency is None else f"{latency.milliseconds:.2f} ({latency.parent:.2f})"


def coverage_text(coverage: Coverage | None) -> str:
    """Format the layers and the share of the work by dtype, the largest share first."""
    if coverage is None:
        return ""
    dtypes = sorted(coverage.layers, key=lambda dtype: -coverage.share.get(dtype, 0.0))
    return ", ".join(
        f"{dtype} {coverage.layers[dtype]} ({coverage.share.get(dtype, 0.0):.0%})"
        for dtype in dtypes
    )


def margin_text(verdict: Verdict | None) -> str:
    """Format the distance of the worst output to its limit, in dB."""
    margin = None if verdict is None else verdict.headroom
    return "" if margin is None else f"{margin:+.0f} dB"


_NOTES_SHOWN = 8  # per artifact
_TRACE_LINES_SHOWN = 3
_TRACER_KIND = "TracerWarning"
_WARNING_STYLE = "yellow"


def lines_of_warnings(manifest: Manifest, shown: Sequence[Artifact]) -> list[str]:
    """Return the warnings: on samples, calibration and sizes, and the notes."""
    calibrated = calibration_lines(shown, warnings=True)
    larger = size_increase_lines(manifest, shown)
    return [*sample_finding_lines(shown), *calibrated, *larger, *note_lines(manifest, shown)]


def sample_finding_lines(shown: Sequence[Artifact]) -> Iterator[str]:
    """Yield the findings in the calibration samples."""
    for finding in list_sample_findings(shown):
        yield _markup_line(_WARNING_STYLE, finding)


def size_increase_lines(manifest: Manifest, shown: Sequence[Artifact]) -> Iterator[str]:
    """Yield a warning for each INT8 artifact that is larger than the FP32 one."""
    plain = {a.target: a for a in manifest.artifacts if a.precision is Precision.FP32}
    for one in shown:
        other = plain.get(one.target)
        if one.precision in QUANTIZED and other is not None and one.size > other.size:
            sizes = f"{size_text(one.size)}, {other.name} {size_text(other.size)}"
            yield _markup_line(_WARNING_STYLE, f"{one.name} is larger than fp32: {sizes}")


def calibration_lines(shown: Sequence[Artifact], *, warnings: bool = False) -> Iterator[str]:
    """Yield the calibration samples of INT8 artifacts, one line for equal ones.

    With `warnings`, only those that need attention.
    """
    owners: dict[tuple[str, str], list[str]] = {}
    for artifact in shown:
        if artifact.calibration is not None:
            line = _calibration_line(artifact.calibration)
            owners.setdefault(line, []).append(artifact.name)
    for (style, text), names in owners.items():
        if style == _WARNING_STYLE or not warnings:
            yield _markup_line(style, f"{', '.join(names)}: {text}")


def _calibration_line(record: CalibrationRecord) -> tuple[str, str]:
    """Return the style and the text."""
    warning = random_warning(record)
    if warning:
        return _WARNING_STYLE, warning
    others = count_text(record.held_out, "other")
    text = f"calibrated with {record.used} of {record.found} samples ({record.selection})"
    return "dim", f"{text}, judged on {others}"


def note_lines(manifest: Manifest, shown: Sequence[Artifact]) -> Iterator[str]:
    """Yield each note once, with the names of its artifacts; then the shared warnings.

    Notes that contain torch's symbols are only in the manifest.
    """
    owners: dict[str, list[str]] = {}
    hidden = 0
    dims = manifest.signature.free_dims
    for artifact in shown:
        notes = list_notes(artifact, manifest)
        clear = [note for note in notes if not has_size_symbols(note, dims)][:_NOTES_SHOWN]
        hidden += len(notes) - len(clear)
        for note in clear:
            owners.setdefault(note, []).append(artifact.name)
    for note, names in owners.items():
        yield _markup_line(_WARNING_STYLE, f"{', '.join(names)}: {note}")
    if hidden:
        yield _markup_line("dim", f"{count_text(hidden, 'more note')} in the manifest")
    for warning in list_shared_warnings(manifest):
        yield _markup_line(_WARNING_STYLE, warning)


def trace_warning_lines(manifest: Manifest, shown: Sequence[Artifact]) -> Iterator[str]:
    """Yield the tracer's warnings, except those on values and sizes, which the verdict covers."""
    traced = any(artifact.capture in TRACES for artifact in shown)
    found = [w for w in manifest.warned if traced and w.kind == _TRACER_KIND and not w.converts]
    for one in found[:_TRACE_LINES_SHOWN]:
        yield _markup_line(_WARNING_STYLE, f"{one.file}:{one.line}: {one.text}")
    if len(found) > _TRACE_LINES_SHOWN:
        more = count_text(len(found) - _TRACE_LINES_SHOWN, "more warning")
        yield _markup_line("dim", f"{more} in the manifest")


def _markup_line(style: str, text: str) -> str:
    return f"  [{style}]{escape(text)}[/]"
