"""Keeps what frameworks print out of the terminal: it goes to a log file."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def into(log: Path) -> Iterator[None]:
    """Send file descriptors 1 and 2, warnings and the traceback of an error to the end of `log`.

    File descriptors, because native libraries write there directly. Python's own streams follow
    as long as they write to those descriptors; an event listener that draws holds a copy.
    """
    _flush()
    saved = (os.dup(1), os.dup(2))
    try:
        with log.open("ab", buffering=0) as stream, warnings.catch_warnings():
            warnings.simplefilter("always")
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            try:
                yield
            except Exception:
                stream.write(traceback.format_exc().encode())
                raise
    finally:
        _flush()
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
