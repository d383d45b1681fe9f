"""Annotations of a run on lines of modelc.toml (gates, models) and of the user's code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ModelcError, Place
from ..core.manifest import Manifest
from ..reports.result_rows import REJECTED_PREFIX, Outcome, make_rows
from ..reports.source_findings import TRACE_WARNING, find_source_lines
from .project_faults import split_faults
from .project_records import ModelOutcome, Regression

ERROR_LEVEL, WARNING_LEVEL = "error", "warning"


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """One annotation; `file` is relative to the project or the working folder, as reported.

    `line` is 0 if unknown.
    """

    level: str
    title: str
    message: str
    file: str = ""
    line: int = 0


def annotate_fault(error: ModelcError) -> tuple[Annotation, ...]:
    """Annotate why a run cannot start: one annotation per fault, on its line of modelc.toml."""
    return tuple(
        _annotate_place(one.place, "modelc", f"{one.text} (hint: {one.hint})")
        for one in split_faults(error)
    )


def annotate_run(
    ended: Sequence[ModelOutcome], regression: Regression | None, places: Mapping[str, Place]
) -> tuple[Annotation, ...]:
    """Annotate the problems of a run, errors first because forges show only the first ones.

    `places` maps each model to its place in modelc.toml.
    """
    found = [note for one in ended for note in _annotate_model(one, places.get(one.name))]
    worse = () if regression is None else regression.worse
    found += [
        _annotate_place(places.get(one.model), f"{one.name}: worse than the base", one.text)
        for one in worse
    ]
    return tuple(sorted(dict.fromkeys(found), key=lambda note: note.level != ERROR_LEVEL))


def _annotate_model(one: ModelOutcome, place: Place | None) -> Iterator[Annotation]:
    if one.error is not None:
        message = f"{one.error.text} (hint: {one.error.hint})"
        yield _annotate_place(one.error.place or place, one.name, message)
    for breach in one.breaches:
        title = f"{one.name}/{breach.artifact}: {breach.gate}"
        yield _annotate_place(breach.told or place, title, breach.message)
    if one.manifest is not None:
        yield from _annotate_rows(one.name, one.manifest, place)
        yield from _annotate_code(one.name, one.manifest)


def _annotate_rows(model: str, manifest: Manifest, place: Place | None) -> Iterator[Annotation]:
    """Yield annotations on artifacts of this run that did not pass."""
    for row in make_rows(manifest):
        name = row.name.removeprefix(REJECTED_PREFIX)
        if name not in manifest.steps or row.outcome is Outcome.PASSED:
            continue
        waits = row.outcome in (Outcome.PENDING, Outcome.SKIPPED)
        level = WARNING_LEVEL if waits else ERROR_LEVEL
        title = f"{model}/{name}: {row.outcome}"
        yield _annotate_place(place, title, row.reason or "no reason was recorded", level=level)


def _annotate_code(model: str, manifest: Manifest) -> Iterator[Annotation]:
    """Yield annotations on lines of the user's code, except accepted ones.

    Warnings of frameworks during capture are omitted, as the verdict covers their effect.
    """
    for one in find_source_lines(manifest):
        if one.file and not one.accepted and one.rule is not TRACE_WARNING:
            level = ERROR_LEVEL if one.level == ERROR_LEVEL else WARNING_LEVEL
            title = f"{model}: {one.rule.summary}"
            yield Annotation(
                level=level, title=title, message=one.text, file=one.file, line=one.line
            )


def _annotate_place(
    place: Place | None, title: str, message: str, *, level: str = ERROR_LEVEL
) -> Annotation:
    """Make an annotation on the line of modelc.toml at `place`, if any."""
    file, line = (place.file, place.line) if place is not None and place.line else ("", 0)
    return Annotation(level=level, title=title, message=message, file=file, line=line)


def path_within(file: str, root: Path, *folders: Path) -> str:
    """Return the path of `file` below `root` with forward slashes; empty if it is outside.

    A relative path is resolved against the first of `folders` that contains it.
    """
    for folder in folders:
        path = (folder / file).resolve()
        if file and path.is_file() and path.is_relative_to(root.resolve()):
            return path.relative_to(root.resolve()).as_posix()
    return ""
