"""Probe what libraries can do here, each in a child process of its own, which may crash."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

_SCRIPT = Path(__file__)
# -P: the script's own folder is not put on the path, where our names would shadow others'.
PROBE_COMMAND = (sys.executable, "-P", "-W", "ignore", str(_SCRIPT))
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
    command: Sequence[str] = PROBE_COMMAND,
    patience: float = PROBE_TIMEOUT,
) -> Mapping[str, LibraryReport]:
    """Ask them side by side.

    Args:
        libraries: names in `PROBES`.
        command: what to start; the library is its last argument.
        patience: seconds to wait for each.
    """
    started = {name: _start_probe([*command, name]) for name in libraries}
    return {name: _collect_report(process, patience) for name, process in started.items()}


def _start_probe(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )


def _collect_report(process: subprocess.Popen[str], patience: float) -> LibraryReport:
    failure = ""
    try:
        text, errors = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        text, errors = process.communicate()
        failure = f"no answer within {patience:g} s"
    if not failure and process.returncode:
        failure = _exit_reason(process.returncode, errors)
    return LibraryReport(
        said=tuple(_parse_result(line) for line in text.splitlines() if _is_complete(line)),
        failure=failure,
    )


def _exit_reason(code: int, errors: str) -> str:
    """Why a process ended as it did: the last line of its errors, or the signal."""
    if code < 0:
        return f"it crashed ({signal.Signals(-code).name})"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with {code}"


def _is_complete(line: str) -> bool:
    """Whether a line was written to its end: a crash may cut the last one."""
    return line.startswith("{") and line.endswith("}")


def _parse_result(line: str) -> ProbeResult:
    entry = json.loads(line)
    return ProbeResult(name=entry["name"], works=entry["works"], told=entry["told"])


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


def main() -> None:
    """Answer for the library that the first argument names."""
    with (
        os.fdopen(os.dup(1), "w", encoding="utf-8") as answers,
        tempfile.TemporaryFile() as chatter,
    ):
        for descriptor in (1, 2):
            os.dup2(chatter.fileno(), descriptor)
        for name, works, told in PROBES[sys.argv[1]](chatter.fileno()):
            _write_line(answers, name, works=works, told=told)
        os._exit(0)  # what was loaded may crash on its way out


def _write_line(answers: TextIO, name: str, *, works: bool, told: str) -> None:
    answers.write(json.dumps({"name": name, "works": works, "told": told}) + "\n")
    answers.flush()  # a crash later on loses nothing of what was said


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

if __name__ == "__main__":
    main()
