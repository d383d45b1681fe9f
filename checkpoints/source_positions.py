"""Positions in the user's source: frames of a call, and nodes of the syntax tree."""

from __future__ import annotations

import ast
import linecache
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from types import CodeType, FrameType

_PACKAGE_ROOT = str(Path(__file__).parent.parent)
_OWN_PACKAGES = ("capture", "checkpoints", "converters", "core", "pipeline")
OWN_FOLDERS = tuple(f"{_PACKAGE_ROOT}/{room}/" for room in _OWN_PACKAGES)
_LIBRARIES = (
    "torch", "numpy", "onnx", "onnxscript", "onnx_ir", "sympy", "openvino", "onnxruntime",
)  # fmt: skip
_STDLIB = f"{sysconfig.get_paths()['stdlib']}/"
_PACKAGES = ("site-packages", "dist-packages")  # within the folder of the standard library
# Files of torch that only pass on calls of the user.
_PASS_THROUGH_FILES = (
    "_tensor.py",
    "overrides.py",
    "_python_dispatch.py",
    "_ops.py",
    "_jit_internal.py",
)


@dataclass(frozen=True, kw_only=True)
class CodeSite:
    """A position in the user's code; the span is (line, column, last line, last column)."""

    file: str
    function: str
    span: tuple[int, int, int, int]

    @property
    def line(self) -> int:
        """The first line, from 1."""
        return self.span[0]


def find_user_frames(
    paths: Mapping[int, str], watcher: str
) -> tuple[tuple[CodeSite, ...], bool, str]:
    """Return the user's frames, whether torch's code made the call, and the innermost module.

    Args:
        paths: paths of modules by id.
        watcher: the calling file, whose frames are between those of torch.
    """
    frame: FrameType | None = sys._getframe(1)
    sites: list[CodeSite] = []
    within, module = False, ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name != watcher and name.startswith(OWN_FOLDERS):  # modelc's code that runs eager
            break
        if is_user_file(name):
            sites.append(_make_site(frame))
            module = module or paths.get(id(frame.f_locals.get("self")), "")
        elif not sites:  # frames between two of the watcher's pass a call on
            within = name != watcher and (within or not name.endswith(_PASS_THROUGH_FILES))
        frame = frame.f_back
    return tuple(sites), within, module


@cache
def _library_roots() -> tuple[str, ...]:
    found = (find_spec(name) for name in _LIBRARIES)
    files = [spec.origin for spec in found if spec is not None and spec.origin is not None]
    return tuple(f"{Path(file).parent}/" for file in files)


def is_user_file(file: str) -> bool:
    """Whether a file is the model's code or a package that it uses, such as `transformers`."""
    if file.startswith(("<", *OWN_FOLDERS, *_library_roots())):
        return False
    inner = file.removeprefix(_STDLIB)
    return inner == file or inner.startswith(_PACKAGES)


def find_user_line(frame: FrameType | None) -> tuple[str, int] | None:
    """Return file and line of the user's innermost frame, from `frame` outwards."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _make_site(frame: FrameType) -> CodeSite:
    return CodeSite(
        file=frame.f_code.co_filename,
        function=frame.f_code.co_name,
        span=_instruction_span(frame.f_code, frame.f_lasti, frame.f_lineno),
    )


def _instruction_span(code: CodeType, offset: int, line: int) -> tuple[int, int, int, int]:
    """Return the span of an instruction; only the line if the span is unknown."""
    found = next(islice(code.co_positions(), offset // 2, None), (None, None, None, None))
    first, last, column, end = found
    if first is None or last is None or column is None or end is None:
        return line, -1, line, -1
    return first, column, last, end


# Where nodes of a syntax tree stand in the source, and which of them hold a place.


Span: TypeAlias = tuple[int, int, int, int]  # line, column, last line, column after the last
Chain: TypeAlias = list[ast.AST]  # from the file down to the innermost node

_MAX_TEXT = 100  # characters of a condition in messages


def source_text(file: str, node: ast.AST) -> str:
    """Return the node's source on one line."""
    first, column, last, end = span_of(node)
    lines = [line.encode() for line in linecache.getlines(file)[first - 1 : last]]
    if not lines:
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][column:]
    text = " ".join(b" ".join(lines).decode(errors="replace").split())
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def span_of(node: ast.AST) -> Span:
    """Return a node's span; columns are in bytes. A function begins with its decorators."""
    spans = [node, *getattr(node, "decorator_list", ())]
    first = min((getattr(n, "lineno", 0), getattr(n, "col_offset", 0)) for n in spans)
    last = getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)
    return (*first, *last)


@lru_cache(maxsize=256)
def parse_file(file: str) -> ast.Module | None:
    """Parse a file; None if it cannot be read or parsed."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def find_chain(site: CodeSite) -> Chain:
    """Return the nodes that contain a site, outermost first; empty without source or columns."""
    tree = parse_file(site.file)
    if tree is None or site.span[1] < 0:
        return []
    chain: Chain = [tree]
    while True:
        inner = [one for one in ast.iter_child_nodes(chain[-1]) if _is_around(one, site.span)]
        if not inner:
            return chain
        chain.append(inner[0])


def _is_around(node: ast.AST, span: Span) -> bool:
    if not hasattr(node, "lineno"):  # a comprehension's `for`, an argument list
        return any(_is_around(child, span) for child in ast.iter_child_nodes(node))
    return is_within(span, span_of(node))


def is_within(inner: Span, outer: Span) -> bool:
    """Whether a span is inside another."""
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]
