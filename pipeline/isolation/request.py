"""What a parent hands to the child process that does its work, as bytes."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import TypeAlias

from ..calls import ApiCall
from ..finish_order import AnyRequest

LENGTH_PREFIX = struct.Struct("<Q")  # comes first: how many bytes follow


ChildWork: TypeAlias = AnyRequest | ApiCall


@dataclass(frozen=True, kw_only=True)
class ChildRequest:
    """What the child is to do, and how it finds the user's modules."""

    work: ChildWork
    path: tuple[str, ...]
    code_folders: tuple[str, ...] = ()  # of the user's, beside the current one
    absent: tuple[str, ...] = ()  # modules whose import is to fail, as in the parent
    threads: int | None = None


def pack_request(request: ChildRequest) -> bytes:
    """The request as it goes to the child, its length first."""
    content = pickle.dumps(request)
    return LENGTH_PREFIX.pack(len(content)) + content


def unpack_request(content: bytes) -> ChildRequest:
    """The request, without its length; only a parent of ours writes one.

    Raises:
        TypeError: it is none.
    """
    request = pickle.loads(content)
    if not isinstance(request, ChildRequest):
        raise TypeError(f"a {type(request).__name__} is no request")
    return request
