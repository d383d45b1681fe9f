"""What the user's source does with a Python value made of tensor data, each as a record."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .bodies import find_conditional_spans
from .places import CodeSite
from .spans import Chain, Span, source_text, span_of
from .telling import has_raise, is_report_only

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, kw_only=True)
class BranchTest:
    """A branch in the source: where its condition stands, and where what is done if it holds.

    `whole` is the statement or expression with all its arms.
    """

    __test__ = False  # no test case of pytest's

    file: str
    kind: str  # if | while | for
    line: int
    condition: str
    span: Span
    whole: Span
    taken: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class KeptValue:
    """A statement that keeps a Python value made of tensor data; branches may follow from it."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class IdleUse:
    """A place whose value changes nothing that is computed: a check, a message."""

    file: str
    line: int


ValueUse: TypeAlias = BranchTest | KeptValue | IdleUse


def read_assertion(node: ast.Assert, file: str, *, caught: bool) -> Iterator[ValueUse]:
    """A check; a branch where its error is caught: what is done if it fails is the raising."""
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
    """The branch as it is watched; one that only raises or tells on one side is idle.

    Where what it raises is `caught`, it is not.
    """
    line = getattr(condition, "lineno", 0)
    kind, taken = "if", find_conditional_spans(node, condition, above)
    if isinstance(node, ast.If):
        line = node.lineno
        function = next((n for n in reversed(above) if isinstance(n, _FUNCTIONS)), None)
        tells = [is_report_only(block, node, function) for block in (node.body, node.orelse)]
        if any(tells) and not (caught and has_raise(node)):
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
    """A statement or expression that keeps a value made at a site."""
    line = getattr(node, "lineno", site.line)
    return KeptValue(file=site.file, line=line, text=source_text(site.file, node))


def list_conditions(node: ast.AST) -> list[ast.expr]:
    """What a statement or expression asks before it goes on."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return node.ifs
    return [node.iter] if isinstance(node, (ast.For, ast.AsyncFor)) else []


def find_function(chain: Chain) -> ast.AST:
    """The innermost function; without one, the file."""
    return next((node for node in reversed(chain) if isinstance(node, _FUNCTIONS)), chain[0])
