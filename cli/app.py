"""Entry point of the command line: runs one command and turns errors into exit codes."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from .. import __version__
from ..core.errors import ModelcError, UsageError, as_usage_error, nearest_names, refuse_pipe
from ..core.installation import DISTRIBUTION
from ..core.process import handle_signals, is_from_user_code, signals_so_far, sleep_while_waiting
from .console import write_json
from .streams import flush_streams, forget_folders, open_streams

INTERRUPTED = 130
BUG = 70
_SIGNALLED = 128  # plus the signal number: the shell's exit code of a signalled process

# The module and the function of each command, in the order of the help. The functions of an
# application of several commands are in its `app`.
_COMMANDS = {
    "export": ("export", "export"),
    "run": ("run", "run"),
    "merge": ("fleet_commands", "merge"),
    "finish": ("fleet_commands", "finish"),
    "build-ov": ("export", "build_ov"),
    "build-trt": ("export", "build_trt"),
    "validate": ("validate", "validate"),
    "debug": ("validate", "debug"),
    "bench": ("benchmark", "benchmark"),
    "pack": ("pack", "pack"),
    "report": ("folder_commands", "report"),
    "cache": ("cache", "app"),
    "calibrate": ("setup_commands", "calibrate"),
    "config": ("setup_commands", "config"),
    "doctor": ("setup_commands", "doctor"),
    "init": ("setup_commands", "init"),
    "inspect": ("folder_commands", "inspect"),
    "sbom": ("folder_commands", "sbom"),
    "targets": ("setup_commands", "targets"),
    "verify": ("folder_commands", "verify"),
}


def _version(value: bool) -> None:
    if value:
        typer.echo(f"modelc {__version__} ({DISTRIBUTION})")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Convert PyTorch checkpoints and validate every artifact against the eager model."""


def make_app(name: str = "") -> typer.Typer:
    """Make the application with the command `name`, or with all if it is not one's name.

    The modules of the other commands are not imported, which would take longer than typer itself.
    """
    app = typer.Typer(
        name="modelc",
        help="Convert PyTorch checkpoints and validate every artifact against the eager model.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for one in [name] if name in _COMMANDS else _COMMANDS:
        module, function = _COMMANDS[one]
        command = getattr(import_module(f".{module}", __package__), function)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=one)
        else:
            app.command(one)(command)
    return app


def main() -> None:
    """Run the `modelc` command.

    Exits without interpreter teardown, which takes a second with torch loaded, and in which native
    libraries may crash and change the exit code.
    """
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # its import fails
    stdout = open_streams()
    sleep_while_waiting()
    names = ("SIGINT", "SIGTERM", "SIGHUP")  # all end as an interrupt, unless they are ignored
    handle_signals(tuple(signal.Signals[name] for name in names if hasattr(signal, name)))
    code = run_cli(sys.argv[1:])
    flush_streams(stdout)
    os._exit(code)


@dataclass(frozen=True, kw_only=True)
class _CliFault:
    """One error that stopped the command, as printed and as written by `--json`."""

    kind: str
    message: str
    hint: str
    code: str = ""
    option: str = ""
    place: str = ""

    @classmethod
    def of(cls, error: ModelcError) -> _CliFault:
        """Create the fault of a modelc error."""
        return cls(
            kind=type(error).__name__,
            message=error.text,
            hint=error.hint,
            code=error.code or "",
            option=error.option,
            place="" if error.place is None else str(error.place),
        )


def run_cli(arguments: list[str]) -> int:
    """Run one command and return its exit code; print a traceback only with --debug.

    With `--json`, errors are also written to stdout as a JSON document.
    """
    forget_folders()
    debug, json = "--debug" in arguments, "--json" in arguments
    try:
        _check_environment(arguments)
        app = make_app(*arguments[:1])
        code = app(args=arguments, prog_name="modelc", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED  # typer converts most interrupts to an exit
    except BaseException as error:  # noqa: BLE001 - any unexpected error is a bug in modelc
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
    """Describe what an interrupted command left, and where."""
    from .streams import last_output_folder

    folder = last_output_folder()
    if folder is None:
        return "nothing was finished; run it again"
    return f"finished artifacts are in {folder}; run it again to continue"


def _check_environment(arguments: list[str]) -> None:
    """Check the requirements of every command.

    Raises:
        UsageError: the current folder was removed, an argument or a variable of modelc is not text,
            or an argument is a named pipe.
    """
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the current folder was removed", hint="cd to another folder") from error
    own = [f"{name}={text}" for name, text in os.environ.items() if name.startswith("MODELC_")]
    for text in (*arguments, *own):
        if not text.isascii() and text != text.encode(errors="replace").decode():
            raise UsageError(
                f"{text} is not UTF-8 and cannot be recorded",
                hint="rename the file or folder, or write the value in UTF-8",
            )
    for argument in arguments:
        refuse_pipe(Path(argument))


def _is_interrupt(error: BaseException) -> bool:
    """Whether an interrupt caused the error: during an import it may become an ImportError."""
    if isinstance(error, KeyboardInterrupt):
        return not is_from_user_code(error)
    return error.__cause__ is not None and _is_interrupt(error.__cause__)


def _report_failure(error: BaseException, *, debug: bool, json: bool) -> int:
    """Report the error and return its exit code."""
    error = as_usage_error(error) or error
    if isinstance(error, TyperException):
        code, faults = error.exit_code, _usage_faults(error)
    elif isinstance(error, ModelcError):
        from ..projects.project_faults import split_faults

        code = error.exit_code
        faults = [_CliFault.of(one) for one in split_faults(error)]
    else:
        fault = _CliFault(kind="Bug", message=f"bug in modelc: {error!r}", hint=_bug_hint())
        code, faults = BUG, [fault]
    _print_faults(faults, json=json, error=error if debug else None)
    return code


def _usage_faults(error: TyperException) -> list[_CliFault]:
    """Convert an error of typer in the arguments; without a message, typer has shown the help."""
    message = error.format_message().replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    command = "modelc" if context is None else context.command_path
    hint = f"{command} --help"
    described = str(getattr(getattr(error, "param", None), "help", None) or "")
    if described and message.startswith("Missing argument"):
        message = f"{message.rstrip('.')}: {described[0].lower()}{described[1:].rstrip('.')}"
    if (other := _other_option(error, context)) is not None:
        message, hint = message.partition(" (")[0], other  # typer lists its own suggestions
    elif (invalid := _invalid_value(error)) is not None:
        message, hint = invalid
    elif message.endswith("requires an argument."):
        hint = f"write a value after {getattr(error, 'option_name', 'the option')}"
    return [_CliFault(kind="UsageError", message=message, hint=hint)] if message else []


def _other_option(error: TyperException, context: typer.Context | None) -> str | None:
    """Return the hint for an unknown option: the commands that have it, or similar options."""
    option = str(getattr(error, "option_name", ""))
    if owners := _commands_with(option, context):
        names = " and ".join(filter(None, (", ".join(owners[:-1]), owners[-1])))
        return f"{option} is an option of {names}"
    near = nearest_names(option, getattr(error, "possibilities", None) or (), count=2)
    return f"did you mean {' or '.join(near)}?" if near else None


def _commands_with(option: str, context: typer.Context | None) -> list[str]:
    """Return the commands that have an option, as `modelc export`."""
    if not option or context is None:
        return []
    root = context.find_root()
    commands = getattr(typer.main.get_command(make_app()), "commands", {})
    return [
        f"{root.command_path} {name}"
        for name, command in commands.items()
        if any(option in one.opts for one in command.params)
    ]


_KINDS = {"int_parsing": "a whole number", "float_parsing": "a number"}


def _invalid_value(error: TyperException) -> tuple[str, str] | None:
    """Return the message and the hint for a value that is no number; None for other errors."""
    list_errors, parameter = getattr(error.__cause__, "errors", None), getattr(error, "param", None)
    found = list_errors()[0] if list_errors is not None else {}
    kind = _KINDS.get(found.get("type", ""))
    if kind is None or parameter is None:
        return None
    return f"{parameter.opts[-1]} cannot be {found['input']!r}", f"give {kind}"


def _print_faults(
    faults: Sequence[_CliFault], *, json: bool, error: BaseException | None = None
) -> None:
    """Print each fault on stderr, and as one document on stdout with `json`."""
    from .console import show_json_error

    for one in faults:
        _print_error(one.message, one.hint, error)
    if json and faults:
        show_json_error([{**asdict(one), "message": _one_line(one.message)} for one in faults])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _print_error(message: str, hint: str, error: BaseException | None = None) -> None:
    """Print the error and its hint, one line each, after the traceback of `error` if given."""
    from rich.markup import escape

    from .console import error_console

    with error_console() as console:
        if error is not None:
            for line in "".join(traceback.format_exception(error)).splitlines():
                console.print(escape(line), soft_wrap=True)
        console.print(f"[bold red]error:[/] {escape(_one_line(message))}", soft_wrap=True)
        console.print(f"[dim]hint:[/]  {escape(_one_line(hint))}", soft_wrap=True)


def _bug_hint() -> str:
    """Return where the traceback is; a failing disk must not hide the error."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="modelc-bug-", suffix=".log", delete=False, encoding="utf-8",
            errors="backslashreplace",
        ) as stream:  # fmt: skip
            stream.write(traceback.format_exc())
    except OSError:
        return "run it again with --debug, and report the traceback"
    return f"report it with {stream.name}"
