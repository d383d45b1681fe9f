"""Errors of the operating system that the user can act on, as errors of the user's.

A path that is too long, a disk that is full or a limit on open files is no bug of modelc, wherever
it is met. What may be one (a file that is not there) is left as it is.
"""

from __future__ import annotations

import errno
import os

from .errors import UsageError

_MAX_PATH_SHOWN = 120  # characters of a path
_PATH_ERRORS = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR,
    errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
_ERRNO_HINTS = {
    **dict.fromkeys(_PATH_ERRORS, "give a path that you may read and write"),
    errno.ENOSPC: "free space on the disk, or give another folder",
    errno.EDQUOT: "free space in your quota, or give another folder",
    errno.EIO: "see whether the disk is sound, or give another folder",
    errno.EFBIG: "raise the limit on the size of files: ulimit -f unlimited",
    errno.EMFILE: "raise the limit on open files: ulimit -n 4096",
    errno.ENFILE: "end other programs: the system has no more files to open",
}
_SYMLINK_LOOP = "Symlink loop from "  # pathlib before Python 3.13 has no class for it


def is_user_error(error: OSError) -> bool:
    """Whether the user can act on an error of the system."""
    return error.errno in _ERRNO_HINTS


def system_error_hint(error: OSError) -> str:
    """What to do about an error that is the user's."""
    return _ERRNO_HINTS[error.errno or 0]


def as_usage_error(error: BaseException) -> UsageError | None:
    """The error as one of the user's, with its path; None where it may be a bug of modelc."""
    if isinstance(error, RuntimeError) and str(error).startswith(_SYMLINK_LOOP):
        path = str(error).removeprefix(_SYMLINK_LOOP)
        return UsageError(f"cannot use {path}: it is a link to itself", hint="give another path")
    if isinstance(error, FileNotFoundError) and _is_working_folder_lost():
        return UsageError("the current folder was removed", hint="cd to another folder")
    if not isinstance(error, OSError) or error.errno is None or not is_user_error(error):
        return None
    path = "" if error.filename is None else os.fsdecode(error.filename)
    shown = path if len(path) <= _MAX_PATH_SHOWN else f"{path[:_MAX_PATH_SHOWN]}…"
    what = f"cannot use {shown}" if shown else "the system refused"
    return UsageError(f"{what}: {os.strerror(error.errno)}", hint=system_error_hint(error))


def _is_working_folder_lost() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - as pathlib does
    except FileNotFoundError:
        return True
    return False
