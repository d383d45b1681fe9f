"""Events that the library emits while it works; only the command line draws them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, kw_only=True)
class Started:
    """A step started that may take a while; `runs_artifact` where a converted model runs in it."""

    step: str
    runs_artifact: bool = False


@dataclass(frozen=True, kw_only=True)
class Advanced:
    """The running step reached `done` of `total` units; `in_bytes` if these are bytes."""

    step: str
    done: int
    total: int
    in_bytes: bool = False


@dataclass(frozen=True, kw_only=True)
class Noted:
    """A line for the user; `warning` if it may change what they do."""

    text: str
    warning: bool = False


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A step ended after `seconds`; `passed` is its result.

    For one `attempt` of several, another may pass after a failed one.
    """

    step: str
    passed: bool
    seconds: float
    detail: str = ""
    attempt: bool = False


@dataclass(frozen=True, kw_only=True)
class Entered:
    """Work on the artifact of that name started; it lasts until the next one, or the end."""

    artifact: str


Event: TypeAlias = Started | Advanced | Noted | Finished | Entered
Tell: TypeAlias = Callable[[Event], None]


def ignore_events(event: Event) -> None:
    """Ignore all events."""
