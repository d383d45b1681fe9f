"""How a library is called: what it prints becomes log records, what it raises one error."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from ...core.errors import ConversionError, ModelcError
from ..guarded import call_framework

Made = TypeVar("Made")
_LOG = logging.getLogger(__name__)  # what is said here ends in the step's log


def call_quietly(what: str, make: Callable[[], Made]) -> Made:
    """Run one call of a library, `what` by name; our own errors, as of a sample, pass as they are.

    Raises:
        ConversionError: the library raised.
    """
    try:
        with _capture_output():
            return call_framework(what, make)
    except ConversionError as error:
        if isinstance(error.__cause__, ModelcError):
            raise error.__cause__ from None
        raise


@contextlib.contextmanager
def _capture_output() -> Iterator[None]:
    """Take Python's own stdout and stderr for the block; tell each line at debug level."""
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            yield
    finally:
        for line in filter(str.strip, text.getvalue().splitlines()):
            _LOG.debug("%s", line.rpartition("\r")[2])
