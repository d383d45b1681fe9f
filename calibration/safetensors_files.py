"""Reads `.safetensors`: tensors by name."""

from __future__ import annotations

from pathlib import Path

from .content import Blob, ReadResult, unreadable_error

# Reads `.safetensors`: tensors by name.


def read_safetensors_sample(blob: Blob) -> ReadResult:
    """Every tensor of the file; by torch, because numpy has no bfloat16.

    Raises:
        SampleError: it is damaged.
    """
    from safetensors.torch import load, load_file

    try:
        return ReadResult(
            value=load_file(blob) if isinstance(blob, Path) else load(blob.getvalue())
        )
    except Exception as error:  # the reader's edge: torch may not have a dtype
        raise unreadable_error(error) from error
