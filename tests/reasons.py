"""Reasons of verdicts that tests make by hand."""

from __future__ import annotations

from modelc.core.kinds import ReasonCode
from modelc.core.verdict import Reason


def because(
    text: str, code: ReasonCode = ReasonCode.OUTPUT_DIFFERS, *, fault: bool = False
) -> tuple[Reason, ...]:
    """The reasons of a verdict with one reason; none for an empty text."""
    return (Reason(code=code, text=text, fault=fault),) if text else ()
