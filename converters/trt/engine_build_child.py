"""What the child process of a build does: import tensorrt and build the engine."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from threading import Event
from types import ModuleType

from ...core.children.child_call import ParentConnection
from ...core.events import Advanced
from .engine_build import BuildWatch, CancelledBuildError, build_engine
from .engine_records import BuildRequest, BuildResult
from .trt_installation import load_tensorrt


def build_in_child(
    request: BuildRequest,
    parent: ParentConnection,
    load: Callable[[], ModuleType] = load_tensorrt,
) -> BuildResult:
    """Build the engine of the request.

    The builder is asked to stop by a flag that it polls: no signal may raise within its callbacks.

    Args:
        request: what to build.
        parent: gets the progress.
        load: returns the tensorrt package.

    Raises:
        ModelcError: the build failed.
        KeyboardInterrupt: the parent cancelled it.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    stopping = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    parent.on_stop(stopping.set)

    def advance(done: int, total: int) -> None:
        parent.send(Advanced(step="build", done=done, total=total))

    watch = BuildWatch(advance=advance, stopped=stopping.is_set)
    try:
        return build_engine(load(), request, watch)
    except CancelledBuildError as error:
        raise KeyboardInterrupt from error
