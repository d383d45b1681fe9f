"""What is asked of files without opening them: whether there is one of that name.

Python tells nobody of `os.stat`, by which `Path.exists`, `os.path.isfile` and their like look. The
import machinery has a way of its own, and native libraries are not heard here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeAlias

LOOKS = "os.stat"  # told as an event, as if it were one of Python's own
Hear: TypeAlias = Callable[[str, tuple[object, ...]], None]  # an event: a path, whether it is there


def hear_looks(hear: Hear) -> None:
    """Have `hear` told of each path that `os.stat` is asked for, as long as this process lives."""
    asked = os.stat

    @functools.wraps(asked)
    def stat(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:
        there = True
        try:
            return asked(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        except (FileNotFoundError, NotADirectoryError):
            there = False
            raise
        finally:
            if dir_fd is None:
                hear(LOOKS, (path, there))

    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if asked in able:  # `shutil` looks its functions up in these
            able.add(stat)
    os.stat = stat
