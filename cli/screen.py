"""Draws events while a run goes on: a spinner on a terminal, a line a step elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, assert_never

from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from ..core.events import Advanced, Entered, Event, Finished, Noted, Started
from ..reports.words import escape_control
from .streams import lenient_stream
from .tables import CleanConsole, print_line

if TYPE_CHECKING:
    from rich.console import Console

_USUAL, _NARROW = 40, 36  # columns of a step's name: `convert openvino-int8 (onnxruntime)` has 35
_WIDE_TERMINAL = 90  # columns of the terminal


@contextmanager
def error_console() -> Iterator[Console]:
    """A console on a copy of stderr, which stays on the terminal while chatter goes to logs."""
    with lenient_stream(os.dup(2), "utf-8", closes=True) as stream:
        yield CleanConsole(file=stream, highlight=False, soft_wrap=not stream.isatty())


class Screen:
    """A listener that draws on stderr. A context manager: the spinner ends with it."""

    def __init__(self, *, quiet: bool = False, more: int = 0) -> None:
        """`more` columns stand before a step's usual name."""
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
                    escape(escape_control(event.step)), total=None, done=""
                )
            case Advanced():
                if event.step in self._tasks:
                    self._progress.update(
                        self._tasks[event.step], done=f"{event.done}/{event.total}"
                    )
            case Noted():
                style = "yellow" if event.warning else "dim"
                print_line(self._console, f"  [{style}]{escape(event.text)}[/]")
            case Finished():
                self._finish(event)
            case Entered():
                pass  # its steps say so
            case _:
                assert_never(event)

    def _finish(self, event: Finished) -> None:
        task = self._tasks.pop(event.step, None)
        if task is not None:
            self._progress.remove_task(task)
        missed = "[yellow]✗[/]" if event.attempt else "[red]✗[/]"
        mark = "[green]✓[/]" if event.passed else missed
        detail = f"  [dim]{escape(event.detail)}[/]" if event.detail else ""
        width = self._more + (_NARROW if self._console.width < _WIDE_TERMINAL else _USUAL)
        step = f"{event.step:<{width}}"
        print_line(self._console, f"{mark} {escape(step)} [dim]{event.seconds:6.1f} s[/]{detail}")
