"""What a parent hands to the child process that does its work, as bytes."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import TypeAlias

from ..calls import Call
from ..finish_order import AnyOrder

LENGTH = struct.Struct("<Q")  # comes first: how many bytes follow


Work: TypeAlias = AnyOrder | Call


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the child is to do, and how it finds the user's modules."""

    work: Work
    path: tuple[str, ...]
    code_folders: tuple[str, ...] = ()  # of the user's, beside the current one
    absent: tuple[str, ...] = ()  # modules whose import is to fail, as in the parent
    threads: int | None = None


def packed(request: Request) -> bytes:
    """The request as it goes to the child, its length first."""
    content = pickle.dumps(request)
    return LENGTH.pack(len(content)) + content


def unpacked(content: bytes) -> Request:
    """The request, without its length; only a parent of ours writes one.

    Raises:
        TypeError: it is none.
    """
    request = pickle.loads(content)
    if not isinstance(request, Request):
        raise TypeError(f"a {type(request).__name__} is no request")
    return request
