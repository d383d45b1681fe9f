"""`--isolate`, `--timeout` and `--memory`: a process of its own for a run, and its bounds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ..core.errors import ErrorCode, UsageError
from ..core.events import Tell, ignore_events
from .options import Panel

if TYPE_CHECKING:
    from ..pipeline.inspection import ApiCall
    from ..pipeline.isolation.watchdog import ProcessLimits

Returned = TypeVar("Returned")
_ISOLATE_VARIABLE = "MODELC_ISOLATE"

Isolate = Annotated[
    bool | None,
    typer.Option(
        "--isolate/--no-isolate",
        help="Work in a process of its own, so that a crash or a bound ends one step; the default.",
        rich_help_panel=Panel.ISOLATION,
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="TIME",
        help="The most that one step may take, as 600 or 10min; beyond it, that step fails.",
        rich_help_panel=Panel.ISOLATION,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="The most memory that a step may take, as 8GB; beyond it, that step fails.",
        rich_help_panel=Panel.ISOLATION,
    ),
]


def process_bounds(
    isolate: bool | None, *, timeout: str | None = None, memory: str | None = None
) -> ProcessLimits | None:
    """The bounds of a process of its own; None where the work is done in this one.

    Raises:
        UsageError: a bound was given where there is no process to hold to it.
    """
    from ..pipeline.isolation.watchdog import ProcessLimits
    from ..projects.quantities import parse_bytes, parse_seconds

    for name, value in (("--timeout", timeout), ("--memory", memory)):
        if isolate is False and value is not None:
            raise UsageError(
                f"{name} has no effect with --no-isolate",
                hint="leave one of them out",
                option="no-isolate",
                code=ErrorCode.NO_EFFECT,
            )
    bounds = ProcessLimits(
        timeout=None if timeout is None else parse_seconds(timeout),
        memory=None if memory is None else parse_bytes(memory),
    )
    asked = isolate or timeout is not None or memory is not None
    return bounds if asked or (isolate is None and _isolates_by_default()) else None


def run_call(
    call: ApiCall, kind: type[Returned], bounds: ProcessLimits | None, tell: Tell = ignore_events
) -> Returned:
    """What the call returns, of this type: from a process of its own where there are bounds.

    Raises:
        ModelcError: what the call raises, or what ended its process.
    """
    if bounds is None:
        from ..pipeline.inspection import perform_call

        found = perform_call(call, tell)
    else:
        from ..pipeline.isolation.supervisor import call_isolated

        found = call_isolated(call, tell, bounds=bounds)
    if not isinstance(found, kind):
        raise TypeError(f"{call.function} returned a {type(found).__name__}")
    return found


def _isolates_by_default() -> bool:
    """What holds where nothing is said: processes of their own, where the system has sessions."""
    said = os.environ.get(_ISOLATE_VARIABLE, "")
    if said not in ("", "0", "1"):
        raise UsageError(
            f"{_ISOLATE_VARIABLE}={said} is neither 0 nor 1",
            hint=f"set {_ISOLATE_VARIABLE}=1, or not",
        )
    return os.name == "posix" if said == "" else said == "1"
