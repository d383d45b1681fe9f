"""What is asked of files without opening them: whether there is one of that name.

Python tells nobody of `os.stat`, by which `Path.exists`, `os.path.isfile` and their like look. The
import machinery has a way of its own, and native libraries are not heard here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

LOOKS = "os.stat"  # told as an event, as if it were one of Python's own
_ABLE = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks)  # `shutil` asks these
Hear: TypeAlias = Callable[[str, tuple[object, ...]], None]  # an event: a path, whether it is there


@contextmanager
def looks_told(hear: Hear) -> Iterator[None]:
    """Have `hear` told of each path that `os.stat` is asked for until the end of the block."""
    asked, told = os.stat, [hear]

    @functools.wraps(asked)
    def stat(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:
        there = True
        try:
            return asked(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        except (FileNotFoundError, NotADirectoryError):
            there = False
            raise
        finally:
            if dir_fd is None and told:
                hear(LOOKS, (path, there))

    able = [one for one in _ABLE if asked in one]
    for one in able:
        one.add(stat)
    os.stat = stat
    try:
        yield
    finally:
        told.clear()
        if os.stat is stat:  # else another has wrapped it, and passes on to what says nothing more
            os.stat = asked
            for one in able:
                one.discard(stat)
