"""What the library tells while it works; only the command line draws it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, kw_only=True)
class Started:
    """A step that may take a while began; `runs_artifact` where a converted model runs in it."""

    step: str
    runs_artifact: bool = False


@dataclass(frozen=True, kw_only=True)
class Advanced:
    """The running step got `done` of `total` units further."""

    step: str
    done: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Noted:
    """One line that the user should see; `warning` where it may change what they do."""

    text: str
    warning: bool = False


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A step ended after `seconds`; `passed` is what its result was.

    Where it is one `attempt` of several, another may pass after one that did not.
    """

    step: str
    passed: bool
    seconds: float
    detail: str = ""
    attempt: bool = False


@dataclass(frozen=True, kw_only=True)
class Entered:
    """Work on the artifact of that name began; it goes on until the next one, or the end."""

    artifact: str


Event: TypeAlias = Started | Advanced | Noted | Finished | Entered
Tell: TypeAlias = Callable[[Event], None]


def ignore_events(event: Event) -> None:
    """Listen to nothing."""
