"""Where the code stands that runs only if a condition holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .naming import COMPREHENSIONS
from .spans import Span, span_of

# Where the code stands that runs only if a condition holds.


def find_conditional_spans(
    node: ast.AST, condition: ast.AST, above: Sequence[ast.AST]
) -> tuple[Span, ...]:
    """Where code stands that runs only if the condition holds."""
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
    """What a comprehension goes on with where a condition of it holds."""
    if isinstance(whole, ast.DictComp):
        yield from (whole.key, whole.value)
    elif isinstance(whole, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        yield whole.elt
    if isinstance(whole, COMPREHENSIONS):
        yield from part.ifs[part.ifs.index(condition) + 1 :]  # type: ignore[arg-type]  # is one of them
        for later in whole.generators[whole.generators.index(part) + 1 :]:
            yield from (later.target, later.iter)
