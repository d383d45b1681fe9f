"""Keeps what frameworks print out of the terminal: it goes to a log file."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..converters.capture.refusals import user_place
from ..core.errors import CheckpointError, first_line, text_of
from ..core.interrupts import copies_ended, is_users_own


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
                with copies_ended():
                    yield
            except BaseException as error:
                stream.write(traceback.format_exc().encode(errors="backslashreplace"))
                if is_users_own(error):
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
    told = f": {first_line(error)}" if text_of(error) else ""
    return CheckpointError(
        f"the model's code raised {type(error).__name__}{f' at {place}' if place else ''}{told}",
        hint="raise an error of another class, as RuntimeError, or leave it out",
    )


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
