"""Whose code asks for a file: the user's, or modelc's and its frameworks' for themselves."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import FrameType

from .own_code import is_own
from .places import is_installed, is_standard

USER = "user"
OURS = "modelc"
_IMPORTS = ("<frozen importlib", str(Path(importlib.__file__).parent))
_LISTENERS = (
    __file__,
    *(
        str(Path(__file__).with_name(f"{n}.py"))
        for n in ("looking", "missing", "variables", "watching")
    ),
)


def asker(*, reads: bool = True, direct: bool = False) -> str:
    """Whose is the innermost frame that is neither Python's nor an installed package's.

    Where there is none, as in a thread of a library, it counts as the user's. What
    an import or a search for packages `reads` is read for whoever asks for that; the folders and
    names that it looks through on the way are Python's own affair. Where it must be asked
    `direct`, what an installed package asks is that package's own.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not reads and name.startswith(_IMPORTS):
            return OURS
        if direct and is_installed(name):
            return OURS
        if not (name in _LISTENERS or name.startswith("<") or _is_theirs(name)):
            return OURS if is_own(Path(os.path.realpath(name))) else USER
        frame = frame.f_back
    return USER


def _is_theirs(name: str) -> bool:
    return is_standard(name) or is_installed(name)
