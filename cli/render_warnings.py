"""What a reader should know of artifacts beside their verdicts: lines of markup, each told once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.markup import escape

from ..core.capture import TRACES
from ..core.manifest import Manifest
from ..core.precision import Precision
from ..core.records import Artifact, CalibrationRecord
from ..reports.artifact_warnings import (
    list_notes,
    list_sample_findings,
    list_shared_warnings,
    random_warning,
)
from ..reports.size_text import has_size_symbols
from ..reports.words import count_text, size_text

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
