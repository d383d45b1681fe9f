"""Sizes that become numbers while torch.export runs: where, and how 0 and 1 are no special ones."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from .users import is_user_file

_LOGGER = "torch.fx.experimental.symbolic_shapes"
_FIXED = re.compile(r"eval Eq\(\w+, \d+\) \[guard added\]")


class _SpecializationHandler(logging.Handler):
    """Keeps the lines that a message says fixed a size; passes nothing on."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        place = _user_place() if _FIXED.search(record.getMessage()) else ""
        if place:
            self.found.append(place)


def _user_place() -> str:
    """`file:line` of the user's innermost frame that led to the call; empty without one.

    What is above the frames of this room has started the export, and is not the model's.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_user_file(name):
            return f"{name}:{frame.f_lineno}"
        if name != __file__ and Path(name).parent == Path(__file__).parent:
            return ""
        frame = frame.f_back
    return ""


@contextmanager
def specialization_places() -> Iterator[list[str]]:
    """The lines, `file:line`, at which sizes become numbers inside the `with`, in order.

    Torch tells that to its log alone, and finds the line out for each guard, so this is for a
    second look only.
    """
    logger, places = logging.getLogger(_LOGGER), _SpecializationHandler()
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


def oblivious_sizes() -> AbstractContextManager[object]:
    """Torch's own setting by which the sizes of inputs are not told apart from 0 and 1."""
    from torch.fx.experimental import _config

    if not hasattr(_config, "backed_size_oblivious"):
        return nullcontext()
    return _config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined,no-any-return]
