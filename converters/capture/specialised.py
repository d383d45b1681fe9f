"""Sizes that become numbers while torch.export runs: where, and how 0 and 1 are no special ones."""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

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
            self.found.append(_whole(match["place"]))


def _whole(place: str) -> str:
    """The place with the path that torch's log cuts off: what the file shares with torch's folder.

    Of files that share only the root it cuts a letter more. Where no such file is, the place is as
    it was told.
    """
    import torch

    file, _, line = place.rpartition(":")
    shared = [path for path in Path(torch.__file__).parents if path != path.parent]
    below = (str(path / file) for path in shared)
    at_root = map(str, Path("/").glob(f"?{glob.escape(file)}"))
    found = next((path for path in (*below, *at_root) if Path(path).is_file()), file)
    return f"{found}:{line}"


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
