"""A step of a run as others see it: told when it starts and ends, its chatter in a log."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import RunnerError
from ..core.events import Advanced, Finished, Noted, Started, Tell
from .noise import redirect_output


class Clock:
    """Wall time since it was made, and how the step that it times ended."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.passed = True
        self.detail = ""

    @property
    def seconds(self) -> float:
        """Seconds since the start, to the millisecond."""
        return round(time.perf_counter() - self._start, 3)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run tells its progress and where frameworks' chatter goes."""

    tell: Tell
    logs: Path
    begun: set[Path] = field(default_factory=set)  # logs that this run has started anew

    @contextmanager
    def step(self, title: str, *, log: str, attempt: bool = False) -> Iterator[Clock]:
        """Run one step: `title` is told, what frameworks print goes to `<log>.log`.

        One `attempt` of several may fail, and the work goes on.
        """
        self.logs.mkdir(exist_ok=True)  # the folder around it is there, unless it was removed
        place = self.logs / f"{log}.log"
        if place not in self.begun:
            place.unlink(missing_ok=True)
            self.begun.add(place)
        clock = Clock()
        ended = False
        self.tell(Started(step=title))
        try:
            with redirect_output(place):
                yield clock
            ended = True
        finally:
            passed = ended and clock.passed
            self.tell(
                Finished(
                    step=title,
                    passed=passed,
                    seconds=clock.seconds,
                    detail=clock.detail,
                    attempt=attempt,
                )
            )

    def note(self, text: str, *, warning: bool = False) -> None:
        """Tell one line."""
        self.tell(Noted(text=text, warning=warning))

    def advance(self, step: str, done: int, total: int) -> None:
        """Tell how far a step is."""
        self.tell(Advanced(step=step, done=done, total=total))


@contextmanager
def temporary_logs() -> Iterator[Path]:
    """A folder for logs that goes at the end; what they say is kept with an error as a note.

    Raises:
        RunnerError: as it came; where its hint is the log, with how to see it.
    """
    with tempfile.TemporaryDirectory(prefix="modelc-") as name:
        folder = Path(name)
        try:
            yield folder
        except RunnerError as error:
            if not error.advice.names_log:
                raise
            told = RunnerError(error.message, hint="see the whole text: add --debug")
            for log in sorted(folder.glob("*.log")):
                told.add_note(log.read_text(encoding="utf-8", errors="replace"))
            raise told from error
