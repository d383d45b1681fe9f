"""What runs code of its maker when it is opened: refused, unless its maker is trusted.

TorchScript archives, exported programs, compiled packages and engines are programs. One that a
manifest records with the digest that it has was made, or was trusted, by an earlier run. Any other
needs the user's word.
"""

from __future__ import annotations

from pathlib import Path

from ..core.contract import Program, Target
from ..core.errors import ConsentError
from ..core.records import Checkpoint
from ..sources.sniff import PT2, TORCHSCRIPT
from .order import Source
from .recorded import record_beside, rejected_record

HINT = "add --trust, only if you trust its maker"
_PROGRAMS = {TORCHSCRIPT: "a TorchScript program", PT2: "an exported program"}


def refuse_foreign_program(path: Path, target: Target, *, trust: bool) -> None:
    """Before a converted model is opened.

    Raises:
        ConsentError: it is a program that no manifest records as it is, and nobody trusts it.
    """
    if trust or not isinstance(target, Program):
        return
    if record_beside(path) is None and rejected_record(path) is None:
        raise _refusal(path, target.PROGRAM)


def is_foreign_program(kind: str) -> bool:
    """Whether checkpoints of this kind are programs."""
    return kind in _PROGRAMS


def refuse_foreign_checkpoint(checkpoint: Checkpoint, source: Source) -> None:
    """Before a checkpoint is opened.

    Raises:
        ConsentError: it is a program, neither recorded by this digest nor trusted.
    """
    refuse_kind(checkpoint.kind, source, checkpoint.digest)


def refuse_kind(kind: str, source: Source, digest: str = "") -> None:
    """As `refuse_foreign_checkpoint`, of what is not hashed yet where there is no digest.

    Raises:
        ConsentError: it is a program, neither recorded nor trusted.
    """
    if source.trust or kind not in _PROGRAMS or (digest and digest == source.recorded):
        return
    if record_beside(source.checkpoint) is None and rejected_record(source.checkpoint) is None:
        raise _refusal(source.checkpoint, _PROGRAMS[kind])


def _refusal(path: Path, what: str) -> ConsentError:
    return ConsentError(f"{path} is {what}, and opening it runs code of whoever made it", hint=HINT)
