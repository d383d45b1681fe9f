"""Whose code asks for a file: the user's, or modelc's and its frameworks' for themselves."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

from .own_code import is_own
from .places import is_installed, is_standard

USER = "user"
OURS = "modelc"
_LISTENERS = (__file__, str(Path(__file__).with_name("watching.py")))


def asker(*, lists: bool = False) -> str:
    """Whose is the innermost frame that is neither Python's nor an installed package's.

    Where there is none, as in a thread of a library, it counts as the user's. Who `lists` a folder
    for an import is Python, whoever asks for it; the code that is found there is read for that one.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if lists and name.startswith("<frozen importlib"):
            return OURS
        if not (name in _LISTENERS or name.startswith("<") or _is_theirs(name)):
            return OURS if is_own(Path(os.path.realpath(name))) else USER
        frame = frame.f_back
    return USER


def _is_theirs(name: str) -> bool:
    return is_standard(name) or is_installed(name)
