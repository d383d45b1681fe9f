"""A limit on how long a call may take: a model's own loop may never end on values far out."""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ..core.torch_modes import through_operators

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils._python_dispatch import TorchDispatchMode

_HEARD = 8  # turns of a loop: what waits for a thread is raised at the end of one
_AGAIN = 1.0  # seconds until the call is told once more: a bare except may have taken it


class TooLongError(BaseException):
    """The time is over. No `Exception`: models catch these."""


@contextmanager
def within(seconds: float, *, again: float = _AGAIN) -> Iterator[Watch]:
    """End the code in the block after so many seconds; told `again` where it went on.

    What runs is Python: it is ended at its next instruction. One operator that takes for ever is
    not ended, and a loop within TorchScript only in `stepwise`.

    Raises:
        TooLongError: the time was over.
    """
    watch = Watch(threading.get_ident(), seconds, again)
    try:
        yield watch
    finally:
        while not watch.ended:  # what was told and not heard before comes now
            with suppress(TooLongError):
                watch.end()


def stepwise() -> TorchDispatchMode:
    """A mode in which every operator passes through Python, those of TorchScript too."""
    return through_operators(lambda func, args, kwargs: func(*args, **kwargs))


class Watch:
    """Tells a thread that its time is over, until it has ended what it did."""

    def __init__(self, thread: int, seconds: float, again: float) -> None:
        self._thread, self._seconds, self._again = thread, seconds, again
        self.over = False  # whether the thread was told
        self._lock, self._ended = threading.Lock(), threading.Event()
        self.ended = False
        threading.Thread(target=self._watch, daemon=True, name="modelc-patience").start()

    def _watch(self) -> None:
        wait = self._seconds
        while not self._ended.wait(wait):
            with self._lock:  # not while it ends: then nobody would be there to take it
                if not self._ended.is_set():
                    self.over = True
                    _raise_in(self._thread, TooLongError)
            wait = self._again

    def end(self) -> None:
        """No word any more; one that was given and not heard yet is raised in here."""
        with self._lock:
            self._ended.set()
        for _ in range(_HEARD):
            pass
        self.ended = True


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    """Have the thread raise this at its next instruction.

    It is never taken back by a None: CPython 3.11 would go on looking for what it was told of, and
    hang in the next function that is traced.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
