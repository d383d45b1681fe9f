"""What the user's source does with a Python value made of tensor data, each as a record."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .bodies import bodies
from .places import Site
from .spans import Chain, Span, span_of, text_of
from .telling import only_tells, raises

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, kw_only=True)
class Test:
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
class Held:
    """A statement that keeps a Python value made of tensor data; branches may follow from it."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Idle:
    """A place whose value changes nothing that is computed: a check, a message."""

    file: str
    line: int


Meaning: TypeAlias = Test | Held | Idle


def assertion(node: ast.Assert, file: str, *, caught: bool) -> Iterator[Meaning]:
    """A check; a branch where its error is caught: what is done if it fails is the raising."""
    if not caught:
        yield Idle(file=file, line=node.lineno)
        return
    yield Test(
        file=file,
        kind="if",
        line=node.lineno,
        condition=f"not ({text_of(file, node.test)})",
        span=span_of(node.test),
        whole=span_of(node),
        taken=(span_of(node),),
    )


def branch(
    node: ast.AST, condition: ast.AST, file: str, above: Sequence[ast.AST], *, caught: bool = False
) -> Iterator[Meaning]:
    """The branch as it is watched; one that only raises or tells on one side is idle.

    Where what it raises is `caught`, it is not.
    """
    line = getattr(condition, "lineno", 0)
    kind, taken = "if", bodies(node, condition, above)
    if isinstance(node, ast.If):
        line = node.lineno
        function = next((n for n in reversed(above) if isinstance(n, _FUNCTIONS)), None)
        tells = [only_tells(block, node, function) for block in (node.body, node.orelse)]
        if any(tells) and not (caught and raises(node)):
            yield Idle(file=file, line=line)
            return
    elif isinstance(node, (ast.While, ast.For, ast.AsyncFor)):
        kind, line = "while" if isinstance(node, ast.While) else "for", node.lineno
    text = text_of(file, condition)
    if isinstance(node, (ast.For, ast.AsyncFor)):
        text = f"{text_of(file, node.target)} in {text}"
    yield Test(
        file=file,
        kind=kind,
        line=line,
        condition=text,
        span=span_of(condition),
        whole=span_of(node),
        taken=taken,
    )


def held(site: Site, node: ast.AST) -> Held:
    """A statement or expression that keeps a value made at a site."""
    line = getattr(node, "lineno", site.line)
    return Held(file=site.file, line=line, text=text_of(site.file, node))


def conditions_of(node: ast.AST) -> list[ast.expr]:
    """What a statement or expression asks before it goes on."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return node.ifs
    return [node.iter] if isinstance(node, (ast.For, ast.AsyncFor)) else []


def function_of(chain: Chain) -> ast.AST:
    """The innermost function; without one, the file."""
    return next((node for node in reversed(chain) if isinstance(node, _FUNCTIONS)), chain[0])
