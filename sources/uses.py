"""Whether names of Python values are computed with, or checked and told alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .naming import (
    attribute_names,
    call_name,
    container_names,
    depends_on_names,
    is_number_cast,
    may_be_tensor,
    target_names,
)
from .telling import is_message, is_report_only

# Whether names of Python values are computed with, or checked and told alone.


_FRESH = (
    ast.List, ast.Dict, ast.Set, ast.Tuple, ast.Constant, ast.ListComp, ast.SetComp, ast.DictComp,
)  # fmt: skip
_MAKERS = frozenset(("list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter"))
_LOOPS = (ast.For, ast.AsyncFor)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)


def is_used(function: ast.AST, names: frozenset[str], *, array: bool) -> bool:
    """Whether a function does more with the names than check them, tell of them or branch.

    Branches are watched as such. What is computed from the names is among them, so assigning it
    is no use yet; setting an attribute or a name of the file is, for anyone may read it.
    """
    if not _is_local(names, function):
        return True
    return any(_is_used_by(part, names, array, function) for part in _function_parts(function))


def _function_parts(function: ast.AST) -> Sequence[ast.AST]:
    """What a function runs: its decorators, defaults and annotations are not."""
    body: object = getattr(function, "body", None)
    return body if isinstance(body, list) else [body] if isinstance(body, ast.AST) else []


def _is_used_by(node: ast.AST, names: frozenset[str], array: bool, function: ast.AST) -> bool:
    if isinstance(node, ast.Raise) or is_message(node) or call_name(node) == "isinstance":
        return False
    if _is_passed_on(node, names, array):
        return True
    if isinstance(node, ast.Assert):
        return False
    if isinstance(node, (ast.Name, ast.Attribute)) and attribute_names(node) & names:
        return isinstance(node.ctx, ast.Load)
    if _is_only_stored(node, names, array, function) or _is_none_test(node):
        return False
    return any(_is_used_by(part, names, array, function) for part in _other_parts(node, function))


def _is_passed_on(node: ast.AST, names: frozenset[str], array: bool) -> bool:
    """Whether a condition gives the names to a function, which may keep them: `if seen(most)`."""
    asked = getattr(node, "test", None) or (node.iter if isinstance(node, _LOOPS) else None)
    calls = (part for part in ast.walk(asked) if isinstance(part, ast.Call)) if asked else ()
    return any(
        depends_on_names(value, names, array, plain=False)
        for call in calls
        if call_name(call) != "isinstance" and not is_number_cast(call)
        for value in (*call.args, *(one.value for one in call.keywords))
    )


def _is_only_stored(node: ast.AST, names: frozenset[str], array: bool, function: ast.AST) -> bool:
    """Whether a statement puts what is made of the names into local names of theirs, or returns it.

    Who called the function answers for what it returns.
    """
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        kept = [container_names(node.value, part) for part in node.value.args]
        return bool(kept) and all(one <= names and _is_own(one, function) for one in kept)
    if isinstance(node, ast.Return):
        value = node.value
        return (
            value is not None
            and not may_be_tensor(value)
            and depends_on_names(value, names, array, plain=True)
        )
    if not isinstance(node, _ASSIGNMENTS) or node.value is None:
        return False
    targets = target_names(node)
    into = any(isinstance(part, ast.Subscript) for part in ast.walk(node) if _is_set(part))
    local = _is_own(targets, function) if into else _is_local(targets, function)
    return local and targets <= names and depends_on_names(node.value, names, array, plain=True)


def _is_set(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)


def _is_local(names: frozenset[str], function: ast.AST) -> bool:
    """Whether nobody outside of the function knows these names."""
    outer = {
        name
        for node in ast.walk(function)
        if isinstance(node, (ast.Global, ast.Nonlocal))
        for name in node.names
    }
    return bool(names) and not any("." in name or name in outer for name in names)


def _is_own(names: frozenset[str], function: ast.AST) -> bool:
    """Whether the function itself has made what these names hold: nobody else can read it."""
    made = [
        (attribute_names(target), node.value)
        for node in ast.walk(function)
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr))
        for target in getattr(node, "targets", None) or [getattr(node, "target", None)]
        if not isinstance(target, ast.Subscript)
    ]
    given = [[value for targets, value in made if name in targets] for name in names]
    fresh = all(values and all(map(_is_fresh, values)) for values in given)
    return fresh and _is_local(names, function)


def _is_fresh(value: ast.AST | None) -> bool:
    return isinstance(value, _FRESH) or call_name(value or ast.Pass()) in _MAKERS


def _is_none_test(node: ast.AST) -> bool:
    """`name is None`: not about its value."""
    return isinstance(node, ast.Compare) and all(
        isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops
    )


def _other_parts(node: ast.AST, function: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node but for its condition and blocks that only raise or tell."""
    if isinstance(node, ast.If):
        for block in (node.body, node.orelse):
            if not is_report_only(block, node, function):
                yield from block
    elif isinstance(node, (ast.While, *_LOOPS)):
        yield from (*node.body, *node.orelse)
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    else:
        yield from ast.iter_child_nodes(node)
