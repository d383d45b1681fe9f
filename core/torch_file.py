"""Reads what torch.save wrote, tensors and plain values only unless more is asked for."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import IO

from .errors import CheckpointError, ConsentError, first_line
from .torch_sizes import find_size_fault
from .zip_archive import find_archive_fault, is_zip_archive

_BLOCKED_GLOBAL = re.compile(
    r"Unsupported (?:global|class|operand)[^\n]*?GLOBAL (\S+)|Unsupported \w+ (\d+)"
)


def read_torch_file(source: Path | IO[bytes], name: str = "", *, may_allow: bool = False) -> object:
    """What torch.save wrote, its tensors mapped from the file rather than read where possible.

    Args:
        source: a file, or an open stream that can seek.
        name: what a message calls it; the path if empty.
        may_allow: whether --allow-pickle reads what is refused.

    Raises:
        ConsentError: it holds more than tensors and plain values, which the user may allow.
        CheckpointError: it is damaged, or it holds more and nothing allows that.
    """
    import pickle

    called = name or str(source)
    check_torch_file(source, called)
    try:
        return load_torch_file(source, weights_only=True)
    except pickle.UnpicklingError as error:
        match = _BLOCKED_GLOBAL.search(str(error))
        if match is None:
            raise unreadable_error(called, error) from error
        what = match.group(1) or f"pickle opcode {match.group(2)}"
        told = f"{called} holds more than weights and was refused: {what}"
        if may_allow:
            hint = "add --allow-pickle, only if you trust its maker: it runs code of theirs"
            raise ConsentError(told, hint=hint) from error
        hint = "save its tensors alone with torch.save where it was made, as model.state_dict()"
        raise CheckpointError(told, hint=hint) from error
    except Exception as error:  # the unpickler raises anything at garbage
        raise unreadable_error(called, error) from error


def check_torch_file(source: Path | IO[bytes], called: str) -> None:
    """Refuse a file that states more than it has, before torch takes memory for it.

    Raises:
        CheckpointError: its archive is no sound one, or a size in it has no bytes.
    """
    packed = is_zip_archive(source)
    fault = (find_archive_fault(source) if packed else "") or find_size_fault(source)
    if fault:
        raise CheckpointError(
            f"{called} cannot be read: {fault}",
            hint="copy or download the file again, or save it again with torch.save",
        )


def load_torch_file(source: Path | IO[bytes], *, weights_only: bool) -> object:
    """torch.load on the CPU, a zip file on disk being mapped; torch's own errors pass through."""
    import torch

    mapped = isinstance(source, Path) and is_zip_archive(source)
    with warnings.catch_warnings():
        # torch warns of pickle protocols above 2, then reads or refuses them anyway
        warnings.filterwarnings("ignore", message="Detected pickle protocol")
        loaded: object = torch.load(
            source, map_location="cpu", weights_only=weights_only, mmap=mapped or None
        )
    return loaded


def unreadable_error(name: Path | str, error: Exception) -> CheckpointError:
    """The error for a file that torch cannot read."""
    return CheckpointError(
        f"{name} cannot be read: {type(error).__name__}: {first_line(error)}",
        hint="copy or download the file again, or save it again with torch.save",
    )
