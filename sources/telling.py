"""Which statements compute nothing: messages, checks, and branches that hold these alone."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .naming import call_name, target_names

# Which statements compute nothing: messages, checks, and branches that hold these alone.


_LOG_CALLS = frozenset(
    ("print", "warn", "warning", "warning_once", "info", "debug", "error", "exception", "log")
)
_CHECK_CALLS = frozenset(("_check", "_assert", "_assert_async", "assert_close", "_check_is_size"))


def is_message(statement: ast.AST) -> bool:
    """Whether it is a call that tells something, or one of torch's own checks."""
    return (
        isinstance(statement, ast.Expr) and call_name(statement.value) in _LOG_CALLS | _CHECK_CALLS
    )


def has_raise(node: ast.AST) -> bool:
    """Whether an error is raised somewhere within."""
    return any(isinstance(part, (ast.Raise, ast.Assert)) for part in ast.walk(node))


def is_report_only(block: Sequence[ast.stmt], node: ast.If, function: ast.AST | None) -> bool:
    """Whether a block ends in an error, or gives messages and no more."""
    if not block:
        return False
    if isinstance(block[-1], ast.Raise):
        return True
    inner = {id(part) for part in ast.walk(node)}
    outside = {
        part.id
        for part in (ast.walk(function) if function is not None else ())
        if isinstance(part, ast.Name) and id(part) not in inner
    }
    return all(_is_report(statement, outside) for statement in block)


def _is_report(statement: ast.stmt, outside: set[str]) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant) or call_name(statement.value) in _LOG_CALLS
    if isinstance(statement, ast.If):
        return all(_is_report(part, outside) for part in (*statement.body, *statement.orelse))
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        return not target_names(statement) & outside and "self" not in ast.dump(statement)
    return isinstance(statement, (ast.Raise, ast.Assert, ast.Pass))
