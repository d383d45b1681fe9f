"""The command line's door: commands in, one place where errors become exit codes."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from .. import __version__
from ..core.errors import ModelcError, UsageError, as_usage_error, nearest_names, refuse_pipe
from ..core.installation import DISTRIBUTION
from ..core.process import handle_signals, is_from_user_code, signals_so_far, sleep_while_waiting
from . import cache, export, folder_commands, run, setup_commands, validate
from .streams import flush_streams, open_streams

INTERRUPTED = 130
BUG = 70
_SIGNALLED = 128  # and the signal's number: what a shell calls a process that a signal ended

app = typer.Typer(
    name="modelc",
    help="Convert PyTorch checkpoints, and prove every artifact against eager.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("export")(export.export)
app.command("run")(run.run)
app.command("build-ov")(export.build_ov)
app.command("build-trt")(export.build_trt)
app.command("validate")(validate.validate)
app.command("debug")(validate.debug)
app.command("report")(folder_commands.report)
app.add_typer(cache.app, name="cache")
app.command("calibrate")(setup_commands.calibrate)
app.command("config")(setup_commands.config)
app.command("doctor")(setup_commands.doctor)
app.command("init")(setup_commands.init)
app.command("inspect")(folder_commands.inspect)
app.command("sbom")(folder_commands.sbom)
app.command("targets")(setup_commands.targets)
app.command("verify")(folder_commands.verify)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"modelc {__version__} ({DISTRIBUTION})")
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
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # its import fails, as it may
    stdout = open_streams()
    sleep_while_waiting()
    _handle_signals()
    code = run_cli(sys.argv[1:])
    flush_streams(stdout)
    os._exit(code)


def _handle_signals() -> None:
    """Have SIGTERM and SIGHUP end the work as an interrupt does; what ignores them goes on."""
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    handle_signals(tuple(signal.Signals[name] for name in names if hasattr(signal, name)))


@dataclass(frozen=True, kw_only=True)
class _CliFault:
    """One thing that stopped the command, as it is told and as `--json` writes it."""

    kind: str
    message: str
    hint: str
    code: str = ""
    option: str = ""
    place: str = ""

    @classmethod
    def of(cls, error: ModelcError) -> _CliFault:
        """What is told of one of our errors."""
        return cls(
            kind=type(error).__name__,
            message=error.text,
            hint=error.hint,
            code=error.code or "",
            option=error.option,
            place="" if error.place is None else str(error.place),
        )


def run_cli(arguments: list[str]) -> int:
    """Run one command; return its exit code. No traceback passes without --debug.

    With `--json`, what stopped it is a JSON document on stdout as well.
    """
    from .console import write_json
    from .streams import forget_folders

    forget_folders()
    debug, json = "--debug" in arguments, "--json" in arguments
    try:
        _check_environment(arguments)
        code = app(args=arguments, prog_name="modelc", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED  # typer itself makes an exit of most interrupts
    except BaseException as error:  # noqa: BLE001 - the door: what is not ours to expect is our bug
        code = (
            INTERRUPTED if _is_interrupt(error) else _report_failure(error, debug=debug, json=json)
        )
    if code == INTERRUPTED:
        number = next(iter(signals_so_far()), signal.SIGINT)
        code = _SIGNALLED + number
        name = "" if number == signal.SIGINT else signal.Signals(number).name
        message = f"ended by {name}" if name else "interrupted"
        _print_faults(
            [_CliFault(kind="Interrupted", message=message, hint=_hint_for_output())], json=json
        )
    code = code if isinstance(code, int) else 0
    write_json(code)
    return code


def _hint_for_output() -> str:
    """What is left of a command that was interrupted, and where."""
    from .streams import last_output_folder

    folder = last_output_folder()
    if folder is None:
        return "nothing was proven yet: run it again"
    return f"what was proven before is in {folder}; run it again to go on"


def _check_environment(arguments: list[str]) -> None:
    """Check what nothing can be done without.

    Raises:
        UsageError: the current folder is gone, or an argument is no text or a named pipe.
    """
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the current folder was removed", hint="cd to another folder") from error
    for argument in arguments:
        if not argument.isascii() and argument != argument.encode(errors="replace").decode():
            raise UsageError(
                f"{argument} is not UTF-8, and could not be recorded",
                hint="rename the file or folder",
            )
        refuse_pipe(Path(argument))


def _is_interrupt(error: BaseException) -> bool:
    """Whether an interrupt is behind it: a library being loaded makes an ImportError of one."""
    if isinstance(error, KeyboardInterrupt):
        return not is_from_user_code(error)
    return error.__cause__ is not None and _is_interrupt(error.__cause__)


def _report_failure(error: BaseException, *, debug: bool, json: bool) -> int:
    """Tell what stopped the work; the exit code of whose it is to mend."""
    error = as_usage_error(error) or error
    if isinstance(error, TyperException):
        code, faults = error.exit_code, _usage_faults(error)
    elif isinstance(error, ModelcError):
        from ..projects.project_faults import split_faults

        code = error.exit_code
        faults = [_CliFault.of(one) for one in split_faults(error)]
    else:
        fault = _CliFault(kind="Bug", message=f"a bug of modelc: {error!r}", hint=_bug_hint())
        code, faults = BUG, [fault]
    _print_faults(faults, json=json, error=error if debug else None)
    return code


def _usage_faults(error: TyperException) -> list[_CliFault]:
    """An error that typer found in the arguments; without a message it has shown the help."""
    message = error.format_message().replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    command = "modelc" if context is None else context.command_path
    hint = f"{command} --help"
    near = _nearest_options(error)
    if near:
        message, hint = message.partition(" (")[0], f"did you mean {' or '.join(near)}?"
    return [_CliFault(kind="UsageError", message=message, hint=hint)] if message else []


def _nearest_options(error: TyperException) -> list[str]:
    """The options that a misspelt one may be, the closest first."""
    options: Sequence[str] = getattr(error, "possibilities", None) or ()
    return nearest_names(str(getattr(error, "option_name", "")), options, count=2)


def _print_faults(
    faults: Sequence[_CliFault], *, json: bool, error: BaseException | None = None
) -> None:
    """Each on stderr; as one document on stdout where that is asked for."""
    from .console import show_json_error

    for one in faults:
        _print_error(one.message, one.hint, error)
    if json and faults:
        told = [{**asdict(one), "message": _one_line(one.message)} for one in faults]
        show_json_error(told)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _print_error(message: str, hint: str, error: BaseException | None = None) -> None:
    """One line of error, one line of hint; before them the traceback of `error`, if given."""
    from rich.markup import escape

    from .console import error_console

    with error_console() as console:
        if error is not None:
            for line in "".join(traceback.format_exception(error)).splitlines():
                console.print(escape(line), soft_wrap=True)
        console.print(f"[bold red]error:[/] {escape(_one_line(message))}", soft_wrap=True)
        console.print(f"[dim]hint:[/]  {escape(_one_line(hint))}", soft_wrap=True)


def _bug_hint() -> str:
    """Where the traceback is; a disk that takes no file must not hide what happened."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="modelc-bug-", suffix=".log", delete=False, encoding="utf-8",
            errors="backslashreplace",
        ) as stream:  # fmt: skip
            stream.write(traceback.format_exc())
    except OSError:
        return "run it again with --debug, and please report what it shows"
    return f"please report {stream.name}"
