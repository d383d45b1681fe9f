"""Consoles on stdout and stderr: tables, JSON documents, text, and progress."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, assert_never

from rich import box
from rich.console import Console, HighlighterType, JustifyMethod, OverflowMethod
from rich.markup import escape
from rich.progress import (
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from ..core.events import Advanced, Entered, Event, Finished, Noted, Started
from ..core.records import size_text
from ..reports.result_rows import Outcome
from ..reports.text_format import escape_control, escape_control_line, seconds_text
from .streams import lenient_stream

if TYPE_CHECKING:
    from rich.style import Style

STATE_MARKS = {
    Outcome.PASSED: "[green]passed[/]",
    Outcome.REJECTED: "[red]rejected[/]",
    Outcome.FAILED: "[red]failed[/]",
    Outcome.PENDING: "[yellow]pending[/]",
    Outcome.SKIPPED: "[yellow]skipped[/]",
}
_INDENT = 2  # columns
_NAME_COLUMNS = ("model", "artifact", "measure")  # columns that identify a row
_MIN_WIDTH = 20  # columns of text, even on a narrower terminal
_WIDE_CONSOLE = 200  # columns of piped output
_MAX_WIDTH = 10_000  # columns: to measure the full width of a table


class CleanConsole(Console):
    """A console that escapes control characters and line breaks, as names may contain them."""

    def render_str(
        self,
        text: str,
        *,
        style: str | Style = "",
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        emoji: bool | None = None,
        markup: bool | None = None,
        highlight: bool | None = None,
        highlighter: HighlighterType | None = None,
    ) -> Text:
        """Render the text of a line or a cell."""
        return super().render_str(
            escape_control_line(text), style=style, justify=justify, overflow=overflow, emoji=emoji,
            markup=markup, highlight=highlight, highlighter=highlighter,
        )  # fmt: skip


def result_console() -> Console:
    """Return the console on stdout, as wide as the terminal."""
    return CleanConsole(highlight=False, width=None if sys.stdout.isatty() else _WIDE_CONSOLE)


@contextmanager
def plain_console() -> Iterator[tuple[Console, Callable[[], list[str]]]]:
    """Yield a console without colours, and a function that returns the printed lines."""
    with io.StringIO() as stream:
        console = Console(
            file=stream,
            highlight=False,
            width=_WIDE_CONSOLE,
            color_system=None,
            force_terminal=False,
            no_color=True,
        )
        yield console, lambda: stream.getvalue().splitlines()


def show_json_error(errors: Sequence[Mapping[str, str]]) -> None:
    """Add the JSON document of an error, unless the command has added one."""
    if not _documents:
        document = {"error": errors[0], "errors": list(errors)}
        show_json(json.dumps(document, indent=1).encode() + b"\n")


def new_table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table; the columns in `right` are right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def fit_table(
    console: Console,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    *,
    right: Iterable[str] = (),
    less: Sequence[str] = (),
) -> Table:
    """Return a table; on a narrow console, columns are dropped in the order of `less`.

    A missing cell is empty.
    """
    shown = list(columns)
    table = _fill_table(shown, rows, right)
    for column in less:
        if _fits(console, table):
            break
        shown = [name for name in shown if name != column]
        table = _fill_table(shown, rows, right)
    return table


def _fits(console: Console, table: Table) -> bool:
    options = console.options.update(max_width=_MAX_WIDTH)
    return console.measure(table, options=options).maximum <= console.width


def _fill_table(
    columns: Sequence[str], rows: Sequence[Mapping[str, str]], right: Iterable[str]
) -> Table:
    table = new_table(*columns, right=right)
    for row in rows:
        table.add_row(*(row.get(column, "") for column in columns))
    return table


def print_line(console: Console, text: str) -> None:
    """Print one line of text with markup.

    A terminal wraps it and indents the further lines; piped output is never wrapped.
    """
    if not console.is_terminal:
        console.print(text, soft_wrap=True)
        return
    depth = len(text) - len(text.lstrip(" "))
    below = depth + _INDENT
    prose = Text.from_markup(escape_control_line(text.strip(" ")))
    for number, line in enumerate(prose.wrap(console, max(console.width - below, _MIN_WIDTH))):
        line.rstrip()
        console.print(Text(" " * (below if number else depth)) + line, soft_wrap=True)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print each line as `print_line` does."""
    for line in lines:
        print_line(console, line)


def show_reasons_table(
    console: Console, rows: Sequence[Mapping[str, str]], *, right: Iterable[str] = ()
) -> None:
    """Print a table; on a narrow console its last column, `why`, becomes lines below it.

    Each of these lines begins with the names of its row.
    """
    columns = list(rows[0])
    table = _fill_table(columns, rows, right)
    if _fits(console, table):
        console.print(table)
        return
    console.print(_fill_table(columns[:-1], rows, right))
    for row in rows:
        if row["why"]:
            names = filter(None, (row[name] for name in _NAME_COLUMNS if name in row))
            print_line(console, f"{' '.join(names)}: {row['why']}")


_documents: list[bytes] = []  # to be written to stdout when the command ends


def show_json(document: bytes) -> None:
    """Add a JSON object, which is written when the command has ended."""
    _documents.append(document)


def write_json(exit_code: int) -> None:
    """Write the documents of `show_json`, each with the exit code as its first key."""
    for document in _documents:
        show_document(_with_code(document, exit_code))
    _documents.clear()


def _with_code(document: bytes, exit_code: int) -> bytes:
    """Add the exit code as the first key, unless the document has one."""
    found = json.loads(document)
    if not isinstance(found, dict) or "exit_code" in found:
        return document
    text = json.dumps({"exit_code": exit_code, **found}, indent=1, ensure_ascii=False)
    return text.encode(errors="backslashreplace") + b"\n"  # lone surrogates as JSON escapes


def show_document(document: bytes) -> None:
    """Write a document to stdout unchanged."""
    sys.stdout.buffer.write(document)
    sys.stdout.flush()


_USUAL, _NARROW = 40, 36  # columns of a step; `convert openvino-int8 (onnxruntime)` has 35
_WIDE_TERMINAL = 90  # columns of the terminal
_LEAST_PACE = 1.0  # seconds: earlier, an estimate of the time left only flickers


@contextmanager
def error_console() -> Iterator[Console]:
    """Yield a console on a copy of stderr, unaffected by the redirection of stderr to logs."""
    with lenient_stream(os.dup(2), "utf-8", closes=True) as stream:
        yield CleanConsole(file=stream, highlight=False, soft_wrap=not stream.isatty())


class _TimeLeftColumn(ProgressColumn):
    """The time left of each step that says how far it is."""

    def render(self, task: Task) -> Text:
        """Return the estimate, which counts down until the next report and ends where it is 0."""
        if task.fields["reached"] is None:
            return Text()
        event, elapsed = task.fields["reached"]
        left = estimate_left(event, elapsed, task.elapsed or 0.0)
        return Text("" if not left else f"about {seconds_text(left)} left", style="dim")


def estimate_left(event: Advanced, elapsed: float, now: float) -> float | None:
    """Return the seconds that a step still takes at its pace so far; None if there is none yet.

    Args:
        event: how far it is.
        elapsed: the seconds that it took to be there.
        now: the seconds since it started.
    """
    if not event.done or elapsed < _LEAST_PACE:
        return None
    return max(elapsed / event.done * (event.total - event.done) - (now - elapsed), 0.0)


class Screen:
    """A listener that draws progress on stderr; a context manager that ends the spinner."""

    def __init__(self, *, quiet: bool = False, more: int = 0) -> None:
        """Reserve `more` columns for a prefix of the step names."""
        self._quiet = quiet
        self._more = more
        self._open = ExitStack()
        self._console = self._open.enter_context(error_console())
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[done]}"),
            TimeElapsedColumn(),
            _TimeLeftColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=quiet or not self._console.is_terminal,
        )

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
        self._open.close()

    def __call__(self, event: Event) -> None:
        """Draw one event."""
        if self._quiet:
            return
        match event:
            case Started():
                self._tasks[event.step] = self._progress.add_task(
                    escape(escape_control(event.step)), total=None, done="", reached=None
                )
            case Advanced():
                if event.step in self._tasks:
                    self._advance(self._tasks[event.step], event)
            case Noted():
                style = "yellow" if event.warning else "dim"
                print_line(self._console, f"  [{style}]{escape(event.text)}[/]")
            case Finished():
                self._finish(event)
            case Entered():
                pass  # its steps are shown
            case _:
                assert_never(event)

    def _advance(self, number: TaskID, event: Advanced) -> None:
        elapsed = next(task.elapsed for task in self._progress.tasks if task.id == number)
        done = f"{event.done}/{event.total}"
        if event.in_bytes:
            done = f"{size_text(event.done)} of {size_text(event.total)}"
        self._progress.update(number, done=done, reached=(event, elapsed or 0.0))

    def _finish(self, event: Finished) -> None:
        task = self._tasks.pop(event.step, None)
        if task is not None:
            self._progress.remove_task(task)
        colour = "green" if event.passed else "yellow" if event.attempt else "red"
        mark = f"[{colour}]{'✓' if event.passed else '✗'}[/]"
        detail = f"  [dim]{escape(event.detail)}[/]" if event.detail else ""
        width = self._more + (_NARROW if self._console.width < _WIDE_TERMINAL else _USUAL)
        step = f"{event.step:<{width}}"
        print_line(self._console, f"{mark} {escape(step)} [dim]{event.seconds:6.1f} s[/]{detail}")


def ready_mark(*, ready: bool, builds: bool) -> str:
    """Return whether a format is ready, or can at least be built, as markup."""
    return "[green]yes[/]" if ready else "[yellow]builds[/]" if builds else "[red]no[/]"
