"""Uses of a value of tensor data in the user's source: branches, stored values, checks."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from .name_dataflow import COMPREHENSIONS, call_name, element_expressions, is_report_only
from .source_positions import Chain, CodeSite, Span, find_chain, source_text, span_of

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, kw_only=True)
class BranchTest:
    """A branch in the source: the span of its condition, and the code that runs if it is true.

    `whole` is the span of the statement or expression with all outcomes.
    """

    __test__ = False  # not a test case of pytest

    file: str
    kind: str  # if | while | for
    line: int
    condition: str
    span: Span
    whole: Span
    taken: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class KeptValue:
    """A statement that stores a Python value of tensor data; branches may depend on it."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class IdleUse:
    """A place whose value does not affect the computation: a check, a message."""

    file: str
    line: int


ValueUse: TypeAlias = BranchTest | KeptValue | IdleUse


def read_assertion(node: ast.Assert, file: str, *, caught: bool) -> Iterator[ValueUse]:
    """Read a check; if its error is caught, it is a branch whose taken side raises."""
    if not caught:
        yield IdleUse(file=file, line=node.lineno)
        return
    yield BranchTest(
        file=file,
        kind="if",
        line=node.lineno,
        condition=f"not ({source_text(file, node.test)})",
        span=span_of(node.test),
        whole=span_of(node),
        taken=(span_of(node),),
    )


def read_branch(
    node: ast.AST, condition: ast.AST, file: str, above: Sequence[ast.AST], *, caught: bool = False
) -> Iterator[ValueUse]:
    """Read a branch; it is idle if one side only raises or logs and the error is not `caught`."""
    line = getattr(condition, "lineno", 0)
    kind, taken = "if", find_conditional_spans(node, condition, above)
    if isinstance(node, ast.If):
        line = node.lineno
        function = next((n for n in reversed(above) if isinstance(n, _FUNCTIONS)), None)
        report_only = [is_report_only(block, node, function) for block in (node.body, node.orelse)]
        raises = any(isinstance(part, (ast.Raise, ast.Assert)) for part in ast.walk(node))
        if any(report_only) and not (caught and raises):
            yield IdleUse(file=file, line=line)
            return
    elif isinstance(node, (ast.While, ast.For, ast.AsyncFor)):
        kind, line = "while" if isinstance(node, ast.While) else "for", node.lineno
    text = source_text(file, condition)
    if isinstance(node, (ast.For, ast.AsyncFor)):
        text = f"{source_text(file, node.target)} in {text}"
    yield BranchTest(
        file=file,
        kind=kind,
        line=line,
        condition=text,
        span=span_of(condition),
        whole=span_of(node),
        taken=taken,
    )


def make_kept_value(site: CodeSite, node: ast.AST) -> KeptValue:
    """Return the statement or expression that stores a value converted at a site."""
    line = getattr(node, "lineno", site.line)
    return KeptValue(file=site.file, line=line, text=source_text(site.file, node))


def list_conditions(node: ast.AST) -> list[ast.expr]:
    """Return the conditions of a statement or expression."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return node.ifs
    return [node.iter] if isinstance(node, (ast.For, ast.AsyncFor)) else []


def find_function(chain: Chain) -> ast.AST:
    """Return the innermost function, or the file without one."""
    return next((node for node in reversed(chain) if isinstance(node, _FUNCTIONS)), chain[0])


# Where the code stands that runs only if a condition holds.


def find_conditional_spans(
    node: ast.AST, condition: ast.AST, above: Sequence[ast.AST]
) -> tuple[Span, ...]:
    """Return the spans of code that runs only if the condition is true."""
    if isinstance(node, ast.IfExp):
        return (span_of(node.body),)
    if isinstance(node, (ast.If, ast.While)):
        return tuple(span_of(part) for part in node.body)
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return (span_of(node.target), *(span_of(part) for part in node.body))
    if isinstance(node, ast.comprehension) and above:
        return tuple(span_of(part) for part in _comprehension_rest(above[-1], node, condition))
    return ()


def _comprehension_rest(
    whole: ast.AST, part: ast.comprehension, condition: ast.AST
) -> Iterator[ast.AST]:
    """Yield what a comprehension evaluates if one of its conditions is true."""
    if isinstance(whole, COMPREHENSIONS):
        yield from element_expressions(whole)
        yield from part.ifs[part.ifs.index(condition) + 1 :]  # type: ignore[arg-type]  # it contains it
        for later in whole.generators[whole.generators.index(part) + 1 :]:
            yield from (later.target, later.iter)


# Whether an error raised at a place of the user's code is caught further out: a branch, then.


# Errors that packages catch around optional arguments and imports.
_CALL_ERRORS = frozenset(("TypeError", "ImportError", "ModuleNotFoundError"))


def is_caught(sites: Iterable[CodeSite]) -> bool:
    """Whether a frame is in a `try` that continues after an error, or in a `suppress`."""
    return any(is_error_handled(find_chain(site)) for site in sites)


def is_error_handled(chain: Chain) -> bool:
    """Whether one of these nested nodes catches what the last one raises."""
    return any(_continues_after_error(outer, inner) for outer, inner in pairwise(chain))


def _continues_after_error(outer: ast.AST, inner: ast.AST) -> bool:
    if isinstance(outer, ast.Try) and inner in outer.body:
        return any(map(_is_silent_handler, outer.handlers))
    if isinstance(outer, ast.With) and inner in outer.body:
        return any(call_name(item.context_expr) == "suppress" for item in outer.items)
    return False


def _is_silent_handler(handler: ast.ExceptHandler) -> bool:
    """Whether a handler continues after errors that a check may raise."""
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {getattr(one, "id", "") for one in named}
    return not isinstance(handler.body[-1], ast.Raise) and not names <= _CALL_ERRORS
