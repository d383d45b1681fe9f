"""Ask TensorRT's engine inspector for the layers of an engine, in a child process of its own.

The engine is written before: whatever fails here costs the layers, and never the engine.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from ...core.children.child_call import PYTHON, ChildCall, ParentConnection, run_in_child
from ...core.children.messages import Returned, StoppedByError
from ...core.children.processes import Deadline, OutputLog, ProcessEnd
from ...core.errors import LOGGED, ConversionError, ErrorCode
from .engine_build import load_plugin_libraries
from .engine_records import BuildRequest
from .trt_callbacks import make_error_log
from .trt_installation import TrtLibrary, load_tensorrt

if TYPE_CHECKING:
    import tensorrt

INSPECTION_SECONDS = 300.0  # loading a large engine takes a minute
_LAYERS = '"Layers"'  # the field of the inspector's JSON that is asked for


@dataclass(frozen=True, kw_only=True)
class EngineInspection:
    """The inspector's JSON. `note` says why it is empty."""

    layers: str = ""
    note: str = ""


InspectFunction: TypeAlias = Callable[[BuildRequest, ParentConnection], EngineInspection]


def inspect_in_child(
    request: BuildRequest,
    parent: ParentConnection,  # noqa: ARG001 - nothing to report or to stop
    load: Callable[[TrtLibrary], ModuleType] = load_tensorrt,
) -> EngineInspection:
    """Load the engine of a finished build, and return its layers."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    return EngineInspection(layers=inspect_engine(load(request.library), request))


def inspect_engine(trt: ModuleType, request: BuildRequest) -> str:
    """Return the layers as JSON, at the opt sizes: without shapes there are no types.

    Raises:
        ConversionError: TensorRT cannot load the engine.
    """
    log = make_error_log(trt)
    load_plugin_libraries(trt, request.options.plugins, log)
    runtime: tensorrt.Runtime = trt.Runtime(log)
    runtime.engine_host_code_allowed = request.options.trust_engine
    blob = Path(request.engine).read_bytes()
    engine: tensorrt.ICudaEngine | None = runtime.deserialize_cuda_engine(blob)
    if engine is None:
        raise ConversionError(
            f"TensorRT cannot load the engine that it built: {log.reason}",
            hint=LOGGED,
            code=ErrorCode.RUNTIME_FAILED,
        )
    inspector: tensorrt.EngineInspector = engine.create_engine_inspector()
    plain = str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    if request.options.strip_weights:  # a context needs the weights
        return plain
    context: tensorrt.IExecutionContext | None = engine.create_execution_context()
    known = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
    ranges = [one for one in request.profiles[0] if one.name in known]
    if context is None or not all(context.set_input_shape(r.name, r.opt) for r in ranges):
        return plain
    inspector.execution_context = context
    full = str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    return full if _LAYERS in full else plain


def inspect_with_python(
    request: BuildRequest,
    *,
    inspect: InspectFunction = inspect_in_child,
    seconds: float = INSPECTION_SECONDS,
    python: tuple[str, ...] = PYTHON,
) -> EngineInspection:
    """Inspect the engine in a Python process that imports TensorRT; a failure is a note.

    The process ends after so many seconds.
    """
    call = ChildCall(
        function=inspect, argument=request, messages=(EngineInspection,), python=python
    )
    log = OutputLog(echo=True)
    try:
        end = run_in_child(call, lambda _: None, log=log, watch=Deadline(seconds))
    except OSError as error:
        return _note_failure(str(error))
    match end:
        case Returned(value=EngineInspection() as found):
            return found if found.layers else _note_failure("it returned no layers")
        case StoppedByError():
            return _note_failure(end.message)
        case ProcessEnd(overrun=limit) if limit is not None:
            return _note_failure(limit.text)
        case ProcessEnd():
            return _note_failure(f"its process ended with {end.name}")
    return _note_failure("it was interrupted")


def _note_failure(reason: str) -> EngineInspection:
    return EngineInspection(note=f"the layers of the engine are not known: {reason}")
