"""Renders a manifest: artifacts, attempts, reasons, warnings and pending steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from rich.markup import escape

from ..core.kinds import TRACES, Precision
from ..core.manifest import Failure, Manifest, Pending
from ..core.records import Artifact, CalibrationRecord, Coverage, Latency
from ..core.verdict import State, Verdict
from ..pipeline.size_probe import describe_narrowed_values
from ..pipeline.trial_choice import CHOICE_RULE
from ..reports.result_rows import domain_lines, sensitivity_lines, sqnr_text
from ..reports.summary import list_notes, list_sample_findings, list_shared_warnings, random_warning
from ..reports.text_format import count_text, figure_text, has_size_symbols, size_text
from .console import STATE_MARKS, fit_table, new_table, print_line, print_lines, result_console
from .render_accuracy import show_accuracy, show_tradeoffs

if TYPE_CHECKING:
    from rich.console import Console

_OPTIONAL_COLUMNS = (
    "max abs",
    "seconds",
    "made by",
    "size",
)  # columns that go first where not all fit


def show_manifest(manifest: Manifest, out: str) -> None:
    """The verdict table of the last run, the reasons of what did not pass, where the record is."""
    console = result_console()
    shown = artifacts_to_show(manifest)
    rows = [_artifact_row(artifact, manifest.verdict_of(artifact.name)) for artifact in shown]
    waiting = [pending for pending in manifest.steps_pending if pending.step in manifest.steps]
    for step, mark in (
        *((failure.step, _failure_mark(failure)) for failure in manifest.failures),
        *((pending.step, "[yellow]pending[/]") for pending in waiting),
    ):
        rows.append({"format": escape(step), "verdict": mark})
    right = ("size", "max abs", "SQNR dB", "headroom", "ms (fp32)", "seconds")
    console.print(
        fit_table(console, _columns_in_use(shown), rows, right=right, less=_OPTIONAL_COLUMNS)
    )
    print_lines(console, map(escape, domain_lines(shown, manifest.signature)))
    print_lines(console, map(escape, describe_narrowed_values(shown, manifest.signature)))
    print_lines(console, map(escape, sensitivity_lines(manifest.verdict_of(a.name) for a in shown)))
    show_accuracy(console, shown)
    for artifact in shown:
        _show_attempts(console, artifact)
        show_tradeoffs(console, artifact)
    print_lines(console, (*sample_finding_lines(shown), *calibration_lines(shown)))
    print_lines(console, size_increase_lines(manifest, shown))
    for artifact in shown:
        show_reason(console, artifact, manifest.verdict_of(artifact.name))
        show_guilty_layer(console, artifact, manifest, out)
    print_lines(console, (*note_lines(manifest, shown), *trace_warning_lines(manifest, shown)))
    for failure in manifest.failures:
        print_line(console, f"[red]{escape(failure.step)}[/]: {escape(failure.message)}")
        print_line(console, f"  [dim]hint: {escape(_failure_hint(failure, out))}[/]")
    for pending in waiting:
        show_pending(console, pending)
    for command in dict.fromkeys(pending.command for pending in waiting):
        print_line(
            console, f"finish it on a GPU host: [bold]{escape(f'{command} {quote(out)}')}[/]"
        )
    print_line(console, f"{_count_text(manifest, shown)} · {escape(out)}/manifest.json")


def _failure_hint(failure: Failure, out: str) -> str:
    """The hint; where it is to read the log, with the log's path."""
    log = Path(out) / "logs" / f"{failure.step}.log"
    if failure.full_hint.names_log and log.is_file():
        return f"{failure.hint}: {log}"
    return failure.hint


def _count_text(manifest: Manifest, shown: Sequence[Artifact]) -> str:
    """How many of the last run ended in which way; what could not be judged is not refused."""
    verdicts = [manifest.verdict_of(artifact.name) for artifact in shown]
    states = Counter(State.ERROR if v is None else v.state for v in verdicts)
    parts = [f"{states[State.PASSED]} proven", f"{states[State.FAILED]} refused"]
    rejected = sum(_is_rejection(failure) for failure in manifest.failures)
    parts[1] = f"{states[State.FAILED] + rejected} refused"
    errors = states[State.ERROR] + len(manifest.failures) - rejected
    parts += [f"{errors} not judged"] if errors else []
    parts += [f"{len(manifest.steps_pending)} pending"] if manifest.steps_pending else []
    return ", ".join(parts)


def _is_rejection(failure: Failure) -> bool:
    """Whether no artifact was made because it would hold in a part of the domain only."""
    return failure.exit_code == 1 and not failure.orphan_of


def _failure_mark(failure: Failure) -> str:
    return STATE_MARKS[State.FAILED] if _is_rejection(failure) else STATE_MARKS[State.ERROR]


def _columns_in_use(shown: Sequence[Artifact]) -> list[str]:
    """The columns that any artifact has something in."""
    columns = ["format", "precision", "made by", "size", "max abs", "SQNR dB", "headroom"]
    if any(artifact.latency for artifact in shown):
        columns.append("ms (fp32)")
    if any(artifact.coverage for artifact in shown):
        columns.append("computes in")
    return [*columns, "verdict", "seconds"]


def _show_attempts(console: Console, artifact: Artifact) -> None:
    """What each quantizer gave, where several were tried."""
    tried = artifact.attempts
    if len(tried) <= 1 or artifact.calibration is None:
        return
    table = new_table(
        f"{escape(artifact.name)}: tried", "SQNR dB", "ms (fp32)", "size", "seconds", "outcome",
        right=("SQNR dB", "ms (fp32)", "size", "seconds"),
    )  # fmt: skip
    for attempt in tried:
        kept = attempt.capture == artifact.capture
        why = f": {attempt.reason}" if attempt.reason else ""
        table.add_row(
            escape(attempt.capture),
            figure_text(attempt.sqnr, ".1f"),
            latency_text(attempt.latency),
            "" if attempt.size is None else size_text(attempt.size),
            f"{attempt.seconds:.1f}",
            "[green]kept[/]"
            if kept and attempt.outcome == "passed"
            else escape(f"{attempt.outcome}{why}"),
        )
    console.print(table)
    if artifact.capture and not artifact.rejected:
        print_line(console, f"  [dim]{escape(artifact.capture)} is kept, {CHOICE_RULE}[/]")


def show_pending(console: Console, pending: Pending) -> None:
    """Why it is not built, and what is known of it."""
    print_line(
        console, f"[yellow]{escape(pending.step)}[/]: not built here: {escape(pending.reason)}"
    )
    for warning in pending.warnings:
        print_line(console, f"  [yellow]{escape(warning)}[/]")
    if pending.memory:
        size = size_text(pending.memory)
        print_line(console, f"  [dim]it needs about {size} of device memory (an estimate)[/]")


def artifacts_to_show(manifest: Manifest) -> list[Artifact]:
    """The last run's artifacts; what was there before is not what a failed step gave."""
    by_name = {artifact.name: artifact for artifact in manifest.artifacts}
    broken = {failure.step for failure in manifest.failures}
    steps = [step for step in manifest.steps if step not in broken]
    found = (by_name.get(f"rejected/{step}") or by_name.get(step) for step in steps)
    return [artifact for artifact in found if artifact is not None]


def _artifact_row(artifact: Artifact, verdict: Verdict | None) -> dict[str, str]:
    return {
        "format": escape(artifact.target),
        "precision": str(artifact.precision),
        "made by": escape(artifact.capture or ""),
        "size": size_text(artifact.size),
        "max abs": figure_text(verdict.max_abs) if verdict else "",
        "SQNR dB": sqnr_text(verdict) if verdict else "",
        "headroom": headroom_text(verdict),
        "ms (fp32)": latency_text(artifact.latency),
        "computes in": escape(coverage_text(artifact.coverage)),
        "verdict": STATE_MARKS[verdict.state] if verdict else "not judged",
        "seconds": f"{artifact.seconds:.1f}",
    }


def show_reason(console: Console, artifact: Artifact, verdict: Verdict | None) -> None:
    """Why it did not pass, and where it is."""
    if verdict is None:
        return
    if not verdict.passed:
        whole = not console.is_terminal  # piped, a reason stays one line
        texts = [one.text for one in verdict.reasons] or [verdict.state]
        first, *more = [verdict.reason] if whole else texts
        print_line(console, f"[red]{escape(artifact.name)}[/]: {escape(first)}")
        for part in more:
            print_line(console, f"  {escape(part)}")
    if artifact.rejected:
        print_line(
            console, f"  [dim]it is in {escape(artifact.files[0].name)}, not under its name[/]"
        )


def show_guilty_layer(console: Console, artifact: Artifact, manifest: Manifest, out: str) -> None:
    """The layer that a refused artifact goes wrong in, and the command that says more."""
    from ..pipeline.debug.rejection import describe_guilty

    found = next((one for one in manifest.localisations if one.artifact == artifact.name), None)
    if found is None or not found.guilty or not artifact.rejected:
        return
    command = f"modelc debug {quote(f'{out}/{artifact.files[0].name}')}"
    print_line(console, f"  [bold]{escape(describe_guilty(found))}[/]")
    print_line(console, f"  [dim]more: {escape(command)}[/]")


def latency_text(latency: Latency | None) -> str:
    """Milliseconds, with the FP32 parent's in brackets."""
    return "" if latency is None else f"{latency.milliseconds:.2f} ({latency.parent:.2f})"


def coverage_text(coverage: Coverage | None) -> str:
    """Each dtype with its layers and its share of the work, the largest share first."""
    if coverage is None:
        return ""
    dtypes = sorted(coverage.layers, key=lambda dtype: -coverage.share.get(dtype, 0.0))
    return ", ".join(
        f"{dtype} {coverage.layers[dtype]} ({coverage.share.get(dtype, 0.0):.0%})"
        for dtype in dtypes
    )


def headroom_text(verdict: Verdict | None) -> str:
    """How far the worst output on the worst feed is from its nearest limit, in dB."""
    room = None if verdict is None else verdict.headroom
    return "" if room is None else f"{room:+.0f} dB"


_NOTES_SHOWN = 8  # shown of each artifact
_TRACE_LINES_SHOWN = 3  # warnings of the tracer that are shown
_TRACER_KIND = "TracerWarning"
_WARNING_STYLE = "yellow"


def lines_of_warnings(manifest: Manifest, shown: Sequence[Artifact]) -> list[str]:
    """The warnings alone: what calibrated them, what was found in the samples, the notes."""
    calibrated = calibration_lines(shown, warnings=True)
    larger = size_increase_lines(manifest, shown)
    return [*sample_finding_lines(shown), *calibrated, *larger, *note_lines(manifest, shown)]


def sample_finding_lines(shown: Sequence[Artifact]) -> Iterator[str]:
    """What was found in the calibration samples."""
    for finding in list_sample_findings(shown):
        yield _markup_line(_WARNING_STYLE, finding)


def size_increase_lines(manifest: Manifest, shown: Sequence[Artifact]) -> Iterator[str]:
    """Which quantized artifacts are larger than the FP32 one of their format."""
    plain = {a.target: a for a in manifest.artifacts if a.precision is Precision.FP32}
    for one in shown:
        other = plain.get(one.target)
        if one.precision is Precision.INT8 and other is not None and one.size > other.size:
            sizes = f"{size_text(one.size)} and {size_text(other.size)}"
            why = "size counts last where a quantizer is chosen"
            yield _markup_line(
                _WARNING_STYLE, f"{one.name}: larger than {other.name}: {sizes}; {why}"
            )


def calibration_lines(shown: Sequence[Artifact], *, warnings: bool = False) -> Iterator[str]:
    """What quantized artifacts were calibrated with and judged on, alike ones together.

    With `warnings` only what a reader should be warned of.
    """
    owners: dict[tuple[str, str], list[str]] = {}
    for artifact in shown:
        if artifact.calibration is not None:
            told = _calibration_line(artifact.calibration)
            owners.setdefault(told, []).append(artifact.name)
    for (style, text), names in owners.items():
        if style == _WARNING_STYLE or not warnings:
            yield _markup_line(style, f"{', '.join(names)}: {text}")


def _calibration_line(record: CalibrationRecord) -> tuple[str, str]:
    """How to show it, and what to say."""
    warning = random_warning(record)
    if warning:
        return _WARNING_STYLE, warning
    others = count_text(record.held_out, "other")
    text = f"calibrated with {record.used} of {record.found} samples ({record.selection})"
    return "dim", f"{text}, judged on {others}"


def note_lines(manifest: Manifest, shown: Sequence[Artifact]) -> Iterator[str]:
    """The notes, each once with all artifacts that it is of; then what is of all of them.

    A note in torch's own symbols is for readers of the manifest.
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
    """What the tracer said of the user's lines, but for values and sizes: these are judged."""
    traced = any(artifact.capture in TRACES for artifact in shown)
    told = [w for w in manifest.warned if traced and w.kind == _TRACER_KIND and not w.converts]
    for one in told[:_TRACE_LINES_SHOWN]:
        yield _markup_line(_WARNING_STYLE, f"{one.file}:{one.line}: {one.text}")
    if len(told) > _TRACE_LINES_SHOWN:
        yield _markup_line(
            "dim", f"{len(told) - _TRACE_LINES_SHOWN} more warnings are in the manifest"
        )


def _markup_line(style: str, text: str) -> str:
    return f"  [{style}]{escape(text)}[/]"
