"""Reasons of verdicts that tests make by hand, and checks of errors by their data."""

from __future__ import annotations

from collections.abc import Callable

from modelc.core.errors import ErrorCode
from modelc.core.kinds import ReasonCode
from modelc.core.verdict import Reason, Verdict


def because(
    text: str, code: ReasonCode = ReasonCode.OUTPUT_DIFFERS, *, fault: bool = False
) -> tuple[Reason, ...]:
    """The reasons of a verdict with one reason; none for an empty text."""
    return (Reason(code=code, text=text, fault=fault),) if text else ()


def has_code(
    code: ErrorCode, *, option: str = "", naming: str = ""
) -> Callable[[BaseException], bool]:
    """A check for `pytest.raises`: the error's code, its option, and a value in its message."""

    def check(error: BaseException) -> bool:
        found = getattr(error, "code", None), getattr(error, "option", "")
        return found[0] is code and option in ("", found[1]) and naming in str(error)

    return check


def reason_codes(verdict: Verdict) -> list[ReasonCode]:
    """The codes of a verdict's reasons, in their order."""
    return [reason.code for reason in verdict.reasons]
