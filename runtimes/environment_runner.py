"""Run feeds in a process of another environment: requests are lines of JSON, arrays are files."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..converters.runner_base import RunnerBase
from ..core.children.conversation import Conversation
from ..core.children.processes import OutputLog, ProcessEnd
from ..core.contract import Array, Feed, Outputs
from ..core.errors import LOGGED, RunnerError
from .runtime_environments import CHILD_SCRIPT

if TYPE_CHECKING:
    from typing import BinaryIO

_ANSWER_SECONDS = 600.0  # to open a model, or to run one feed
_MAX_ANSWER = 1 << 20  # bytes of a line
_MAX_TEXT = 400  # characters of a message
_MAX_OUTPUTS = 4096
_MAX_BYTES = 1 << 34  # of an output


class EnvironmentRunner(RunnerBase):
    """An artifact that is open in a process of another environment."""

    def __init__(
        self, interpreter: Path, request: Mapping[str, object], seconds: float = _ANSWER_SECONDS
    ) -> None:
        self._seconds = seconds
        self._fault: RunnerError | None = None  # after which the process is not asked again
        self._folder = tempfile.TemporaryDirectory(prefix="modelc-runtime-")
        self._place, self._number = Path(self._folder.name), 0
        command = (str(interpreter), "-I", str(CHILD_SCRIPT), str(self._place))
        self._process = Conversation(command, log=OutputLog(echo=True))  # to the log of the step
        try:
            answer = self.ask(request)
            self.inputs = tuple(_texts(answer.get("inputs")))
        except BaseException:
            self.close()
            raise

    def run(self, feed: Feed) -> Outputs:
        """Run the feed's arrays unchanged; return what the runtime gave.

        Raises:
            RunnerError: the runtime rejected it, crashed, hung, or gave no arrays.
        """
        import numpy as np

        self._number += 1
        names = [name for name in self.inputs if name in feed]
        for place, name in enumerate(names):
            path = self._place / f"in-{self._number}-{place}.npy"
            np.save(path, feed[name], allow_pickle=False)
        answer = self.ask({"run": self._number, "inputs": names})
        found = _texts(answer.get("outputs"))
        files = [self._place / f"out-{self._number}-{place}.npy" for place in range(len(found))]
        try:
            return {name: _read_array(path) for name, path in zip(found, files, strict=True)}
        except (OSError, ValueError) as error:
            raise self._garbage(f"an output that cannot be read: {error}") from error
        finally:
            for path in self._place.glob("*.npy"):
                path.unlink()

    def close(self) -> None:
        """End the process, and remove its files."""
        self._process.close()
        self._folder.cleanup()

    def ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            RunnerError: the answer is an error, or there is none.
        """
        if self._fault is not None:
            raise self._fault
        line = self._process.ask(json.dumps(request).encode() + b"\n", self._seconds)
        if not isinstance(line, bytes):
            raise self._silence(line)
        try:
            answer = json.loads(line) if len(line) <= _MAX_ANSWER else None
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._garbage("what is no answer")
        if "error" in answer:
            raise RunnerError(str(answer["error"])[:_MAX_TEXT], hint=LOGGED)
        return answer

    def _silence(self, reply: ProcessEnd | OSError | None) -> RunnerError:
        """Return the error where no line came."""
        if isinstance(reply, ProcessEnd):
            return self._end_with(f"its process ended with {reply.name}")
        if isinstance(reply, OSError):
            return self._end_with(f"its process cannot be started: {reply.strerror}")
        return self._end_with(f"no answer within {self._seconds:g} s")

    def _garbage(self, what: str) -> RunnerError:
        return self._end_with(f"its process gave {what}")

    def _end_with(self, text: str) -> RunnerError:
        """End the process, and return the error that this and each later feed has."""
        self._process.close()
        self._fault = RunnerError(text, hint=LOGGED)
        return self._fault


def _texts(value: object) -> list[str]:
    """Return a list of different names.

    Raises:
        RunnerError: it is none.
    """
    good = isinstance(value, list) and len(value) <= _MAX_OUTPUTS
    if not good or not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise RunnerError("its process gave no names", hint=LOGGED)
    if len(set(value)) != len(value):
        raise RunnerError("two outputs have one name", hint=LOGGED)
    return value


def _read_array(path: Path) -> Array:
    """Read an array; its header must agree with the size of the file before memory is taken.

    Raises:
        ValueError: the file is no array, or holds objects.
        OSError: it cannot be read.
    """
    import numpy as np

    with path.open("rb") as stream:
        size = _size_in_header(stream)
        rest = path.stat().st_size - stream.tell()
        if size != rest or size > _MAX_BYTES:
            raise ValueError(f"its header states {size} bytes, and it has {rest}")
    array: Array = np.load(path, allow_pickle=False)
    return array


def _size_in_header(stream: BinaryIO) -> int:
    from numpy.lib import format as npy

    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = npy.read_array_header_2_0(stream)
    else:
        raise ValueError(f"version {version} of the format")
    if dtype.hasobject:
        raise ValueError("it holds objects")
    return math.prod(shape) * dtype.itemsize
