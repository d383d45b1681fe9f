"""Talk with a program line by line: each request is answered with one line."""

from __future__ import annotations

import time
from collections.abc import Mapping
from queue import Empty, Full, Queue, SimpleQueue
from threading import Thread
from typing import TypeAlias

from .limits import LimitExceeded
from .processes import OutputLog, ProcessEnd, ProcessSpec, run_process

Reply: TypeAlias = bytes | ProcessEnd | OSError | None
_EXIT_TIMEOUT = 2.0  # seconds that a program has to exit once its input ends
_INTERVAL = 0.1  # seconds between two looks whether the conversation is closed
_MAX_LINES = 64  # lines that nobody asked for; a program that writes more waits


class Conversation:
    """A program that is asked and answers, until it is closed or dies.

    What it prints to standard error goes to `log`.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        *,
        environment: Mapping[str, str] | None = None,
        log: OutputLog | None = None,
    ) -> None:
        self.log = OutputLog() if log is None else log
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        self._replies: Queue[bytes | ProcessEnd | OSError] = Queue(_MAX_LINES)
        self._closed_at: float | None = None
        self._end: ProcessEnd | OSError | None = None
        self._last: ProcessEnd | OSError | None = None  # set by the thread
        spec = ProcessSpec(
            command=command, environment=environment, more=self._requests, ends_input=True
        )
        self._thread = Thread(target=self._follow, args=(spec,), daemon=True)
        self._thread.start()

    def ask(self, request: bytes, seconds: float) -> Reply:
        """Send a request and return the next line, without its end.

        Args:
            request: a line with its end; empty to wait for the next line alone.
            seconds: how long to wait.

        Returns:
            The line; how the program ended, if it did; an OSError if it could not be started; None
            if nothing came in time.
        """
        if self._end is not None:
            return self._end
        if request:
            self._requests.put(request)
        try:
            reply = self._replies.get(timeout=seconds)
        except Empty:
            return None
        if not isinstance(reply, bytes):
            self._end = reply
        return reply

    def close(self) -> None:
        """End the input of the program, and the program if it does not exit then.

        How it ended is then the reply to each request.
        """
        self._closed_at = time.monotonic()
        self._requests.put(None)
        self._thread.join()
        self._end = self._end or self._last

    def _follow(self, spec: ProcessSpec) -> None:
        try:
            self._last = run_process(spec, self._put, log=self.log, watch=self._watch)
        except OSError as error:
            self._last = error
        self._put(self._last)

    def _put(self, reply: bytes | ProcessEnd | OSError) -> bool:
        while self._closed_at is None:
            try:
                self._replies.put(reply, timeout=_INTERVAL)
            except Full:
                continue
            break
        return False  # a line is never the last one

    def _watch(self, _: int) -> LimitExceeded | None:
        closed = self._closed_at
        if closed is None or time.monotonic() - closed < _EXIT_TIMEOUT:
            return None
        return LimitExceeded(text="it did not exit", hint="run it by hand")
