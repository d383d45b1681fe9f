"""Where a size became a number while torch.export ran: torch tells that to its log alone."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGER = "torch.fx.experimental.symbolic_shapes"
_FIXED = re.compile(r"eval Eq\(\w+, \d+\) \[guard added\] \((?P<place>[^\s()]+\.py:\d+) in ")
_TORCHS = ("torch/", "_ops.py:")  # frames of torch's own, as its log shortens them


class _Places(logging.Handler):
    """Keeps the lines that a message says fixed a size; passes nothing on."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        match = _FIXED.search(record.getMessage())
        if match is not None and not match["place"].startswith(_TORCHS):
            self.found.append(match["place"])


@contextmanager
def specialised() -> Iterator[list[str]]:
    """The lines, `file:line`, at which sizes become numbers inside the `with`, in order.

    Torch finds the line out for each guard, so this is for a second look only.
    """
    logger, places = logging.getLogger(_LOGGER), _Places()
    before = logger.level, logger.propagate
    logger.addHandler(places)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # what else it says at that level is for torch's developers
    try:
        yield places.found
    finally:
        logger.removeHandler(places)
        logger.setLevel(before[0])
        logger.propagate = before[1]
