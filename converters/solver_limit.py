"""A limit on the time that torch's symbolic solver takes in one capture.

Sizes that are padded, rounded and strided again and again make conditions that sympy simplifies for
minutes or hours. This is the one place where a decision depends on a clock: what was stopped is
refused for now, the next capture is tried, and a longer limit may be given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..core.errors import Hint, Option
from .capture.causes import RefusedError

# What every condition goes through, by where it stands: all other work of the solver is in these.
_WORKER = "_maybe_evaluate_static_worker"
_METHODS = ("simplify", "_maybe_evaluate_static")


class SolverTimeoutError(RefusedError):
    """The solver took longer than it may; the same capture may end with more time."""


@contextmanager
def limit_solver(seconds: float) -> Iterator[None]:
    """Stop a capture in the block once torch's solver has taken so long, over all its calls.

    Raises:
        SolverTimeoutError: it has; torch may hand it on as the cause of an error of its own.
    """
    from torch.fx.experimental import symbolic_shapes

    clock = _SolverClock(seconds)
    owners: list[tuple[Any, str]] = [(symbolic_shapes, _WORKER)]
    owners += [(symbolic_shapes.ShapeEnv, name) for name in _METHODS]
    kept = [(owner, name, getattr(owner, name)) for owner, name in owners]
    try:
        for owner, name, function in kept:
            setattr(owner, name, clock.time_calls(function))
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


class _SolverClock:
    """The seconds that the solver took so far; calls within calls count once."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._spent = 0.0
        self._since: float | None = None

    def time_calls(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted; it is refused once the limit is reached."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._check()
            if self._since is not None:
                return function(*args, **kwargs)
            self._since = time.monotonic()
            try:
                return function(*args, **kwargs)
            finally:
                self._spent += time.monotonic() - self._since
                self._since = None

        for name in ("cache_clear", "cache_info"):  # what torch asks of its cached functions
            if hasattr(function, name):
                setattr(call, name, getattr(function, name))
        return call

    def _check(self) -> None:
        running = 0.0 if self._since is None else time.monotonic() - self._since
        if self._spent + running > self._limit:
            raise SolverTimeoutError(
                f"torch's symbolic solver was stopped after {self._limit:g} s: its conditions on"
                " sizes do not end",
                hint=Hint(
                    "give it more with ",
                    Option("capture-timeout"),
                    ", state narrower or fixed sizes, or ",
                    Option("capture", "trace"),
                ),
                passing=True,
                option="capture-timeout",
            )
