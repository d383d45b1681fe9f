"""Builds an engine in a process of its own, and makes an error of whatever becomes of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.contract import Advance
from ...core.errors import ConversionError, MissingError, ModelcError, UsageError
from . import trtexec
from .driver import CudaDriver, query_driver
from .inspector import parse_layers
from .package import TensorrtInstallation, find_tensorrt
from .records import (
    REQUEST_FILE,
    RESULT_FILE,
    BuildOutcome,
    BuildRequest,
    BuildResult,
    read_record,
    write_record,
)
from .supervising import LineHandler, ProcessEnd, ProcessTimeouts, run_supervised, write_log

_USUAL = ProcessTimeouts()
_AT_ONCE = ProcessTimeouts(stop=0.0)  # closing its input is nothing to trtexec
# The child's path is made the parent's before anything of modelc is imported: `-m` alone would
# not find what the parent found by a path of its own.
_CHILD_SCRIPT = (
    "import json, runpy, sys; folder = sys.argv[1]; "
    f"sys.path[:] = json.load(open(folder + '/{REQUEST_FILE}', encoding='utf-8'))['path']; "
    f"runpy.run_module('{__package__}.child', run_name='__main__', alter_sys=True)"
)
_LAYERS_FILE = "layers.json"
_SHOWN = 5  # last lines of the log that a message shows


@dataclass(frozen=True, kw_only=True)
class BuildHost:
    """What a build asks of the machine that it is on."""

    driver: Callable[[], CudaDriver] = query_driver
    installed: Callable[[], TensorrtInstallation] = find_tensorrt
    child: tuple[str, ...] = (sys.executable, "-c", _CHILD_SCRIPT)  # the folder comes after it


_ERROR_TYPES: dict[int, type[ModelcError]] = {
    kind.exit_code: kind for kind in (UsageError, MissingError, ConversionError)
}


def build_with_python(
    request: BuildRequest,
    folder: Path,
    advance: Advance,
    *,
    patience: ProcessTimeouts = _USUAL,
    command: Sequence[str] = BuildHost.child,
) -> BuildResult:
    """Build in a Python process that imports tensorrt; this one never does.

    Args:
        request: what to build.
        folder: where the request and its outcome are written.
        advance: told how far the build is.
        patience: how long to wait for what when it is to stop.
        command: what to start; the folder is its last argument.

    Raises:
        ConversionError: the build failed or crashed.
        MissingError: tensorrt or the device is not here.
    """

    def handle_line(line: str) -> None:
        try:
            done, total = json.loads(line)
            advance(int(done), int(total))
        except (ValueError, TypeError):
            write_log(line)  # not ours: something got hold of the pipe

    result, asked = folder / RESULT_FILE, folder / REQUEST_FILE
    result.unlink(missing_ok=True)
    write_record(replace(request, path=tuple(sys.path)), asked)
    try:
        ended = _run_child([*command, str(folder)], heard, patience)
        outcome = _read_outcome(result, ended)
    finally:
        result.unlink(missing_ok=True)
        asked.unlink(missing_ok=True)
    if outcome.built is None:
        raise _outcome_error(outcome)
    return outcome.built


def _read_outcome(path: Path, ended: ProcessEnd) -> BuildOutcome:
    try:
        return read_record(path, BuildOutcome)
    except (OSError, ValueError):
        raise _crash_error("TensorRT's builder", ended) from None


def build_with_trtexec(
    program: str,
    request: BuildRequest,
    folder: Path,
    *,
    version: tuple[int, int, int],
    patience: ProcessTimeouts = _AT_ONCE,
) -> BuildResult:
    """Build with trtexec; it tells no progress.

    Raises:
        ConversionError: the build failed or crashed.
    """
    exported = folder / _LAYERS_FILE
    command = trtexec.trtexec_command(program, version[0], request, exported)
    ended = _run_child(command, write_log, patience)
    if ended.code != 0 or not Path(request.engine).is_file():
        raise _crash_error("trtexec", ended)
    text = exported.read_text("utf-8") if exported.is_file() else ""
    exported.unlink(missing_ok=True)
    found, _ = parse_layers(text)
    return BuildResult(
        tensorrt=".".join(map(str, version)),
        layers=text,
        inputs=found.inputs,
        outputs=found.outputs,
    )


def _run_child(command: Sequence[str], heard: LineHandler, patience: ProcessTimeouts) -> ProcessEnd:
    try:
        return run_supervised(command, heard, patience)
    except OSError as error:
        raise MissingError(
            f"{command[0]} cannot be started: {error}", hint="see modelc doctor"
        ) from error


def _crash_error(who: str, ended: ProcessEnd) -> ConversionError:
    how = f"crashed with {ended.signal_name}" if ended.code < 0 else f"ended with {ended.code}"
    lines = [line for line in ended.tail if line.strip()][-_SHOWN:]
    said = f"; its last lines: {' | '.join(lines)}" if lines else " and said nothing"
    return ConversionError(f"{who} {how}{said}", hint="the whole text is in the log")


def _outcome_error(outcome: BuildOutcome) -> ModelcError:
    if outcome.cancelled:
        return ConversionError("the TensorRT build was stopped", hint="run it again to go on")
    kind = _ERROR_TYPES.get(outcome.exit_code, ConversionError)
    return kind(outcome.message, hint=outcome.hint)
