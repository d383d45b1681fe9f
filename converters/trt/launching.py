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
from .driver import Driver, probe
from .inspector import understood
from .package import Installed, find
from .records import (
    CHILD_FILE,
    RESULT_FILE,
    BuildRequest,
    Built,
    Outcome,
    read_record,
    write_record,
)
from .supervising import Ended, Heard, Patience, supervise, to_log

_USUAL = Patience()
_AT_ONCE = Patience(stop=0.0)  # closing its input is nothing to trtexec
# The child's path is made the parent's before anything of modelc is imported: `-m` alone would
# not find what the parent found by a path of its own.
_START = (
    "import json, runpy, sys; folder = sys.argv[1]; "
    f"sys.path[:] = json.load(open(folder + '/{CHILD_FILE}', encoding='utf-8'))['path']; "
    f"runpy.run_module('{__package__}.child', run_name='__main__', alter_sys=True)"
)
_LAYERS_FILE = "layers.json"
_SHOWN = 5  # last lines of the log that a message shows


@dataclass(frozen=True, kw_only=True)
class Host:
    """What a build asks of the machine that it is on."""

    driver: Callable[[], Driver] = probe
    installed: Callable[[], Installed] = find
    child: tuple[str, ...] = (sys.executable, "-c", _START)  # the folder comes after it


_KINDS: dict[int, type[ModelcError]] = {
    kind.exit_code: kind for kind in (UsageError, MissingError, ConversionError)
}


def build_with_python(
    request: BuildRequest,
    folder: Path,
    advance: Advance,
    *,
    patience: Patience = _USUAL,
    command: Sequence[str] = Host.child,
) -> Built:
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

    def heard(line: str) -> None:
        try:
            done, total = json.loads(line)
            advance(int(done), int(total))
        except (ValueError, TypeError):
            to_log(line)  # not ours: something got hold of the pipe

    result, asked = folder / RESULT_FILE, folder / CHILD_FILE
    result.unlink(missing_ok=True)
    write_record(replace(request, path=tuple(sys.path)), asked)
    try:
        ended = _supervised([*command, str(folder)], heard, patience)
        outcome = _outcome(result, ended)
    finally:
        result.unlink(missing_ok=True)
        asked.unlink(missing_ok=True)
    if outcome.built is None:
        raise _error(outcome)
    return outcome.built


def _outcome(path: Path, ended: Ended) -> Outcome:
    try:
        return read_record(path, Outcome)
    except (OSError, ValueError):
        raise _crashed("TensorRT's builder", ended) from None


def build_with_trtexec(
    program: str,
    request: BuildRequest,
    folder: Path,
    *,
    version: tuple[int, int, int],
    patience: Patience = _AT_ONCE,
) -> Built:
    """Build with trtexec; it tells no progress.

    Raises:
        ConversionError: the build failed or crashed.
    """
    exported = folder / _LAYERS_FILE
    command = trtexec.command(program, version[0], request, exported)
    ended = _supervised(command, to_log, patience)
    if ended.code != 0 or not Path(request.engine).is_file():
        raise _crashed("trtexec", ended)
    text = exported.read_text("utf-8") if exported.is_file() else ""
    exported.unlink(missing_ok=True)
    found, _ = understood(text)
    return Built(
        tensorrt=".".join(map(str, version)),
        layers=text,
        inputs=found.inputs,
        outputs=found.outputs,
    )


def _supervised(command: Sequence[str], heard: Heard, patience: Patience) -> Ended:
    try:
        return supervise(command, heard, patience)
    except OSError as error:
        raise MissingError(
            f"{command[0]} cannot be started: {error}", hint="see modelc doctor"
        ) from error


def _crashed(who: str, ended: Ended) -> ConversionError:
    how = f"crashed with {ended.signal_name}" if ended.code < 0 else f"ended with {ended.code}"
    lines = [line for line in ended.tail if line.strip()][-_SHOWN:]
    said = f"; its last lines: {' | '.join(lines)}" if lines else " and said nothing"
    return ConversionError(f"{who} {how}{said}", hint="the whole text is in the log")


def _error(outcome: Outcome) -> ModelcError:
    if outcome.cancelled:
        return ConversionError("the TensorRT build was stopped", hint="run it again to go on")
    kind = _KINDS.get(outcome.exit_code, ConversionError)
    return kind(outcome.message, hint=outcome.hint)
