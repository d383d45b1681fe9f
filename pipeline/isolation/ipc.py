"""Messages from child to parent, one JSON line each, and the request to the child.

The parent unpickles nothing: the child has run the user's code and native libraries.
"""

from __future__ import annotations

import pickle
import struct
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ...core import errors
from ...core.errors import ErrorCode, Hint, ModelcError, Option, Place, as_usage_error, encodable
from ...core.events import Advanced, Entered, Finished, Noted, Started
from ...core.findings import Localisation
from ...core.manifest import Manifest
from ...core.verdict import Verdict
from ..inspection import ApiCall, CallValue, CheckpointContents, InspectedFile
from ..recorded_run import AnyRequest

if TYPE_CHECKING:
    from ...core.events import Event


@dataclass(frozen=True, kw_only=True)
class InitialManifest:
    """The record that the run begins with."""

    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class FinalManifest:
    """The record that the run ended with."""

    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """What a called function returned; one of the fields is given."""

    manifest: Manifest | None = None
    verdict: Verdict | None = None
    localisation: Localisation | None = None
    looked: InspectedFile | None = None
    contents: CheckpointContents | None = None

    @classmethod
    def of(cls, value: CallValue) -> CallResult:
        """The message of a value."""
        match value:
            case Manifest():
                return cls(manifest=value)
            case Verdict():
                return cls(verdict=value)
            case Localisation():
                return cls(localisation=value)
            case InspectedFile():
                return cls(looked=value)
            case _:
                return cls(contents=value)

    @property
    def value(self) -> CallValue:
        """The value that was returned."""
        for value in (
            self.manifest,
            self.verdict,
            self.localisation,
            self.looked,
            self.contents,
        ):
            if value is not None:
                return value
        raise ValueError("an answer without a value")


@dataclass(frozen=True, kw_only=True)
class StoppedByError:
    """An error that stopped the run: its class, where that is one of ours, and its traceback."""

    kind: str
    message: str
    hint: tuple[str | Option, ...]
    trace: str
    code: ErrorCode | None = None
    option: str = ""
    place: Place | None = None


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """The run was told to end, and has put away what it was at."""


Message: TypeAlias = (
    Started
    | Advanced
    | Noted
    | Finished
    | Entered
    | InitialManifest
    | FinalManifest
    | CallResult
    | StoppedByError
    | Interrupted
)
_MESSAGE_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (
        Started, Advanced, Noted, Finished, Entered,
        InitialManifest, FinalManifest, CallResult, StoppedByError, Interrupted,
    )
}  # fmt: skip
_OWN_ERRORS: dict[str, type[ModelcError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ModelcError)
}


class ChildBugError(RuntimeError):
    """A bug of ours in the child; it is written as the exception was there."""

    def __repr__(self) -> str:
        return str(self)


class _ChildTracebackError(Exception):
    """The traceback of the child, as text: the cause of the error that is raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def encode_message(message: Message | Event) -> bytes:
    """The message as one line."""
    import msgspec

    try:
        return msgspec.json.encode([type(message).__name__, message]) + b"\n"
    except UnicodeEncodeError:  # a name of the user's that is no text
        plain = _encodable_parts(msgspec.to_builtins(message))
        return msgspec.json.encode([type(message).__name__, plain]) + b"\n"


def _encodable_parts(value: object) -> object:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {key: _encodable_parts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable_parts(item) for item in value]
    return value


def decode_message(line: bytes) -> Message:
    """The message of a line.

    Raises:
        ValueError: it is none.
    """
    import msgspec

    try:
        name, content = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
        return msgspec.json.decode(content, type=_MESSAGE_KINDS[name])
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"no message: {line[:200]!r}") from error


def describe_error(error: Exception) -> StoppedByError:
    """How the parent is told of an error."""
    trace = "".join(traceback.format_exception(error))
    error = as_usage_error(error) or error
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _OWN_ERRORS]
    if not isinstance(error, ModelcError):
        return StoppedByError(kind="", message=repr(error), hint=(), trace=trace)
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
    """The error to raise in the parent: of its class, with the child's traceback as its cause."""
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
