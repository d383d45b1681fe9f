"""Determine which names an expression depends on, and whether they are only checked or logged."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TypeAlias

# Calls that return numbers for numbers.
_PLAIN_CALLS = frozenset(
    (
        "int", "float", "bool", "abs", "round", "min", "max", "sum", "len", "range", "any", "all",
        "sorted", "list", "tuple", "set", "enumerate", "zip", "divmod", "pow", "reversed",
    )
)  # fmt: skip
_PLAIN_NODES = (
    ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.List, ast.IfExp, ast.NamedExpr,
    ast.Starred,
)  # fmt: skip
_FILLS = frozenset(("append", "appendleft", "add", "insert", "extend", "update", "setdefault"))
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def depends_on_names(
    expression: ast.AST,
    names: frozenset[str],
    array: bool,
    *,
    plain: bool,
) -> bool:
    """Whether an expression depends on one of the names, as a number or as an `array`.

    `name.attribute` and `name is None` do not depend on a number. If `plain`, the expression
    must be a number itself.
    """
    if array:
        return any(attribute_names(part) & names for part in ast.walk(expression))
    if isinstance(expression, (ast.Name, ast.Attribute)) and attribute_names(expression) & names:
        return True
    if isinstance(expression, ast.Attribute) and attribute_names(expression.value) & names:
        return False
    if _is_kind_test(expression):
        return False
    if isinstance(expression, COMPREHENSIONS):
        return _comprehension_depends(expression, names, plain=plain)
    children = [
        child.value if isinstance(child, ast.keyword) else child
        for child in ast.iter_child_nodes(expression)
        if not plain or isinstance(child, ast.keyword) or preserves_number(expression, child)
    ]
    return any(
        depends_on_names(child, names, array, plain=plain)
        for child in children
        if isinstance(child, ast.expr)
    )


def _comprehension_depends(
    expression: Comprehension, names: frozenset[str], *, plain: bool
) -> bool:
    """Whether the elements or conditions of a comprehension depend on the names.

    `any(p > 3 for p in peaks)` depends on `peaks`.
    """
    condition = False
    for part in expression.generators:
        if depends_on_names(part.iter, names, array=False, plain=True):
            names |= attribute_names(part.target)
        condition = condition or any(
            depends_on_names(one, names, array=False, plain=False) for one in part.ifs
        )
    return condition or any(
        depends_on_names(one, names, array=False, plain=plain)
        for one in element_expressions(expression)
    )


def element_expressions(expression: Comprehension) -> tuple[ast.expr, ...]:
    """Return what a comprehension evaluates for each element."""
    if isinstance(expression, ast.DictComp):
        return expression.key, expression.value
    return (expression.elt,)


def container_names(parent: ast.AST, child: ast.AST) -> frozenset[str]:
    """Return the names of the container that a call adds a value to: `peaks.append(value)`."""
    if not isinstance(parent, ast.Call) or child not in parent.args:
        return frozenset()
    known = call_name(parent) in _FILLS and isinstance(parent.func, ast.Attribute)
    return attribute_names(getattr(parent.func, "value", None)) if known else frozenset()


def _is_kind_test(expression: ast.AST) -> bool:
    """Whether it is `name is None` or `isinstance(name, ...)`, independent of the value."""
    if isinstance(expression, ast.Compare):
        return any(isinstance(op, (ast.Is, ast.IsNot)) for op in expression.ops)
    return call_name(expression) == "isinstance"


def preserves_number(parent: ast.AST, child: ast.AST) -> bool:
    """Whether the parent of a number is a number."""
    if isinstance(parent, ast.Call):
        return is_number_cast(parent)
    if isinstance(parent, ast.Subscript):
        return child is parent.value
    if isinstance(parent, COMPREHENSIONS):
        return child in element_expressions(parent)
    return isinstance(parent, _PLAIN_NODES)


def is_number_cast(call: ast.Call) -> bool:
    """Whether a call only converts numbers to numbers."""
    maths = isinstance(call.func, ast.Attribute) and attribute_names(call.func.value) == {"math"}
    return maths or call_name(call) in _PLAIN_CALLS


def call_name(node: ast.AST) -> str:
    """Return the last name of the called object."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def target_names(node: ast.AST) -> frozenset[str]:
    """Return the names that an assignment sets."""
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    return frozenset(name for target in targets for name in attribute_names(target))


def attribute_names(node: ast.AST | None) -> frozenset[str]:
    """Return the names in a target, including `self.kept`."""
    if isinstance(node, ast.Name):
        return frozenset((node.id,))
    if isinstance(node, ast.Attribute):
        return frozenset(f"{base}.{node.attr}" for base in attribute_names(node.value))
    if isinstance(node, (ast.Tuple, ast.List)):
        return frozenset(name for part in node.elts for name in attribute_names(part))
    return (
        attribute_names(node.value)
        if isinstance(node, (ast.Subscript, ast.Starred))
        else frozenset()
    )


def returns_number(node: ast.AST, names: frozenset[str], array: bool) -> bool:
    """Whether it returns a number that depends on the names."""
    value = node.value if isinstance(node, ast.Return) else None
    return (
        value is not None
        and not may_be_tensor(value)
        and depends_on_names(value, names, array, plain=True)
    )


def may_be_tensor(node: ast.AST) -> bool:
    """Whether the expression may be a tensor, even if it contains a number."""
    return any(isinstance(part, ast.BinOp) for part in ast.walk(node))


# Which statements compute nothing: messages, checks, and branches that hold these alone.


_LOG_CALLS = frozenset(
    ("print", "warn", "warning", "warning_once", "info", "debug", "error", "exception", "log")
)
_CHECK_CALLS = frozenset(("_check", "_assert", "_assert_async", "assert_close", "_check_is_size"))


def is_message(statement: ast.AST) -> bool:
    """Whether it is a logging call or one of torch's checks."""
    return (
        isinstance(statement, ast.Expr) and call_name(statement.value) in _LOG_CALLS | _CHECK_CALLS
    )


def is_report_only(block: Sequence[ast.stmt], node: ast.If, function: ast.AST | None) -> bool:
    """Whether a block ends with a raise, or only logs."""
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


# Whether names of Python values are computed with, or only checked and reported.


_FRESH = (
    ast.List, ast.Dict, ast.Set, ast.Tuple, ast.Constant, ast.ListComp, ast.SetComp, ast.DictComp,
)  # fmt: skip
_MAKERS = frozenset(("list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter"))
_LOOPS = (ast.For, ast.AsyncFor)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)


def is_used(function: ast.AST, names: frozenset[str], *, array: bool) -> bool:
    """Whether a function uses the names for more than checks, messages and branches.

    `names` include those computed from them, so assigning a local name is not a use; setting an
    attribute or a global name is, as other code may read it.
    """
    if not _is_local(names, function):
        return True
    body: object = getattr(function, "body", None)
    parts = body if isinstance(body, list) else [body] if isinstance(body, ast.AST) else []
    return any(_is_used_by(part, names, array, function) for part in parts)


def _is_used_by(node: ast.AST, names: frozenset[str], array: bool, function: ast.AST) -> bool:
    if isinstance(node, ast.Raise) or is_message(node) or _is_kind_test(node):
        return False
    if _is_passed_on(node, names, array):
        return True
    if isinstance(node, ast.Assert):
        return False
    if isinstance(node, (ast.Name, ast.Attribute)) and attribute_names(node) & names:
        return isinstance(node.ctx, ast.Load)
    if _is_only_stored(node, names, array, function):
        return False
    return any(_is_used_by(part, names, array, function) for part in _other_parts(node, function))


def _is_passed_on(node: ast.AST, names: frozenset[str], array: bool) -> bool:
    """Whether a condition passes the names to a function, which may store them: `if seen(most)`."""
    condition = getattr(node, "test", None) or (node.iter if isinstance(node, _LOOPS) else None)
    calls = (
        (part for part in ast.walk(condition) if isinstance(part, ast.Call)) if condition else ()
    )
    return any(
        depends_on_names(value, names, array, plain=False)
        for call in calls
        if call_name(call) != "isinstance" and not is_number_cast(call)
        for value in (*call.args, *(one.value for one in call.keywords))
    )


def _is_only_stored(node: ast.AST, names: frozenset[str], array: bool, function: ast.AST) -> bool:
    """Whether a statement only assigns values of the names to local ones of them, or returns them.

    The caller's use of the returned value is checked separately.
    """
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        kept = [container_names(node.value, part) for part in node.value.args]
        return bool(kept) and all(one <= names and _is_own(one, function) for one in kept)
    if isinstance(node, ast.Return):
        return returns_number(node, names, array)
    if not isinstance(node, _ASSIGNMENTS) or node.value is None:
        return False
    targets = target_names(node)
    into = any(
        isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store)
        for part in ast.walk(node)
    )
    local = _is_own(targets, function) if into else _is_local(targets, function)
    return local and targets <= names and depends_on_names(node.value, names, array, plain=True)


def _is_local(names: frozenset[str], function: ast.AST) -> bool:
    """Whether the names are local to the function."""
    outer = {
        name
        for node in ast.walk(function)
        if isinstance(node, (ast.Global, ast.Nonlocal))
        for name in node.names
    }
    return bool(names) and not any("." in name or name in outer for name in names)


def _is_own(names: frozenset[str], function: ast.AST) -> bool:
    """Whether the function itself created the containers, so that no other code can read them."""
    made = [
        (attribute_names(target), node.value)
        for node in ast.walk(function)
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr))
        for target in getattr(node, "targets", None) or [getattr(node, "target", None)]
        if not isinstance(target, ast.Subscript)
    ]
    given = [[value for targets, value in made if name in targets] for name in names]
    fresh = all(
        values
        and all(isinstance(one, _FRESH) or (one and call_name(one) in _MAKERS) for one in values)
        for values in given
    )
    return fresh and _is_local(names, function)


def _other_parts(node: ast.AST, function: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node except its condition and blocks that only raise or log."""
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
