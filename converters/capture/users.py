"""Which line of the user's own code an exception is about."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from ...core.errors import text_of

_PACKAGE_ROOT = Path(__file__).parents[2]
_OWN_FOLDERS = tuple(
    f"{_PACKAGE_ROOT / room}/" for room in ("sources", "core", "pipeline", "converters")
)
_LIBRARIES = (
    "torch", "numpy", "onnx", "onnxscript", "onnx_ir", "sympy", "openvino", "onnxruntime",
)  # fmt: skip
_STDLIB = f"{sysconfig.get_paths()['stdlib']}/"
_PACKAGES = ("site-packages", "dist-packages")
# As tracebacks say it, and as the tracer's own source ranges do.
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)|(?P<py>/\S+?\.py)\((?P<at>\d+)\)')
COMPILED = "<--- HERE"  # the compiler of TorchScript: the first frame is the line that it means
CodePlace = tuple[str, int]


@cache
def _library_roots() -> tuple[str, ...]:
    found = (find_spec(name) for name in _LIBRARIES)
    files = [spec.origin for spec in found if spec is not None and spec.origin is not None]
    return tuple(f"{Path(file).parent}/" for file in files)


def is_user_file(file: str) -> bool:
    """Whether a file is the model's code or a package that it calls, as `transformers`."""
    if file.startswith(("<", *_OWN_FOLDERS, *_library_roots())):
        return False
    inner = file.removeprefix(_STDLIB)
    return inner == file or inner.startswith(_PACKAGES)


def user_place(error: BaseException) -> str:
    """`file:line` of the user's code that an exception is about; empty where it tells of none.

    What the text quotes comes first, then the frames of the exception and of what caused it.
    """
    chain = list(_exception_chain(error))
    quoted = [place for one in chain for place in _frames_in_text(text_of(one))]
    for places in (quoted, [place for one in chain for place in _traceback_frames(one)]):
        mine = [place for place in places if is_user_file(place[0])]
        if mine:
            return f"{mine[0][0]}:{mine[0][1]}"
    return ""


def last_user_place(text: str) -> str:
    """`file:line` of the innermost frame of the user's that a text quotes; empty without one."""
    mine = [place for place in _frames_in_text(text) if is_user_file(place[0])]
    return f"{mine[0][0]}:{mine[0][1]}" if mine else ""


def _frames_in_text(text: str) -> list[CodePlace]:
    """The frames that a text quotes, the innermost first."""
    found = [
        (match["file"] or match["py"], int(match["line"] or match["at"]))
        for match in _FRAME.finditer(text)
    ]
    inner_first = COMPILED in text or 'File "' not in text
    return found if inner_first else found[::-1]


def _traceback_frames(error: BaseException) -> list[CodePlace]:
    """The frames of an exception, the innermost first."""
    found: list[CodePlace] = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        found.insert(0, (trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return found


def _exception_chain(error: BaseException) -> Iterator[BaseException]:
    """The cause of all first."""
    if error.__cause__ is not None:
        yield from _exception_chain(error.__cause__)
    yield error
