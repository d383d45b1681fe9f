"""Reads `.safetensors`: tensors by name."""

from __future__ import annotations

from pathlib import Path

from .content import Blob, Read, unreadable


def read(blob: Blob) -> Read:
    """Every tensor of the file; by torch, because numpy has no bfloat16.

    Raises:
        MisfitError: it is damaged.
    """
    from safetensors.torch import load, load_file

    try:
        return Read(value=load_file(blob) if isinstance(blob, Path) else load(blob.getvalue()))
    except Exception as error:  # the reader's edge: torch may not have a dtype
        raise unreadable(error) from error
