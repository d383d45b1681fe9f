"""Sizes that become numbers while torch.export runs: where, and how 0 and 1 are no special ones."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

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

    Torch tells that to its log alone, and finds the line out for each guard, so this is for a
    second look only.
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


def oblivious() -> AbstractContextManager[object]:
    """Torch's own setting by which the sizes of inputs are not told apart from 0 and 1."""
    from torch.fx.experimental import _config

    if not hasattr(_config, "backed_size_oblivious"):
        return nullcontext()
    return _config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined,no-any-return]
