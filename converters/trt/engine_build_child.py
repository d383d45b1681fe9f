"""Child process: `python -m modelc.converters.trt.engine_build_child FOLDER` builds."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from types import ModuleType
from typing import IO

from ...core.contract import Advance
from ...core.errors import ModelcError
from .engine_build import BuildWatch, CancelledBuildError, build_engine
from .engine_records import (
    REQUEST_FILE,
    RESULT_FILE,
    BuildOutcome,
    BuildRequest,
    read_record,
    write_record,
)
from .trt_installation import load_tensorrt

_BUG = 70


def main(folder: Path, load: Callable[[], ModuleType] = load_tensorrt) -> int:
    """Build what the folder's request says; write the outcome beside it.

    Args:
        folder: holds the request.
        load: gives the tensorrt package.
    """
    channel = _detach_stdout()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    stopping = Event()
    signal.signal(signal.SIGINT, lambda *_: stopping.set())
    Thread(target=_stop_with_parent, args=(stopping,), daemon=True).start()
    request = read_record(folder / REQUEST_FILE, BuildRequest)
    watch = BuildWatch(advance=_progress_writer(channel), stopped=stopping.is_set)
    outcome = _run_build(request, watch, load)
    write_record(outcome, folder / RESULT_FILE)
    return outcome.exit_code


def _run_build(
    request: BuildRequest, watch: BuildWatch, load: Callable[[], ModuleType]
) -> BuildOutcome:
    try:
        return BuildOutcome(built=build_engine(load(), request, watch))
    except CancelledBuildError:
        return BuildOutcome(cancelled=True, exit_code=130)
    except ModelcError as error:
        return BuildOutcome(message=error.message, hint=error.hint, exit_code=error.exit_code)
    except Exception as error:  # the process's edge: a framework raises anything
        logging.getLogger(__name__).exception("the build broke off")
        return BuildOutcome(
            message=repr(error), hint="the whole text is in the log", exit_code=_BUG
        )


def _detach_stdout() -> IO[str]:
    """The pipe to the parent, out of the reach of what prints to descriptor 1."""
    sys.stdout.flush()
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return channel


def _progress_writer(channel: IO[str]) -> Advance:
    def tell(done: int, total: int) -> None:
        channel.write(json.dumps([done, total]) + "\n")

    return tell


def _stop_with_parent(stopping: Event) -> None:
    while os.read(0, 1 << 10):
        pass
    stopping.set()


if __name__ == "__main__":
    _code = main(Path(sys.argv[1]))
    for _stream in (sys.stdout, sys.stderr):
        _stream.flush()
    os._exit(_code)  # native libraries may crash on their way out; the outcome is written
