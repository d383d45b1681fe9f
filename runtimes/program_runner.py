"""Run an artifact in a program in C++: one process for all feeds, which may crash or hang."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from ..converters.runner_base import RunnerBase, text_lines
from ..core.children.conversation import Conversation
from ..core.children.processes import OutputLog, ProcessEnd
from ..core.contract import Feed, Outputs
from ..core.errors import LOGGED, RunnerError, first_line
from ..core.process import thread_limit
from .program_files import SEPARATOR, ProgramTensor, decode_records, decode_tensors, encode_tensors

Records: TypeAlias = Sequence[tuple[str, ...]]
OPEN_TIMEOUT = 600.0  # seconds to open an artifact
FEED_TIMEOUT = 600.0  # seconds to answer a feed
MAX_OUTPUT_BYTES = 1 << 33
_MAX_RECORD_BYTES = 1 << 24
_READY, _ERROR = b"ready", b"error"


class TensorNames(Protocol):
    """How the tensors of an artifact are named in its program, and by eager."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs in the signature."""
        ...

    def read_feed(self, feed: Feed) -> list[ProgramTensor]:
        """Return the tensors to send, with the program's names and in its order.

        Raises:
            RunnerError: the artifact does not take the feed.
        """
        ...

    def name_outputs(self, tensors: Sequence[ProgramTensor]) -> Outputs:
        """Return the outputs under eager's names.

        Raises:
            RunnerError: they are not those that the artifact declares.
        """
        ...


class NameTensors(Protocol):
    """Makes the names from what the program says of the model."""

    def __call__(self, records: Records) -> TensorNames:
        """Return the names.

        Raises:
            RunnerError: the model's inputs are not those of the signature.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ProgramCall:
    """A program, a model, and how many seconds it may take for each feed."""

    program: Path
    model: Path
    seconds: float = FEED_TIMEOUT


class ProgramRunner(RunnerBase):
    """Sends each feed to the program, and reads its outputs."""

    def __init__(self, call: ProgramCall, name_tensors: NameTensors) -> None:
        self._call = call
        self._serial = 0
        self._folder = Path(tempfile.mkdtemp(prefix="modelc-program-"))
        description = self._folder / "description"
        command = (call.program, call.model.resolve(), description, thread_limit() or 0)
        self._conversation = Conversation(
            tuple(map(str, command)),
            environment={**os.environ, "TMPDIR": str(self._folder)},
            log=OutputLog(echo=True),
        )
        try:
            self._expect(_READY, b"", OPEN_TIMEOUT)
            self._names = name_tensors(self._read_records(description))
        except BaseException:
            self.close()
            raise
        self.inputs = self._names.inputs

    def run(self, feed: Feed) -> Outputs:
        """Run the feed in the program.

        Raises:
            RunnerError: the program rejected the feed, died, hung or answered something else.
        """
        self._serial += 1
        given, made = (self._folder / f"{kind}-{self._serial}" for kind in ("feed", "outputs"))
        given.write_bytes(encode_tensors(self._names.read_feed(feed)))
        request = f"{self._serial}\t{given}\t{made}\n"
        try:
            self._expect(f"ok {self._serial}".encode(), request.encode(), self._call.seconds)
            content = self._read(made, MAX_OUTPUT_BYTES)
        finally:
            given.unlink(missing_ok=True)
            made.unlink(missing_ok=True)
        try:
            tensors = decode_tensors(content)
        except ValueError as error:
            raise _invalid(f"wrote outputs that cannot be read: {error}") from error
        return self._names.name_outputs(tensors)

    def close(self) -> None:
        """End the program and remove its files."""
        self._conversation.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _expect(self, answer: bytes, request: bytes, seconds: float) -> None:
        """Send a request and check that its answer is this one."""
        reply = self._conversation.ask(request, seconds)
        match reply:
            case None:
                self._conversation.close()
                raise RunnerError(f"the program gave no answer within {seconds:g} s", hint=LOGGED)
            case OSError():
                raise RunnerError(f"the program does not start: {reply}", hint=LOGGED) from reply
            case ProcessEnd():
                kind = "crashed with" if reply.signal_name else "stopped with"
                raise RunnerError(f"the program {kind} {reply.name}", hint=LOGGED)
            case bytes() if reply == answer:
                return
        state, _, rest = reply.partition(b" ")
        serial, _, text = rest.partition(b" ")
        if state == _ERROR and serial == str(self._serial).encode():
            raise RunnerError(_shorten(text.decode("utf-8", "replace")), hint=LOGGED)
        self._conversation.close()  # it answers something else, and will go on so
        raise RunnerError(f"the program answered {reply[:80]!r}, not {answer!r}", hint=LOGGED)

    def _read_records(self, path: Path) -> Records:
        content = self._read(path, _MAX_RECORD_BYTES)
        try:
            return decode_records(content)
        except ValueError as error:
            raise _invalid(f"wrote a description that cannot be read: {error}") from error

    def _read(self, path: Path, most: int) -> bytes:
        """Return a file that the program wrote.

        Raises:
            RunnerError: it did not write it, or it is too large.
        """
        try:
            size = path.stat().st_size
        except OSError as error:
            raise _invalid(f"wrote no {path.name}") from error
        if size > most:
            raise _invalid(f"wrote {size} bytes, more than {most}")
        return path.read_bytes()


def _shorten(text: str) -> str:
    """Return the line of an exception's text with the reason; the log gets the whole text."""
    whole = RuntimeError(text.replace(SEPARATOR, "\n"))
    OutputLog(echo=True).add(f"{whole}\n".encode())
    lines = text_lines(whole)
    traced = any(line.startswith("Traceback of TorchScript") for line in lines)
    return first_line(RuntimeError(lines[-1])) if traced else first_line(whole)


def _invalid(what: str) -> RunnerError:
    return RunnerError(f"the program {what}", hint=LOGGED)
