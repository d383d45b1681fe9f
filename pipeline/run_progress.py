"""Progress events of a run, and the log files that frameworks' output is redirected to."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..capture.refusals import user_place
from ..core.children.preloaded import NewProcessNeededError
from ..core.errors import CheckpointError, RunnerError, first_line, text_of
from ..core.events import Advanced, Finished, Noted, Started, Tell
from ..core.process import end_forked_copies, is_from_user_code


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
    """The event listener of a run, and the folder for the output of frameworks."""

    tell: Tell
    logs: Path
    opened: set[Path] = field(default_factory=set)  # logs of this run

    @contextmanager
    def step(
        self, title: str, *, log: str, attempt: bool = False, runs_artifact: bool = False
    ) -> Iterator[Clock]:
        """Run one step: report `title`, and send what frameworks print to `<log>.log`.

        An `attempt` is one of several: the work goes on where it fails. `runs_artifact`: the step
        runs a converted model, which is to blame if the process dies.
        """
        self.logs.mkdir(exist_ok=True)  # the folder around it is there, unless it was removed
        place = self.logs / f"{log}.log"
        if place not in self.opened:
            place.unlink(missing_ok=True)
            self.opened.add(place)
        clock = Clock()
        ended = restarts = False
        self.tell(Started(step=title, runs_artifact=runs_artifact))
        try:
            with redirect_output(place):
                yield clock
            ended = True
        except NewProcessNeededError:  # the step begins again there
            restarts = True
            raise
        finally:
            finished = Finished(
                step=title,
                passed=ended and clock.passed,
                seconds=clock.seconds,
                detail=clock.detail,
                attempt=attempt,
            )
            if not restarts:
                self.tell(finished)

    def note(self, text: str, *, warning: bool = False) -> None:
        """Report one line."""
        self.tell(Noted(text=text, warning=warning))

    def advance(self, step: str, done: int, total: int) -> None:
        """Report how far a step is."""
        self.tell(Advanced(step=step, done=done, total=total))


@contextmanager
def temporary_logs() -> Iterator[Path]:
    """A temporary folder for logs, whose text is added to an error as a note.

    Raises:
        RunnerError: as raised within; a hint that names the log is replaced.
    """
    with tempfile.TemporaryDirectory(prefix="modelc-") as name:
        folder = Path(name)
        try:
            yield folder
        except RunnerError as error:
            if not error.advice.names_log:
                raise
            other = RunnerError(error.message, hint="add --debug to see the whole log")
            for log in sorted(folder.glob("*.log")):
                other.add_note(log.read_text(encoding="utf-8", errors="replace"))
            raise other from error


@contextmanager
def redirect_output(log: Path) -> Iterator[None]:
    """Send file descriptors 1 and 2, warnings and the traceback of an error to the end of `log`.

    File descriptors, because native libraries write there directly. Python's own streams follow
    as long as they write to those descriptors; an event listener that draws holds a copy.

    The user's code runs within such blocks. A copy of this process that it made by `os.fork` and
    let return ends here, before it takes the parent's files away.

    Raises:
        CheckpointError: the user's code raised what is no `Exception`, as SystemExit.
    """
    _flush_streams()
    saved = (os.dup(1), os.dup(2))
    try:
        with log.open("ab", buffering=0) as stream, warnings.catch_warnings():
            warnings.simplefilter("always")
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            try:
                with end_forked_copies():
                    yield
            except BaseException as error:
                stream.write(traceback.format_exc().encode(errors="backslashreplace"))
                if is_from_user_code(error):
                    raise _exit_error(error) from error
                raise
    finally:
        _flush_streams()
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def _exit_error(error: BaseException) -> CheckpointError:
    """The error where the model's code raised what nothing but the end of a process may catch."""
    place = user_place(error)
    where = f" at {place}" if place else ""
    text = f": {first_line(error)}" if text_of(error) else ""
    return CheckpointError(
        f"the model's code raised {type(error).__name__}{where}{text}",
        hint="raise an error of another class, as RuntimeError, or leave it out",
    )


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
