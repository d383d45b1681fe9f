"""Which names an expression depends on as on numbers, and whether it gives a number itself."""

from __future__ import annotations

import ast
from typing import TypeAlias

# Calls through which a number stays a number.
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
    """Whether an expression depends on one of the names as on a number, or on an `array`.

    `name.attribute` and `name is None` do not: numbers have neither. Where `plain`, the
    expression has to give a number itself.
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
    """Whether a comprehension is of numbers that come from the names, or asks for them.

    `any(p > 3 for p in peaks)` depends on `peaks`.
    """
    asked = False
    for part in expression.generators:
        if depends_on_names(part.iter, names, array=False, plain=True):
            names |= attribute_names(part.target)
        asked = asked or any(
            depends_on_names(one, names, array=False, plain=False) for one in part.ifs
        )
    return asked or any(
        depends_on_names(one, names, array=False, plain=plain)
        for one in _element_expressions(expression)
    )


def _element_expressions(expression: Comprehension) -> tuple[ast.expr, ...]:
    if isinstance(expression, ast.DictComp):
        return expression.key, expression.value
    return (expression.elt,)


def container_names(parent: ast.AST, child: ast.AST) -> frozenset[str]:
    """The names of the container that a call puts a value into: `peaks.append(value)`."""
    if not isinstance(parent, ast.Call) or child not in parent.args:
        return frozenset()
    known = call_name(parent) in _FILLS and isinstance(parent.func, ast.Attribute)
    return attribute_names(getattr(parent.func, "value", None)) if known else frozenset()


def _is_kind_test(expression: ast.AST) -> bool:
    """`name is None`, `isinstance(name, ...)`: not about its value."""
    if isinstance(expression, ast.Compare):
        return any(isinstance(op, (ast.Is, ast.IsNot)) for op in expression.ops)
    return call_name(expression) == "isinstance"


def preserves_number(parent: ast.AST, child: ast.AST) -> bool:
    """Whether a number stays a number in its parent expression."""
    if isinstance(parent, ast.Call):
        return is_number_cast(parent)
    if isinstance(parent, ast.Subscript):
        return child is parent.value
    if isinstance(parent, COMPREHENSIONS):
        return child in _element_expressions(parent)
    return isinstance(parent, _PLAIN_NODES)


def is_number_cast(call: ast.Call) -> bool:
    """Whether a call makes a number of a number, and nothing more."""
    maths = isinstance(call.func, ast.Attribute) and attribute_names(call.func.value) == {"math"}
    return maths or call_name(call) in _PLAIN_CALLS


def call_name(node: ast.AST) -> str:
    """The last name of what is called."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def target_names(node: ast.AST) -> frozenset[str]:
    """The names that an assignment sets."""
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    return frozenset(name for target in targets for name in attribute_names(target))


def attribute_names(node: ast.AST | None) -> frozenset[str]:
    """The names that a target sets, `self.kept` among them."""
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


def may_be_tensor(node: ast.AST) -> bool:
    """Whether the expression may be of tensors: a number in it makes it none."""
    return any(isinstance(part, ast.BinOp) for part in ast.walk(node))
