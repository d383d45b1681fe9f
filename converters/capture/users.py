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

_OURS = Path(__file__).parents[2]
_ROOMS = tuple(f"{_OURS / room}/" for room in ("sources", "core", "pipeline", "converters"))
_LIBRARIES = (
    "torch", "numpy", "onnx", "onnxscript", "onnx_ir", "sympy", "openvino", "onnxruntime",
)  # fmt: skip
_STDLIB = f"{sysconfig.get_paths()['stdlib']}/"
_PACKAGES = ("site-packages", "dist-packages")
# As tracebacks say it, and as the tracer's own source ranges do.
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)|(?P<py>/\S+?\.py)\((?P<at>\d+)\)')
COMPILED = "<--- HERE"  # the compiler of TorchScript: the first frame is the line that it means
Place = tuple[str, int]


@cache
def _roots() -> tuple[str, ...]:
    found = (find_spec(name) for name in _LIBRARIES)
    files = [spec.origin for spec in found if spec is not None and spec.origin is not None]
    return tuple(f"{Path(file).parent}/" for file in files)


def is_users(file: str) -> bool:
    """Whether a file is the model's code or a package that it calls, as `transformers`."""
    if file.startswith(("<", *_ROOMS, *_roots())):
        return False
    inner = file.removeprefix(_STDLIB)
    return inner == file or inner.startswith(_PACKAGES)


def users_place(error: BaseException) -> str:
    """`file:line` of the user's code that an exception is about; empty where it tells of none.

    What the text quotes comes first, then the frames of the exception and of what caused it.
    """
    chain = list(_chain(error))
    quoted = [place for one in chain for place in _quoted(text_of(one))]
    for places in (quoted, [place for one in chain for place in _raised_at(one)]):
        mine = [place for place in places if is_users(place[0])]
        if mine:
            return f"{mine[0][0]}:{mine[0][1]}"
    return ""


def last_place(text: str) -> str:
    """`file:line` of the innermost frame of the user's that a text quotes; empty without one."""
    mine = [place for place in _quoted(text) if is_users(place[0])]
    return f"{mine[0][0]}:{mine[0][1]}" if mine else ""


def _quoted(text: str) -> list[Place]:
    """The frames that a text quotes, the innermost first."""
    found = [
        (match["file"] or match["py"], int(match["line"] or match["at"]))
        for match in _FRAME.finditer(text)
    ]
    inner_first = COMPILED in text or 'File "' not in text
    return found if inner_first else found[::-1]


def _raised_at(error: BaseException) -> list[Place]:
    """The frames of an exception, the innermost first."""
    found: list[Place] = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        found.insert(0, (trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return found


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The cause of all first."""
    if error.__cause__ is not None:
        yield from _chain(error.__cause__)
    yield error
