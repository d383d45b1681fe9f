"""Messages from child to parent, one JSON line each.

The parent unpickles nothing: the child may have run the user's code and native libraries.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from .. import errors
from ..errors import ErrorCode, Hint, ModelcError, Option, Place, as_usage_error, encodable
from ..events import Advanced, Entered, Finished, Noted, Started

MessageTypes: TypeAlias = Mapping[str, type]
_RETURN_PREFIX = "return "


@dataclass(frozen=True, kw_only=True)
class Returned:
    """The value that the function returned."""

    value: object


@dataclass(frozen=True, kw_only=True)
class StoppedByError:
    """The error that the function raised: its class, where it is one of ours, and its traceback."""

    kind: str
    message: str
    hint: tuple[str | Option, ...]
    trace: str
    code: ErrorCode | None = None
    option: str = ""
    place: Place | None = None


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """The function was asked to stop, and has cleaned up."""


@dataclass(frozen=True, kw_only=True)
class NewProcessNeeded:
    """The call must begin again in a process that has loaded nothing yet."""

    reason: str


_BASE_TYPES = (
    Started, Advanced, Noted, Finished, Entered, StoppedByError, Interrupted, NewProcessNeeded,
)  # fmt: skip
_OWN_ERRORS: dict[str, type[ModelcError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ModelcError)
}


def message_types(extra: Iterable[type] = ()) -> MessageTypes:
    """Return the types that a parent accepts: events, ends, and `extra` events and results."""
    return {kind.__name__: kind for kind in (*_BASE_TYPES, *extra)}


def encode_message(message: object) -> bytes:
    """Return the message as one line: the name of its type, and its content."""
    import msgspec

    name, content = type(message).__name__, message
    if isinstance(message, Returned):
        content = message.value
        name = _RETURN_PREFIX + type(content).__name__
    try:
        return msgspec.json.encode([name, content]) + b"\n"
    except UnicodeEncodeError:  # a file name that is not valid text
        plain = _encodable_parts(msgspec.to_builtins(content))
        return msgspec.json.encode([name, plain]) + b"\n"


def _encodable_parts(value: object) -> object:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {key: _encodable_parts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable_parts(item) for item in value]
    return value


def decode_message(line: bytes, accepted: MessageTypes) -> object:
    """Return the message of a line.

    Raises:
        ValueError: the line is not a message of an accepted type.
    """
    import msgspec

    try:
        name, content = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
        kind = accepted[name.removeprefix(_RETURN_PREFIX)]
        value: object = msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a message: {line[:200]!r}") from error
    return Returned(value=value) if name.startswith(_RETURN_PREFIX) else value


class ChildBugError(RuntimeError):
    """An unexpected exception in the child; its `repr` is that of the exception there."""

    def __repr__(self) -> str:
        return str(self)


class _ChildTracebackError(Exception):
    """The traceback of the child as text: the cause of the error that the parent raises."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def describe_error(error: Exception) -> StoppedByError:
    """Return the message that lets the parent raise the error again."""
    trace = "".join(traceback.format_exception(error))
    error = as_usage_error(error) or error
    if not isinstance(error, ModelcError):
        return StoppedByError(kind="", message=repr(error), hint=(), trace=trace)
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _OWN_ERRORS]
    return StoppedByError(
        kind=kinds[0],
        message=error.message,
        hint=error.advice.parts,
        trace=trace,
        code=error.code,
        option=error.option,
        place=error.place,
    )


def rebuild_error(stopped: StoppedByError) -> Exception:
    """Return the error to raise in the parent, with the child's traceback as its cause."""
    kind = _OWN_ERRORS.get(stopped.kind)
    error: Exception
    if kind is None:
        error = ChildBugError(stopped.message)
    else:
        error = kind(
            stopped.message,
            hint=Hint(*stopped.hint),
            code=stopped.code,
            option=stopped.option,
            place=stopped.place,
        )
    error.__cause__ = _ChildTracebackError(stopped.trace)
    return error
