"""The process's standard streams, and the output folder to name when a command is interrupted."""

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
        """Write, or drop; as many bytes as were given count as written."""
        try:
            written = super().write(data)
        except OSError as error:  # the next is tried again: the descriptor may lead elsewhere then
            self.fault = self.fault or error
            return memoryview(data).nbytes
        if written is None:  # of a stream that does not block: it takes more later
            select.select([], [self], [])
            return self.write(data)
        return written


def lenient_stream(descriptor: int, encoding: str, *, closes: bool = False) -> TextIO:
    """A text stream on a descriptor that drops what cannot be written or encoded."""
    raw = LenientFile(descriptor, "w", closefd=closes)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=True
    )


def open_streams() -> LenientFile:
    """Put lenient streams in place of stdout and stderr; gives the file below stdout.

    A descriptor that was closed leads nowhere from now on: no other file may get its number.
    """
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream: TextIO | None = getattr(sys, name)
        encoding = "utf-8" if stream is None else stream.encoding
        setattr(sys, name, lenient_stream(number, encoding))
    raw = getattr(sys.stdout.buffer, "raw", None)
    if not isinstance(raw, LenientFile):
        raise TypeError(f"stdout writes to a {type(raw).__name__}")
    return raw


def flush_streams(stdout: LenientFile) -> None:
    """Write what is left; say where a disk did not take the result, not that a reader has left."""
    sys.stdout.flush()
    fault = stdout.fault
    if fault is not None and fault.errno != errno.EPIPE:
        told = fault.strerror or type(fault).__name__
        sys.stderr.write(f"warning: the result was not written to stdout: {told}\n")
    sys.stderr.flush()


_output_folders: list[Path] = []  # output folders that this run of the command works in


def forget_folders() -> None:
    """A new run of the command begins."""
    _output_folders.clear()


def set_output_folder(folder: Path) -> None:
    """From now on, what is proven is kept in this folder."""
    _output_folders.append(folder)


def last_output_folder() -> Path | None:
    """The folder that holds what was proven, of this run or an earlier one; None for nothing."""
    records = ("manifest.json", "run.json", "*/manifest.json")
    held = (one for one in _output_folders if any(any(one.glob(name)) for name in records))
    return next(held, None)
