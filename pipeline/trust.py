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
from .recorded import record_beside, record_of_rejected

TRUST_HINT = "add --trust, only if you trust its maker"
_PROGRAMS = {TORCHSCRIPT: "a TorchScript program", PT2: "an exported program"}


def check_program_trust(path: Path, target: Target, *, trust: bool) -> None:
    """Before a converted model is opened.

    Raises:
        ConsentError: it is a program that no manifest records as it is, and nobody trusts it.
    """
    if trust or not isinstance(target, Program):
        return
    if record_beside(path) is None and record_of_rejected(path) is None:
        raise _trust_error(path, target.PROGRAM)


def is_foreign_program(kind: str) -> bool:
    """Whether checkpoints of this kind are programs."""
    return kind in _PROGRAMS


def check_checkpoint_trust(checkpoint: Checkpoint, source: Source) -> None:
    """Before a checkpoint is opened.

    Raises:
        ConsentError: it is a program, neither recorded by this digest nor trusted.
    """
    check_kind_trust(checkpoint.kind, source, checkpoint.digest)


def check_kind_trust(kind: str, source: Source, digest: str = "") -> None:
    """As `refuse_foreign_checkpoint`, of what is not hashed yet where there is no digest.

    Raises:
        ConsentError: it is a program, neither recorded nor trusted.
    """
    if source.trust or kind not in _PROGRAMS or (digest and digest == source.recorded):
        return
    if record_beside(source.checkpoint) is None and record_of_rejected(source.checkpoint) is None:
        raise _trust_error(source.checkpoint, _PROGRAMS[kind])


def _trust_error(path: Path, what: str) -> ConsentError:
    return ConsentError(
        f"{path} is {what}, and opening it runs code of whoever made it", hint=TRUST_HINT
    )
