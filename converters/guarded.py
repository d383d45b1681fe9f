"""The edge to the frameworks: whatever they raise becomes one ConversionError."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from ..core.errors import ConversionError, first_line
from ..core.signature import Signature

Made = TypeVar("Made")


def guarded(what: str, make: Callable[[], Made], signature: Signature | None = None) -> Made:
    """Run one framework call; whatever it raises becomes one ConversionError.

    Args:
        what: the caller, as the message names it.
        make: the call.
        signature: whose names replace torch's own for dims, where there is one.
    """
    try:
        return make()
    except Exception as error:  # the converter's edge: frameworks raise anything
        reason = reason_of(error)
        if signature is not None:
            reason = _in_users_names(reason, signature)
        raise ConversionError(
            f"{what} refused the model: {reason}", hint="the whole text is in the log"
        ) from error


def reason_of(error: BaseException) -> str:
    """The telling line of a torch exception, with the user's source line where it names one."""
    inner = error.__cause__ if error.__cause__ is not None else error
    points = re.findall(r"^\s+- (.+?)(?:\. If you\'re using|$)", str(inner), flags=re.MULTILINE)
    violated = "Constraints violated" in str(inner)
    line = points[0] if violated and points else first_line(inner)
    if isinstance(inner, KeyError):  # whose text is the key alone
        line = f"KeyError {line}"
    source = _source_line(str(inner))
    return f"{line} (at {source})" if source else line


def _in_users_names(text: str, signature: Signature) -> str:
    """`L['tensors'][0].size()[1]` as `seq` of `ids`."""

    def name(match: re.Match[str]) -> str:
        spec = signature.inputs[int(match.group(1))]
        dim = spec.dims[int(match.group(2))]
        return f"dim {dim.name or match.group(2)!r} of {spec.name}"

    return re.sub(r"L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]", name, text)


def _source_line(text: str) -> str:
    """`file:line` of the last frame that a torch message quotes, or nothing."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', text)
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else ""
