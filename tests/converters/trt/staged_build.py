"""The real function of a build's child process, handed a double of tensorrt."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from modelc.converters.trt.engine_build import (
    BuildWatch,
    build_engine,
    build_in_child,
    load_builder,
)
from modelc.converters.trt.engine_records import BuildRequest, BuildResult
from modelc.converters.trt.trt_installation import TrtLibrary
from modelc.core.children.child_call import ParentConnection


def build(
    request: BuildRequest,
    parent: ParentConnection,
    *,
    conftest: str,
    before: str,
    version: str,
    values: Mapping[str, Any],
) -> BuildResult:
    """Build with the double of `conftest`; `before` is code that runs as tensorrt is loaded."""
    stage = runpy.run_path(conftest)["staged"](version, **values)

    def load(_: TrtLibrary) -> ModuleType:
        sys.stdout.write("noise of a framework on standard output\n")
        sys.stdout.flush()
        os.write(1, b"noise of its C++ that ends in no line")
        exec(before, {"os": os, "signal": signal})
        trt: ModuleType = stage.trt
        return trt

    return build_in_child(request, parent, load)


def crash_at_the_first_step(request: BuildRequest, _: ParentConnection) -> BuildResult:
    """A real build that aborts."""
    watch = BuildWatch(advance=lambda *_: os.abort())
    return build_engine(load_builder(request.library), request, watch)
