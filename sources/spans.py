"""Where nodes of a syntax tree stand in the source, and which of them hold a place."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache
from typing import TypeAlias

# Where nodes of a syntax tree stand in the source, and which of them hold a place.


Span: TypeAlias = tuple[int, int, int, int]  # line, column, last line, column after the last
Chain: TypeAlias = list[ast.AST]  # from the file down to the innermost node

_MAX_TEXT = 100  # characters of a condition that are told


def source_text(file: str, node: ast.AST) -> str:
    """The node's source on one line."""
    first, column, last, end = span_of(node)
    lines = [line.encode() for line in linecache.getlines(file)[first - 1 : last]]
    if not lines:
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][column:]
    text = " ".join(b" ".join(lines).decode(errors="replace").split())
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def span_of(node: ast.AST) -> Span:
    """Where a node stands; columns are in bytes. A function begins with its decorators."""
    spans = [node, *getattr(node, "decorator_list", ())]
    first = min((getattr(n, "lineno", 0), getattr(n, "col_offset", 0)) for n in spans)
    last = getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)
    return (*first, *last)


@lru_cache(maxsize=256)
def parse_file(file: str) -> ast.Module | None:
    """The file as it is on disk (or as an interpreter keeps it); None where it cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def find_chain(tree: ast.AST, span: Span) -> Chain:
    """The nodes that hold the span, the outermost first."""
    chain: Chain = [tree]
    while True:
        inner = [child for child in ast.iter_child_nodes(chain[-1]) if _is_around(child, span)]
        if not inner:
            return chain
        chain.append(inner[0])


def _is_around(node: ast.AST, span: Span) -> bool:
    if not hasattr(node, "lineno"):  # a comprehension's `for`, an argument list
        return any(_is_around(child, span) for child in ast.iter_child_nodes(node))
    return is_within(span, span_of(node))


def is_within(inner: Span, outer: Span) -> bool:
    """Whether a span lies in another."""
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]
