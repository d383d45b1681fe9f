"""What a run in a process of its own may take: time, memory, words, threads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

from ...core.errors import UsageError

MIB = 1 << 20
MAX_CHATTER = 64 * MIB  # bytes; the logs of an INT8 search over a large model have a tenth of that


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """The most that one step may take before its process is ended.

    `timeout` is in seconds, for each step. `memory` is in bytes, of the process and all that it
    started. `chatter` is in bytes that the run writes to its logs. `threads` are those of one
    runtime. None is no bound. `grace` is how many seconds an interrupted run has to put away what
    it was at. `stop` is asked every moment: once it says so, the run ends as by an interrupt.
    """

    timeout: float | None = None
    memory: int | None = None
    chatter: int | None = MAX_CHATTER
    threads: int | None = None
    grace: float = 5.0
    stop: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        for name, value in (("--timeout", self.timeout), ("--memory", self.memory)):
            if value is not None and os.name != "posix":
                raise UsageError(
                    f"{name} {value:g} needs a POSIX system, and this is none",
                    hint="leave it out: what Windows supports is in docs/platforms.md",
                )
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise UsageError(
                f"--timeout {self.timeout:g} is no time", hint="give seconds: 600", option="timeout"
            )
        if self.memory is not None and self.memory < MIB:
            raise UsageError(
                f"--memory {self.memory} bytes is too little for any step",
                hint="give a size: 8GB",
                option="memory",
            )
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"{self.threads} threads are none", hint="give 1 or more")
