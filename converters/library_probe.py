"""Probe what libraries can do here, each in a child process of its own, which may crash."""

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

ProbeFunction: TypeAlias = Callable[[str, ParentConnection], None]

PROBE_TIMEOUT = 30.0  # seconds; a first session of TensorRT's provider takes most of it


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What a library says of one provider, device or of itself."""

    name: str
    works: bool
    told: str


@dataclass(frozen=True, kw_only=True)
class LibraryReport:
    """All that a library said; `failure` is why it said no more, empty where it ended well."""

    said: tuple[ProbeResult, ...] = ()
    failure: str = ""


def probe_libraries(
    libraries: Iterable[str],
    *,
    probe: ProbeFunction | None = None,
    timeout: float = PROBE_TIMEOUT,
) -> Mapping[str, LibraryReport]:
    """Probe libraries side by side, each in a child process.

    Args:
        libraries: names in `PROBES`.
        probe: the function to call in the child.
        timeout: seconds for each.
    """
    names = tuple(libraries)
    stopping = Event()
    with ThreadPoolExecutor(max(len(names), 1)) as pool:
        reports = [
            pool.submit(_probe_one, name, probe or probe_in_child, timeout, stopping)
            for name in names
        ]
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


ProbeLine = tuple[str, bool, str]  # of what, whether it works, what was said
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SOURCE_PREFIX = re.compile(
    r"^.*?\.(?:cc|h):\d+ .*?\) "
)  # the source file and function it was said in
_ERROR_MARKS = (
    "error",
    "fail",
    "cannot",
    "not ",
)  # of the line in a library's chatter that says why


def probe_in_child(library: str, parent: ParentConnection) -> None:
    """Probe the library and send each result at once: a crash later on loses nothing of it.

    What the library prints goes to a file, in which some probes look for the reason of a failure.
    """
    with tempfile.TemporaryFile() as chatter:
        for descriptor in (1, 2):
            os.dup2(chatter.fileno(), descriptor)
        for name, works, text in PROBES[library](chatter.fileno()):
            parent.send(ProbeResult(name=name, works=works, told=text))


def _probe_onnxruntime(chatter: int) -> Iterator[ProbeLine]:
    """Each execution provider that was compiled in, and whether a session really gets it."""
    import onnxruntime

    model = _minimal_model()
    for provider in onnxruntime.get_available_providers():
        start = os.lseek(chatter, 0, os.SEEK_END)
        try:
            session = onnxruntime.InferenceSession(model, providers=[provider], enable_fallback=0)
            works = session.get_providers()[0] == provider
            told = "" if works else _chatter_reason(chatter, start)
        except Exception as error:  # noqa: BLE001 - a library's edge
            works, told = False, _reason_line(str(error))
        yield provider, works, told


def _minimal_model() -> bytes:
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "smallest", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 13)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return made


def _chatter_reason(chatter: int, start: int) -> str:
    """Why, by what was printed since `start`."""
    size = os.lseek(chatter, 0, os.SEEK_END) - start
    os.lseek(chatter, start, os.SEEK_SET)
    text = os.read(chatter, size).decode("utf-8", "replace") if size else ""
    os.lseek(chatter, 0, os.SEEK_END)
    return _reason_line(text)


def _reason_line(text: str) -> str:
    """The line that says why, without colours and without where in the library it was said."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    grave = [line for line in lines if any(mark in line.lower() for mark in _ERROR_MARKS)]
    line = _COLOUR.sub("", (grave or lines or ["it does not say why"])[0])
    return _SOURCE_PREFIX.sub("", line.rpartition("with error: ")[2]).strip()


def _probe_openvino(_: int) -> Iterator[ProbeLine]:
    """Each device, with its full name."""
    import openvino

    core = openvino.Core()
    for device in core.available_devices:
        yield device, True, str(core.get_property(device, "FULL_DEVICE_NAME")).strip()


def _probe_tensorrt(_: int) -> Iterator[ProbeLine]:
    """Whether the package can be imported at all; no object is made, which needs a driver."""
    try:
        import tensorrt
    except ImportError as error:
        yield "tensorrt", False, str(error)
    else:
        yield "tensorrt", True, str(tensorrt.__version__)


def _import_probe(name: str) -> Callable[[int], Iterator[ProbeLine]]:
    """Whether a package can be imported, and what loads it lazily; its version, or the cause."""

    def probe(_: int) -> Iterator[ProbeLine]:
        try:
            module = importlib.import_module(name)
            for part in _LAZY_NAMES.get(name, ()):
                getattr(module, part)
        except BaseException as error:  # noqa: BLE001 - a package's edge; it may call sys.exit
            yield name, False, _root_cause(error)
        else:
            yield name, True, str(getattr(module, "__version__", ""))

    return probe


def _root_cause(error: BaseException) -> str:
    """The innermost error of a chain, in a line: what wraps it names the wrong package."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}".removesuffix(": ")


# What a package imports on first use alone.
_LAZY_NAMES = {"transformers": ("PreTrainedModel", "AutoModel")}
PACKAGES = ("torchvision", "torchaudio", "timm", "transformers")

PROBES: dict[str, Callable[[int], Iterator[ProbeLine]]] = {
    "onnxruntime": _probe_onnxruntime,
    "openvino": _probe_openvino,
    "tensorrt": _probe_tensorrt,
    **{name: _import_probe(name) for name in PACKAGES},
}
