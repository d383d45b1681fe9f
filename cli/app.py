"""The command line's door: commands in, one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from .. import __version__
from ..core.errors import ModelcError
from . import build_ov, export, inspect, targets, validate

INTERRUPTED = 130
BUG = 70

app = typer.Typer(
    name="modelc",
    help="Convert PyTorch checkpoints, and prove every artifact against eager.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("export")(export.export)
app.command("build-ov")(build_ov.build_ov)
app.command("validate")(validate.validate)
app.command("inspect")(inspect.inspect)
app.command("targets")(targets.targets)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"modelc {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Convert PyTorch checkpoints, and prove every artifact against eager."""


def main() -> None:
    """The `modelc` command.

    It leaves without tearing the interpreter down: that takes a second with torch loaded, and
    native libraries that crash on their way out would change the exit code.
    """
    code = door(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def door(arguments: list[str]) -> int:
    """Run one command; return its exit code. No traceback passes without --debug."""
    try:
        code = app(args=arguments, prog_name="modelc", standalone_mode=False)
    except ModelcError as error:
        return _tell(error, error.message, error.hint, error.exit_code)
    except TyperException as error:
        return _tell(error, error.format_message(), "modelc --help", error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED  # typer itself makes an exit of most interrupts
    except Exception as error:  # noqa: BLE001 - the door: whatever comes here is our bug
        return _tell(error, f"a bug of modelc: {error!r}", f"please report {_bug_log()}", BUG)
    if code == INTERRUPTED:
        hint = "what was proven before is in the output folder; run again to go on"
        return _tell(KeyboardInterrupt(), "interrupted", hint, INTERRUPTED)
    return code if isinstance(code, int) else 0


def _tell(error: BaseException, message: str, hint: str, code: int) -> int:
    """One line of error, one line of hint; the traceback only where it was asked for."""
    from rich.markup import escape

    from .screen import error_console

    console = error_console()
    if "--debug" in sys.argv:
        console.print(escape("".join(traceback.format_exception(error))), soft_wrap=True)
    line = " ".join(message.split())
    console.print(f"[bold red]error:[/] {escape(line)}", soft_wrap=True)
    console.print(f"[dim]hint:[/]  {escape(hint)}", soft_wrap=True)
    return code


def _bug_log() -> Path:
    with tempfile.NamedTemporaryFile(
        "w", prefix="modelc-bug-", suffix=".log", delete=False, encoding="utf-8"
    ) as stream:
        stream.write(traceback.format_exc())
    return Path(stream.name)
