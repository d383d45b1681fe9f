"""How many threads the runtimes of this process may start, where several processes share a machine.

torch and the BLAS libraries are told by variables before they are loaded; other runtimes know none,
and are told when a model is opened.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "BLIS_NUM_THREADS", "TBB_NUM_THREADS", "RAYON_NUM_THREADS",
)  # fmt: skip
WAIT_VARIABLE = "OMP_WAIT_POLICY"
_thread_limits: list[int] = []


def sleep_while_waiting() -> None:
    """Have threads of OpenMP sleep where they wait, unless the user's environment says how.

    As a rule they spin, and two processes on the same cores then wait for each other: several times
    the seconds of both. To be called before torch is loaded.
    """
    os.environ.setdefault(WAIT_VARIABLE, "PASSIVE")


def thread_environment(threads: int) -> Mapping[str, str]:
    """What to set in the environment of a process before its libraries are loaded."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def limit_threads(threads: int) -> None:
    """Hold the runtimes that are opened in this process from now on to so many threads."""
    _thread_limits[:] = [threads]


def thread_limit() -> int | None:
    """How many threads a runtime may start; None leaves that to it."""
    return _thread_limits[0] if _thread_limits else None
