"""What a child prints outside of its steps: the first and the last of it, however much it is."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from threading import Thread
from typing import IO

WORKER_LOG_FILE = "worker.log"
_KEPT_BYTES = 1 << 16  # bytes of the beginning, and as many of the end
_PIPE_BLOCK = 1 << 14


class WorkerLog:
    """Reads a pipe to its end in a thread of its own, so that the child never waits for it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._head = b""
        self._tail: deque[bytes] = deque()
        self._held = self._left_out = 0
        self._thread = Thread(target=self._read, daemon=True, name="modelc-worker-log")
        self._thread.start()

    def _read(self) -> None:
        while block := os.read(self._stream.fileno(), _PIPE_BLOCK):
            room = _KEPT_BYTES - len(self._head)
            self._head += block[:room]
            self._add(block[max(room, 0) :])

    def _add(self, block: bytes) -> None:
        if not block:
            return
        self._tail.append(block)
        self._held += len(block)
        while self._held - len(self._tail[0]) >= _KEPT_BYTES:
            self._held -= len(self._tail[0])
            self._left_out += len(self._tail.popleft())

    def text(self) -> bytes:
        """What is kept; where something was left out between, that says how much."""
        gap = f"\n[… {self._left_out} bytes are left out here …]\n" if self._left_out else ""
        return self._head + gap.encode() + b"".join(self._tail)

    def close(self, folder: Path, *, patience: float = 1.0) -> None:
        """Write it to the folder, where there is one and anything was printed."""
        self._thread.join(timeout=patience)  # a grandchild may hold the pipe open
        if self.text() and folder.is_dir():
            with (folder / WORKER_LOG_FILE).open("ab") as stream:
                stream.write(self.text())
        if not self._thread.is_alive():
            self._stream.close()
