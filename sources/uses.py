"""Whether names of Python values are computed with, or checked and told alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .naming import called, computes, dotted, fills, mentions, targets_of
from .telling import is_message, only_tells

_CHECKS = (ast.Assert, ast.Raise)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)


def is_used(function: ast.AST, names: frozenset[str], *, array: bool) -> bool:
    """Whether a function does more with the names than check them, tell of them or branch.

    Branches are watched as such. What is computed from the names is among them, so assigning it
    is no use yet; setting an attribute is, for anyone may read it.
    """
    return any(_asked(part, names, array, function) for part in _bodies(function))


def _bodies(function: ast.AST) -> Sequence[ast.AST]:
    """What a function runs: its decorators, defaults and annotations are not."""
    body: object = getattr(function, "body", None)
    return body if isinstance(body, list) else [body] if isinstance(body, ast.AST) else []


def _asked(node: ast.AST, names: frozenset[str], array: bool, function: ast.AST) -> bool:
    if isinstance(node, _CHECKS) or is_message(node) or called(node) == "isinstance":
        return False
    if isinstance(node, (ast.Name, ast.Attribute)) and dotted(node) & names:
        return isinstance(node.ctx, ast.Load)
    if _only_kept(node, names, array) or _is_kind(node):
        return False
    return any(_asked(part, names, array, function) for part in _left(node, function))


def _only_kept(node: ast.AST, names: frozenset[str], array: bool) -> bool:
    """Whether a statement puts what is made of the names into local names of theirs, or returns it.

    Who called the function answers for what it returns.
    """
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        kept = [fills(node.value, part) for part in node.value.args]
        return bool(kept) and all(one and one <= names and _are_local(one) for one in kept)
    if isinstance(node, ast.Return):
        value = node.value
        return (
            value is not None and not computes(value) and mentions(value, names, array, plain=True)
        )
    if not isinstance(node, _ASSIGNMENTS) or node.value is None:
        return False
    targets = targets_of(node)
    return (
        _are_local(targets) and targets <= names and mentions(node.value, names, array, plain=True)
    )


def _are_local(names: frozenset[str]) -> bool:
    return bool(names) and not any("." in name for name in names)


def _is_kind(node: ast.AST) -> bool:
    """`name is None`: not about its value."""
    return isinstance(node, ast.Compare) and all(
        isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops
    )


def _left(node: ast.AST, function: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node but for its condition and blocks that only raise or tell."""
    if isinstance(node, ast.If):
        for block in (node.body, node.orelse):
            if not only_tells(block, node, function):
                yield from block
    elif isinstance(node, (ast.While, ast.For, ast.AsyncFor)):
        yield from (*node.body, *node.orelse)
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    else:
        yield from ast.iter_child_nodes(node)
