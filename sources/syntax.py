"""Reads in the user's source what a Python value made of tensor data decides: a branch, a value."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from .taint import Site

Span: TypeAlias = tuple[int, int, int, int]  # line, column, last line, column after the last
_Chain: TypeAlias = list[ast.AST]  # from the file down to the innermost node

_CONDITION = 100  # characters of a condition that are told
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
_TOLD = frozenset(
    ("print", "warn", "warning", "warning_once", "info", "debug", "error", "exception", "log")
)
_CHECKS = frozenset(("_check", "_assert", "_assert_async", "assert_close", "_check_is_size"))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


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
    """A statement that keeps a Python value made of tensor data, which decides no branch."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Idle:
    """A place whose value changes nothing that is computed: a check, a message."""

    file: str
    line: int


Meaning: TypeAlias = Test | Held | Idle


def meanings(sites: Sequence[Site]) -> tuple[Meaning, ...]:
    """What a Python value made at the innermost of `sites` decides.

    It is followed to the names that it is assigned to within one function, and, where it is
    returned, to where that function was called.
    """
    if not sites:
        return ()
    site, outer = sites[0], sites[1:]
    tree = _tree(site.file)
    chain = [] if tree is None or site.span[1] < 0 else _chain(tree, site.span)
    if len(chain) < 2:  # noqa: PLR2004 - the file itself is the first
        text = linecache.getline(site.file, site.line).strip()
        return (Held(file=site.file, line=site.line, text=text),)
    return tuple(dict.fromkeys(_climb(chain, site, outer)))


def _climb(chain: _Chain, site: Site, outer: Sequence[Site]) -> Iterator[Meaning]:
    """From the value outwards, to what takes it.

    Where a bare name is asked for its truth, the instruction stands for the whole statement.
    """
    whole = chain[-1]
    if isinstance(whole, (*_COMPREHENSIONS, ast.If, ast.While, ast.IfExp, ast.Assert)):
        yield from _whole(whole, site, chain[:-1])
        return
    plain = True
    for at in range(len(chain) - 1, 0, -1):
        parent, child = chain[at - 1], chain[at]
        if _tested(parent, child):
            yield from _branch(parent, child, site.file, chain[: at - 1])
            return
        if isinstance(parent, ast.stmt) or (
            isinstance(parent, ast.Lambda) and child is parent.body
        ):
            yield from _stated(chain[:at], site, outer, plain=plain)
            return
        if isinstance(parent, ast.NamedExpr):
            yield from _named(_dotted(parent.target), chain[:at], site, outer)
        plain = plain and _keeps_plain(parent, child)
    yield _held(site, chain[-1])


def _whole(node: ast.AST, site: Site, above: _Chain) -> Iterator[Meaning]:
    """What is asked where an instruction stands for a whole branch, comprehension or check."""
    if isinstance(node, ast.Assert):
        yield Idle(file=site.file, line=site.line)
    elif isinstance(node, _COMPREHENSIONS):
        for part in node.generators:
            for condition in part.ifs:
                yield from _branch(part, condition, site.file, [*above, node])
    else:
        for condition in _conditions(node):
            yield from _branch(node, condition, site.file, above)


def _tested(parent: ast.AST, child: ast.AST) -> bool:
    if isinstance(parent, (ast.If, ast.While, ast.IfExp)):
        return child is parent.test
    if isinstance(parent, ast.comprehension):
        return child in parent.ifs
    return isinstance(parent, (ast.For, ast.AsyncFor)) and child is parent.iter


def _stated(
    chain: _Chain, site: Site, outer: Sequence[Site], *, plain: bool
) -> Iterator[Meaning]:
    """What the statement at the end of the chain does with a value."""
    statement = chain[-1]
    if isinstance(statement, (ast.Assert, ast.Raise)) or (
        isinstance(statement, ast.Expr) and _called(statement.value) in _TOLD | _CHECKS
    ):
        yield Idle(file=site.file, line=site.line)
        return
    found: list[Meaning] = []
    if isinstance(statement, (ast.Return, ast.Lambda)):
        found = list(meanings(outer)) if plain else []
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and plain:
        found = list(_named(_targets(statement), chain, site, outer))
    yield from found or [_held(site, statement)]


def _named(
    names: frozenset[str], chain: _Chain, site: Site, outer: Sequence[Site]
) -> Iterator[Meaning]:
    """The branches of the same function that names decide, or names computed from them."""
    at = max((i for i, node in enumerate(chain) if isinstance(node, _FUNCTIONS)), default=0)
    nodes = list(ast.walk(chain[at]))
    before: frozenset[str] = frozenset()
    while names != before:
        before = names
        for node in nodes:
            value = getattr(node, "value", None)
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
                names |= _targets(node) if value and _mentions(value, names, plain=True) else set()
    for node in nodes:
        for condition in _conditions(node):
            if _mentions(condition, names, plain=False):
                yield from _branch(node, condition, site.file, _path(chain[at], node))
        if isinstance(node, ast.Return) and node.value and _mentions(node.value, names, plain=True):
            yield from meanings(outer)


def _conditions(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return node.ifs
    return [node.iter] if isinstance(node, (ast.For, ast.AsyncFor)) else []


def _path(root: ast.AST, wanted: ast.AST) -> _Chain:
    """The nodes from `root` to `wanted`, which is left out."""
    parents = {child: node for node in ast.walk(root) for child in ast.iter_child_nodes(node)}
    path: _Chain = []
    node = parents.get(wanted)
    while node is not None:
        path.insert(0, node)
        node = parents.get(node)
    return path


def _branch(
    node: ast.AST, condition: ast.AST, file: str, above: Sequence[ast.AST]
) -> Iterator[Meaning]:
    """The branch as it is watched; one that only raises or tells on one side is idle."""
    line = getattr(condition, "lineno", 0)
    kind, taken = "if", _bodies(node, condition, above)
    if isinstance(node, ast.If):
        line = node.lineno
        function = next((n for n in reversed(above) if isinstance(n, _FUNCTIONS)), None)
        if any(_only_tells(block, node, function) for block in (node.body, node.orelse)):
            yield Idle(file=file, line=line)
            return
    elif isinstance(node, (ast.While, ast.For, ast.AsyncFor)):
        kind, line = "while" if isinstance(node, ast.While) else "for", node.lineno
    text = _text(file, condition)
    if isinstance(node, (ast.For, ast.AsyncFor)):
        text = f"{_text(file, node.target)} in {text}"
    yield Test(
        file=file,
        kind=kind,
        line=line,
        condition=text,
        span=span_of(condition),
        whole=span_of(node),
        taken=taken,
    )


def _bodies(node: ast.AST, condition: ast.AST, above: Sequence[ast.AST]) -> tuple[Span, ...]:
    """Where code stands that runs only if the condition holds."""
    if isinstance(node, ast.IfExp):
        return (span_of(node.body),)
    if isinstance(node, (ast.If, ast.While)):
        return tuple(span_of(part) for part in node.body)
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return (span_of(node.target), *(span_of(part) for part in node.body))
    if isinstance(node, ast.comprehension) and above:
        return tuple(span_of(part) for part in _after(above[-1], node, condition))
    return ()


def _after(whole: ast.AST, part: ast.comprehension, condition: ast.AST) -> Iterator[ast.AST]:
    """What a comprehension goes on with where a condition of it holds."""
    if isinstance(whole, ast.DictComp):
        yield from (whole.key, whole.value)
    elif isinstance(whole, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        yield whole.elt
    if isinstance(whole, _COMPREHENSIONS):
        yield from part.ifs[part.ifs.index(condition) + 1 :]  # type: ignore[arg-type]  # is one of them
        for later in whole.generators[whole.generators.index(part) + 1 :]:
            yield from (later.target, later.iter)


def _only_tells(block: Sequence[ast.stmt], node: ast.If, function: ast.AST | None) -> bool:
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
    return all(_tells(statement, outside) for statement in block)


def _tells(statement: ast.stmt, outside: set[str]) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant) or _called(statement.value) in _TOLD
    if isinstance(statement, ast.If):
        return all(_tells(part, outside) for part in (*statement.body, *statement.orelse))
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        return not _targets(statement) & outside and "self" not in ast.dump(statement)
    return isinstance(statement, (ast.Raise, ast.Assert, ast.Pass))


def _mentions(expression: ast.expr, names: frozenset[str], *, plain: bool) -> bool:
    """Whether an expression depends on one of the names as on a number.

    `name.attribute` and `name is None` do not: numbers have neither. Where `plain`, the
    expression has to give a number itself.
    """
    if isinstance(expression, (ast.Name, ast.Attribute)) and _dotted(expression) & names:
        return True
    if isinstance(expression, ast.Compare) and any(
        isinstance(op, (ast.Is, ast.IsNot)) for op in expression.ops
    ):
        return False
    if isinstance(expression, ast.Call) and _called(expression) == "isinstance":
        return False
    for child in ast.iter_child_nodes(expression):
        if isinstance(child, ast.keyword):
            child = child.value  # noqa: PLW2901 - the argument stands for it
        if isinstance(expression, ast.Attribute) and _dotted(child) & names:
            continue
        if plain and not _keeps_plain(expression, child):
            continue
        if isinstance(child, ast.expr) and _mentions(child, names, plain=plain):
            return True
    return False


def _keeps_plain(parent: ast.AST, child: ast.AST) -> bool:
    """Whether a number stays a number in its parent expression."""
    if isinstance(parent, ast.Call):
        maths = isinstance(parent.func, ast.Attribute) and _dotted(parent.func.value) == {"math"}
        return maths or _called(parent) in _PLAIN_CALLS
    if isinstance(parent, ast.Subscript):
        return child is parent.value
    return isinstance(parent, _PLAIN_NODES)


def _called(node: ast.AST) -> str:
    """The last name of what is called."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _targets(node: ast.AST) -> frozenset[str]:
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    return frozenset(name for target in targets for name in _dotted(target))


def _dotted(node: ast.AST | None) -> frozenset[str]:
    """The names that a target sets, `self.kept` among them."""
    if isinstance(node, ast.Name):
        return frozenset((node.id,))
    if isinstance(node, ast.Attribute):
        return frozenset(f"{base}.{node.attr}" for base in _dotted(node.value))
    if isinstance(node, (ast.Tuple, ast.List)):
        return frozenset(name for part in node.elts for name in _dotted(part))
    return _dotted(node.value) if isinstance(node, (ast.Subscript, ast.Starred)) else frozenset()


def _held(site: Site, node: ast.AST) -> Held:
    line = getattr(node, "lineno", site.line)
    return Held(file=site.file, line=line, text=_text(site.file, node))


def _text(file: str, node: ast.AST) -> str:
    """The node's source on one line."""
    first, column, last, end = span_of(node)
    lines = [line.encode() for line in linecache.getlines(file)[first - 1 : last]]
    if not lines:
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][column:]
    text = " ".join(b" ".join(lines).decode(errors="replace").split())
    return text if len(text) <= _CONDITION else f"{text[: _CONDITION - 1]}…"


def span_of(node: ast.AST) -> Span:
    """Where a node stands; columns are in bytes. A function begins with its decorators."""
    spans = [node, *getattr(node, "decorator_list", ())]
    first = min((getattr(n, "lineno", 0), getattr(n, "col_offset", 0)) for n in spans)
    last = getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)
    return (*first, *last)


@lru_cache(maxsize=256)
def _tree(file: str) -> ast.Module | None:
    """The file as it is on disk (or as an interpreter keeps it); None where it cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def _chain(tree: ast.AST, span: Span) -> _Chain:
    """The nodes that hold the span, the outermost first."""
    chain: _Chain = [tree]
    while True:
        inner = [child for child in ast.iter_child_nodes(chain[-1]) if _holds(child, span)]
        if not inner:
            return chain
        chain.append(inner[0])


def _holds(node: ast.AST, span: Span) -> bool:
    if not hasattr(node, "lineno"):  # a comprehension's `for`, an argument list
        return any(_holds(child, span) for child in ast.iter_child_nodes(node))
    return within(span, span_of(node))


def within(inner: Span, outer: Span) -> bool:
    """Whether a span lies in another."""
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]
