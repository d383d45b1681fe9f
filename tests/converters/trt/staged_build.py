"""The real functions of a build's child processes, handed a double of tensorrt."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from modelc.converters.trt.engine_build import build_in_child
from modelc.converters.trt.engine_inspection import EngineInspection, inspect_in_child
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


def inspect(
    request: BuildRequest,
    parent: ParentConnection,
    *,
    conftest: str,
    before: str,
    version: str,
    values: Mapping[str, Any],
) -> EngineInspection:
    """Inspect with the double of `conftest`; `before` is code that runs as tensorrt is loaded."""
    stage = runpy.run_path(conftest)["staged"](version, **values)

    def load(_library: TrtLibrary) -> ModuleType:
        exec(before, {"os": os, "signal": signal, "time": time})
        trt: ModuleType = stage.trt
        return trt

    return inspect_in_child(request, parent, load)
