"""The standard streams, and the output folder to name if a command is interrupted."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STANDARD = range(3)  # descriptors of stdin, stdout and stderr


class LenientFile(io.FileIO):
    """A file that drops what it cannot write; `fault` is the first error."""

    fault: OSError | None = None

    def write(self, data: ReadableBuffer) -> int:
        """Write or drop the data; always return its full length."""
        try:
            written = super().write(data)
        except OSError as error:  # the next write is tried: the descriptor may be redirected
            self.fault = self.fault or error
            return memoryview(data).nbytes
        if written is None:  # a non-blocking stream that is full
            select.select([], [self], [])
            return self.write(data)
        return written


def lenient_stream(descriptor: int, encoding: str, *, closes: bool = False) -> TextIO:
    """Return a text stream that drops what cannot be written and escapes what cannot be encoded."""
    raw = LenientFile(descriptor, "w", closefd=closes)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=True
    )


def open_streams() -> LenientFile:
    """Replace stdout and stderr by lenient streams; return the file below stdout.

    A closed standard descriptor is opened on the null device, so that no other file gets its
    number.
    """
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, this one
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream: TextIO | None = getattr(sys, name)
        encoding = "utf-8" if stream is None else stream.encoding
        setattr(sys, name, lenient_stream(number, encoding))
    raw = getattr(sys.stdout.buffer, "raw", None)
    if not isinstance(raw, LenientFile):
        raise TypeError(f"stdout writes to a {type(raw).__name__}")
    return raw


def flush_streams(stdout: LenientFile) -> None:
    """Flush; warn if the result could not be written, unless the reader closed the pipe."""
    sys.stdout.flush()
    fault = stdout.fault
    if fault is not None and fault.errno != errno.EPIPE:
        reason = fault.strerror or type(fault).__name__
        sys.stderr.write(f"warning: the result was not written to stdout: {reason}\n")
    sys.stderr.flush()


_output_folders: list[Path] = []  # of this command


def forget_folders() -> None:
    """Start a new command."""
    _output_folders.clear()


def set_output_folder(folder: Path) -> None:
    """Record a folder that the command writes artifacts to."""
    _output_folders.append(folder)


def last_output_folder() -> Path | None:
    """Return the first recorded folder that contains a manifest, or None."""
    records = ("manifest.json", "run.json", "*/manifest.json")
    return next((one for one in _output_folders if any(any(one.glob(r)) for r in records)), None)
