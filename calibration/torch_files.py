"""Reads `.pt` and `.pth`: what torch.save wrote, tensors and plain values only."""

from __future__ import annotations

from ..core.errors import CheckpointError
from ..core.torch_file import read_safely
from .content import Blob, ReadResult, SampleError, unreadable_error
from .findings import FindingKind

# Reads `.pt` and `.pth`: what torch.save wrote, tensors and plain values only.


def read_torch_sample(blob: Blob) -> ReadResult:
    """The tensor, or the tuple, list or dict of tensors.

    Raises:
        SampleError: it is damaged, or holds more than tensors and plain values.
    """
    try:
        return ReadResult(value=read_safely(blob, "it"))
    except CheckpointError as error:
        raise SampleError(FindingKind.UNREADABLE, error.message.removeprefix("it ")) from error
    except OSError as error:  # a link to nowhere
        raise unreadable_error(error) from error
