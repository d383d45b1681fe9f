"""Probe what libraries can do on this host, each in a child process, which may crash."""

from __future__ import annotations

import importlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import TypeAlias

from ..core.children.child_call import CallEnd, ChildCall, ParentConnection, run_in_child
from ..core.children.limits import LimitExceeded
from ..core.children.messages import Returned, StoppedByError
from ..core.children.processes import Deadline, ProcessEnd
from .trt.trt_installation import TrtLibrary

ProbeFunction: TypeAlias = Callable[[str, ParentConnection], None]

PROBE_TIMEOUT = 30.0  # seconds; a first session of TensorRT's provider takes most of it


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The result for one provider or device of a library, or for the library itself."""

    name: str
    works: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class LibraryReport:
    """The results of a library; `failure` is why its probe ended early, empty if it did not."""

    said: tuple[ProbeResult, ...] = ()
    failure: str = ""


def probe_in_child(library: str, parent: ParentConnection) -> None:
    """Probe the library and send each result at once, so that a later crash does not lose it.

    What the library prints goes to a file, in which some probes look for the reason of a failure.
    """
    with tempfile.TemporaryFile() as printed:
        for descriptor in (1, 2):
            os.dup2(printed.fileno(), descriptor)
        for result in PROBES.get(library, _probe_import)(library, printed.fileno()):
            parent.send(result)


def probe_libraries(
    libraries: Iterable[str],
    *,
    probe: ProbeFunction = probe_in_child,
    timeout: float = PROBE_TIMEOUT,
) -> Mapping[str, LibraryReport]:
    """Probe libraries side by side, each in a child process.

    Args:
        libraries: names of packages.
        probe: the function to call in the child.
        timeout: seconds for each.
    """
    names = tuple(libraries)
    stopping = Event()
    with ThreadPoolExecutor(max(len(names), 1)) as pool:
        reports = [pool.submit(_probe_one, name, probe, timeout, stopping) for name in names]
        try:
            return {name: found.result() for name, found in zip(names, reports, strict=True)}
        except BaseException:
            stopping.set()  # the pool waits for its threads
            raise


def _probe_one(name: str, probe: ProbeFunction, timeout: float, stopping: Event) -> LibraryReport:
    results: list[ProbeResult] = []
    deadline = Deadline(timeout)

    def watch(process: int) -> LimitExceeded | None:
        return (
            LimitExceeded(text="interrupted", hint="") if stopping.is_set() else deadline(process)
        )

    messages = (ProbeResult, type(None))
    call = ChildCall(function=probe, argument=name, messages=messages, grace=0.0, quiet=True)
    end = run_in_child(call, results.append, watch=watch)
    return LibraryReport(said=tuple(results), failure=_failure_of(end))


def _failure_of(end: CallEnd) -> str:
    match end:
        case Returned():
            return ""
        case StoppedByError():
            return end.trace.strip().splitlines()[-1]
        case ProcessEnd(overrun=LimitExceeded() as exceeded):
            return exceeded.text
        case ProcessEnd() if end.code < 0:
            return f"it crashed ({end.signal_name})"
        case ProcessEnd():
            return end.tail[-1] if end.tail else f"it ended with {end.code}"
    return "it was interrupted"


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SOURCE_PREFIX = re.compile(r"^.*?\.(?:cc|h):\d+ .*?\) ")  # the source file and function
_ERROR_MARKS = (
    "error",
    "fail",
    "cannot",
    "not ",
)  # of the line of a library's output with the reason


def _probe_onnxruntime(_: str, printed: int) -> Iterator[ProbeResult]:
    """Probe each execution provider that was compiled in: whether a session uses it."""
    import onnxruntime

    model = _minimal_model()
    for provider in onnxruntime.get_available_providers():
        start = os.lseek(printed, 0, os.SEEK_END)
        try:
            session = onnxruntime.InferenceSession(model, providers=[provider], enable_fallback=0)
            works = session.get_providers()[0] == provider
            detail = "" if works else _reason_line(_text_since(printed, start))
        except Exception as error:  # noqa: BLE001 - a library's edge
            works, detail = False, _reason_line(str(error))
        yield ProbeResult(name=provider, works=works, detail=detail)


def _minimal_model() -> bytes:
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "smallest", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 13)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return made


def _text_since(file: int, start: int) -> str:
    """Return what was written to a file since `start`."""
    size = os.lseek(file, 0, os.SEEK_END) - start
    return os.pread(file, size, start).decode("utf-8", "replace")


def _reason_line(text: str) -> str:
    """Return the line with the reason, without colours and the place in the library's source."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    grave = [line for line in lines if any(mark in line.lower() for mark in _ERROR_MARKS)]
    line = _COLOUR.sub("", (grave or lines or ["no reason"])[0])
    return _SOURCE_PREFIX.sub("", line.rpartition("with error: ")[2]).strip()


def _probe_openvino(_: str, __: int) -> Iterator[ProbeResult]:
    """Probe each device for its full name."""
    import openvino

    core = openvino.Core()
    for device in core.available_devices:
        name = str(core.get_property(device, "FULL_DEVICE_NAME")).strip()
        yield ProbeResult(name=device, works=True, detail=name)


def _probe_tensorrt(name: str, _: int) -> Iterator[ProbeResult]:
    """Probe whether the package can be imported; its objects would require a driver."""
    try:
        trt = importlib.import_module(TrtLibrary(name).module)
    except ImportError as error:
        yield ProbeResult(name=name, works=False, detail=str(error))
    else:
        yield ProbeResult(name=name, works=True, detail=str(trt.__version__))


def _probe_import(package: str, _: int) -> Iterator[ProbeResult]:
    """Probe whether a package can be imported, with what it imports lazily."""
    try:
        module = importlib.import_module(package)
        for part in _LAZY_NAMES.get(package, ()):
            getattr(module, part)
    except BaseException as error:  # noqa: BLE001 - a package's edge; it may call sys.exit
        yield ProbeResult(name=package, works=False, detail=_root_cause(error))
    else:
        yield ProbeResult(name=package, works=True, detail=str(getattr(module, "__version__", "")))


def _root_cause(error: BaseException) -> str:
    """Return the innermost error of a chain in a line: the outer ones name the wrong package."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}".removesuffix(": ")


_LAZY_NAMES = {"transformers": ("PreTrainedModel", "AutoModel")}
PACKAGES = ("torchvision", "torchaudio", "timm", "transformers")  # built on torch
PROBES: dict[str, Callable[[str, int], Iterator[ProbeResult]]] = {
    "onnxruntime": _probe_onnxruntime,
    "openvino": _probe_openvino,
    **dict.fromkeys(map(str, TrtLibrary), _probe_tensorrt),
}
