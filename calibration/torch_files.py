"""Reads `.pt` and `.pth`: what torch.save wrote, tensors and plain values only."""

from __future__ import annotations

from ..core.errors import CheckpointError
from ..core.torch_file import read_safely
from .content import Blob, MisfitError, Read, unreadable
from .findings import Kind


def read(blob: Blob) -> Read:
    """The tensor, or the tuple, list or dict of tensors.

    Raises:
        MisfitError: it is damaged, or holds more than tensors and plain values.
    """
    try:
        return Read(value=read_safely(blob, "it"))
    except CheckpointError as error:
        raise MisfitError(Kind.UNREADABLE, error.message.removeprefix("it ")) from error
    except OSError as error:  # a link to nowhere
        raise unreadable(error) from error
