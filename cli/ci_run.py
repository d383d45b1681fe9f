"""`modelc run --ci`: progress as plain lines in groups, annotations, and documents."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TextIO, assert_never

from ..core.errors import ErrorCode, ModelcError, UsageError
from ..core.events import Advanced, Entered, Event, Finished, Noted, Started, Tell
from ..projects.annotations import (
    WARNING_LEVEL,
    Annotation,
    annotate_fault,
    annotate_run,
    path_within,
)
from ..projects.project_records import ModelOutcome, Project
from ..projects.run_record import RunRecord
from .ci_forges import CiJob, Forge, detect_job
from .console import plain_console
from .render_run import show_run
from .streams import lenient_stream


@dataclass(frozen=True, kw_only=True)
class CiRun:
    """A run in a CI job. If stdout has a JSON document, everything else goes to stderr."""

    place: CiJob
    json: bool = False

    def report_start_error(self, error: ModelcError, file: Path, out: Path | None) -> None:
        """Report why a run cannot start: annotations, the summary and the documents.

        Documents are only written with `out`; failure to write one is a warning.
        """
        from ..projects.ci_documents import CI_DOCUMENTS, SUMMARY_DOCUMENT, write_error_document

        self._remark(annotate_fault(error), file.parent)
        self._summarise(SUMMARY_DOCUMENT.render_error(error, self.place.link))
        if out is None:
            return
        for one in CI_DOCUMENTS:
            try:
                self._wrote([write_error_document(error, one, out, link=self.place.link)])
            except UsageError as fault:
                self.report_warning(fault)

    def report_warning(self, fault: ModelcError) -> None:
        """Report an error that does not change the result as a warning."""
        self._remark([Annotation(level=WARNING_LEVEL, title="modelc", message=fault.text)], Path())

    @contextmanager
    def progress(self, out: Path, *, jobs: int) -> Iterator[CiScreen]:
        """Report progress while models run; documents of an earlier run are removed before."""
        from ..projects.ci_documents import clear_documents

        clear_documents(out)
        with self._open_lines() as stream:
            screen = CiScreen(self.place.forge, lambda line: _write_line(line, stream), jobs=jobs)
            try:
                yield screen
            finally:
                screen.close()

    def report_result(
        self, ended: Sequence[ModelOutcome], record: RunRecord, project: Project, out: Path
    ) -> None:
        """Report the result: plain lines, annotations and documents."""
        from ..projects.ci_documents import SUMMARY_DOCUMENT, write_documents

        self._show(ended, record, out)
        notes = annotate_run(ended, record.regression, project.places)
        self._remark(notes, project.folder)
        written = write_documents(record, out, link=self.place.link)
        self._summarise((out / SUMMARY_DOCUMENT.file).read_text(encoding="utf-8"))
        self._wrote(written)

    def _wrote(self, paths: Iterable[Path]) -> None:
        with self._open_lines() as stream:
            for path in paths:
                _write_line(self.place.forge.foreign(f"written: {path}"), stream)

    def _show(self, ended: Sequence[ModelOutcome], record: RunRecord, out: Path) -> None:
        if self.json:
            return
        with plain_console() as (console, lines), self._open_lines() as stream:
            show_run(ended, record, out, console=console)
            for line in lines():
                _write_line(self.place.forge.foreign(line.rstrip()), stream)

    def _remark(self, notes: Iterable[Annotation], folder: Path) -> None:
        with self._open_lines() as stream:
            for note in notes:
                _write_line(self.place.forge.remark(self._place_note(note, folder)), stream)

    def _place_note(self, note: Annotation, folder: Path) -> Annotation:
        """Make the path of an annotation relative to the checkout, or move it to the text."""
        if not note.file:
            return note
        found = path_within(note.file, self.place.root, Path(), folder, self.place.root)
        if found:
            return replace(note, file=found)
        place = f"{note.file}:{note.line}: " if note.line else f"{note.file}: "
        message = note.message if note.message.startswith(note.file) else f"{place}{note.message}"
        return replace(note, file="", line=0, message=message)

    def _summarise(self, text: str) -> None:
        """Append to the job summary; failure to write does not change the result."""
        if self.place.summary is None:
            return
        try:
            with self.place.summary.open("a", encoding="utf-8") as stream:
                stream.write(text)
        except OSError as error:
            text = f"{self.place.summary}: {error.strerror or type(error).__name__}"
            self._remark(
                [Annotation(level=WARNING_LEVEL, title="step summary", message=text)], Path()
            )

    @contextmanager
    def _open_lines(self) -> Iterator[TextIO]:
        """Open a UTF-8 copy of the output stream, whatever the locale of the job."""
        with lenient_stream(os.dup(2 if self.json else 1), "utf-8", closes=True) as stream:
            yield stream


def _write_line(line: str, stream: TextIO) -> None:
    stream.write(f"{line}\n")


def make_ci_run(*, json: bool, quiet: bool) -> CiRun:
    """Make the reporter of the job that this process belongs to.

    Raises:
        UsageError: `--quiet` is given too, which would leave groups without lines.
    """
    if quiet:
        raise UsageError(
            "--quiet has no effect with --ci",
            hint="remove one of them",
            option="quiet",
            code=ErrorCode.NO_EFFECT,
        )
    return CiRun(place=detect_job(), json=json)


_SHARED_GROUP = "models"  # the group of models that run in parallel


class CiScreen:
    """Writes the progress of models to a job log.

    Models that run one at a time have a group each. Parallel models share one group, and every line
    starts with the name of its model.
    """

    def __init__(self, forge: Forge, write: Callable[[str], None], *, jobs: int) -> None:
        self._forge = forge
        self._write = write
        self._together = jobs > 1
        self._open = ""
        self._lock = Lock()

    def of(self, model: str) -> Tell:
        """Return the listener for one model."""

        def tell(event: Event) -> None:
            line = _event_line(event)
            if line:
                with self._lock:
                    self._into(_SHARED_GROUP if self._together else model)
                    named = f"{model}  {line}" if self._together else line
                    self._write(self._forge.foreign(named))

        return tell

    def note(self, event: Event) -> None:
        """Write an event of no model, such as an unreachable cache."""
        line = _event_line(event)
        if line:
            with self._lock:
                self._write(self._forge.foreign(line))

    def close(self) -> None:
        """End the open group."""
        with self._lock:
            self._into("")

    def _into(self, name: str) -> None:
        if name == self._open:
            return
        if self._open:
            self._write(self._forge.end(self._open))
        if name:
            self._write(self._forge.begin(name))
        self._open = name


def _event_line(event: Event) -> str:
    """Format a finished step or a note as a line; empty for other events.

    A failed attempt is marked `miss`, as another follows; the summary has the final outcome.
    """
    match event:
        case Finished():
            mark = "ok  " if event.passed else "miss" if event.attempt else "FAIL"
            detail = f"  {event.detail}" if event.detail else ""
            return f"{mark} {event.step} {event.seconds:.1f} s{detail}"
        case Noted():
            return f"{'warning: ' if event.warning else ''}{event.text}"
        case Started() | Advanced() | Entered():
            return ""
        case _:
            assert_never(event)
