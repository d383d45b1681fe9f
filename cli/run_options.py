"""Options of how a command runs: child process and limits, project file, signing key."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ..core.errors import ErrorCode, UsageError
from ..core.events import Tell, ignore_events
from .common_options import Panel

if TYPE_CHECKING:
    from ..core.children.limits import ProcessLimits
    from ..pipeline.isolation.worker import ApiCall
    from ..pipeline.provenance.signing import PrivateKey, PublicKey
    from ..projects.setting_layers import Overrides

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
    from ..core.children.limits import ProcessLimits
    from ..projects.setting_values import parse_bytes, parse_seconds

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
        from ..pipeline.isolation.worker import perform_call

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


ProjectFile = Annotated[
    Path,
    typer.Option(
        "-f", "--file", metavar="FILE", help="The project.", rich_help_panel=Panel.PROJECT
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="[MODEL.]KEY=VALUE",
        help="Go over the file, as seed=3, digits.to=onnx,openvino:fp16 or gates.max-size=50MB. "
        "Repeatable.",
        rich_help_panel=Panel.PROJECT,
    ),
]


def collect_overrides(
    sets: Sequence[str] | None, flags: Mapping[str, str | None] | None = None
) -> Overrides:
    """What is said beside the file: options of the run by key, `--set`, and MODELC_ variables."""
    from ..projects.setting_layers import VARIABLE_PREFIX, Overrides

    ours = {
        name: text
        for name, text in os.environ.items()
        if name.startswith(VARIABLE_PREFIX) and name != SIGN_KEY_VARIABLE
    }
    plain = {name: text for name, text in (flags or {}).items() if text is not None}
    return Overrides(sets=tuple(sets or ()), flags=plain, environment=ours)


SIGN_KEY_VARIABLE = "MODELC_SIGN_KEY"

SignKey = Annotated[
    Path | None,
    typer.Option(
        "--sign-key",
        envvar=SIGN_KEY_VARIABLE,
        metavar="PEM",
        help="Sign the manifest with this ed25519 key, into manifest.json.sig.",
        rich_help_panel=Panel.SIGNING,
    ),
]


def load_private_key(path: Path | None) -> PrivateKey | None:
    """The key in the file that was named, if one was."""
    if path is None:
        return None
    from ..pipeline.provenance.signing import read_private_key

    return read_private_key(path)


def load_public_key(path: Path | None) -> PublicKey | None:
    """As `load_private_key`, of the key that signatures are checked with."""
    if path is None:
        return None
    from ..pipeline.provenance.signing import read_public_key

    return read_public_key(path)


def is_on_command_line(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line, and not in the environment alone."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
