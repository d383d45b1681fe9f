"""Reads in the user's source what a Python value made of tensor data decides: a branch, a value."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .catching import holds_back, is_caught
from .meaning import (
    Held,
    Idle,
    Meaning,
    assertion,
    branch,
    conditions_of,
    function_of,
    held,
)
from .naming import (
    COMPREHENSIONS,
    computes,
    dotted,
    fills,
    keeps_plain,
    mentions,
    targets_of,
)
from .places import Site
from .spans import Chain, chain_to, tree_of
from .telling import is_message
from .uses import is_used


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """Where a value was made: the place, the frames above it, whether it is an array.

    `caught` says that an error raised there is caught further out. `known` are meanings that were
    worked out for the same stack, by how many frames of it are left: each function asks several
    times for those of its caller.
    """

    site: Site
    outer: Sequence[Site]
    array: bool
    known: dict[int, tuple[Meaning, ...]]
    caught: bool = False


def meanings(sites: Sequence[Site], *, array: bool = False) -> tuple[Meaning, ...]:
    """What a Python value made at the innermost of `sites` decides.

    It is followed to the names that it is assigned to within one function, and, where it is
    returned, to where that function was called.

    Args:
        sites: the user's frames, the innermost first.
        array: whether it is an array or a list, which have attributes, unlike numbers.
    """
    return _meanings(sites, array, {})


def _meanings(
    sites: Sequence[Site], array: bool, known: dict[int, tuple[Meaning, ...]]
) -> tuple[Meaning, ...]:
    """The same; `known` as of an origin."""
    if len(sites) not in known:
        known[len(sites)] = _read(sites, array, known) if sites else ()
    return known[len(sites)]


def _read(
    sites: Sequence[Site], array: bool, known: dict[int, tuple[Meaning, ...]]
) -> tuple[Meaning, ...]:
    site = sites[0]
    tree = tree_of(site.file)
    chain = [] if tree is None or site.span[1] < 0 else chain_to(tree, site.span)
    if len(chain) < 2:  # noqa: PLR2004 - the file itself is the first
        text = linecache.getline(site.file, site.line).strip()
        return (Held(file=site.file, line=site.line, text=text),)
    caught = is_caught(sites)  # then a check decides what runs
    origin = _Origin(site=site, outer=sites[1:], array=array, known=known, caught=caught)
    found = tuple(dict.fromkeys(_climb(chain, origin)))
    if any(isinstance(meaning, Held) for meaning in found) or not _is_named(chain, origin):
        return found
    return (*found, held(site, chain[-1]))


def _is_named(chain: Chain, origin: _Origin) -> bool:
    """Whether an expression names the value, `(most := x.max().item())`, and the name is used."""
    return any(
        isinstance(node, ast.NamedExpr) and _is_kept(dotted(node.target), chain[:at], origin)
        for at, node in enumerate(chain)
    )


def _climb(chain: Chain, origin: _Origin) -> Iterator[Meaning]:
    """From the value outwards, to what takes it.

    Where a bare name is asked for its truth, the instruction stands for the whole statement.
    """
    whole, site = chain[-1], origin.site
    if isinstance(whole, (*COMPREHENSIONS, ast.If, ast.While, ast.IfExp, ast.Assert)):
        yield from _whole(whole, origin, chain[:-1])
        return
    plain = True
    for at in range(len(chain) - 1, 0, -1):
        parent, child = chain[at - 1], chain[at]
        if _tested(parent, child):
            yield from branch(parent, child, site.file, chain[: at - 1], caught=origin.caught)
            if plain and isinstance(parent, (ast.For, ast.AsyncFor)):
                yield from _named(targets_of(parent), chain[:at], origin)
            return
        if isinstance(parent, ast.stmt) or (
            isinstance(parent, ast.Lambda) and child is parent.body
        ):
            yield from _stated(chain[:at], origin, child if plain else None)
            return
        if isinstance(parent, ast.NamedExpr):
            yield from _named(dotted(parent.target), chain[:at], origin)
        if plain and fills(parent, child):
            yield from _named(fills(parent, child), chain[:at], origin)
        plain = plain and keeps_plain(parent, child)
    yield held(site, chain[-1])


def _whole(node: ast.AST, origin: _Origin, above: Chain) -> Iterator[Meaning]:
    """What is asked where an instruction stands for a whole branch, comprehension or check."""
    site = origin.site
    if isinstance(node, ast.Assert):
        yield from assertion(node, site.file, caught=origin.caught)
    elif isinstance(node, COMPREHENSIONS):
        for part in node.generators:
            for condition in part.ifs:
                yield from branch(part, condition, site.file, [*above, node])
    else:
        for condition in conditions_of(node):
            yield from branch(node, condition, site.file, above, caught=origin.caught)


def _tested(parent: ast.AST, child: ast.AST) -> bool:
    if isinstance(parent, (ast.If, ast.While, ast.IfExp)):
        return child is parent.test
    if isinstance(parent, ast.comprehension):
        return child in parent.ifs
    return isinstance(parent, (ast.For, ast.AsyncFor)) and child is parent.iter


def _stated(chain: Chain, origin: _Origin, value: ast.AST | None) -> Iterator[Meaning]:
    """What the statement at the end of the chain does with a value, if that stayed plain."""
    statement, site = chain[-1], origin.site
    if isinstance(statement, ast.Assert):
        yield from assertion(statement, site.file, caught=origin.caught)
        return
    if isinstance(statement, ast.Raise) or is_message(statement):
        yield Idle(file=site.file, line=site.line)
        return
    found: list[Meaning] = []
    kept = True
    if value is None:
        pass
    elif isinstance(statement, (ast.Return, ast.Lambda)):
        found = [] if computes(value) else list(_answered(origin))
        kept = _is_kept_outside(origin)
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        found = list(_named(targets_of(statement), chain, origin))
        kept = _is_kept(targets_of(statement), chain, origin)
    yield from found
    if kept or not any(isinstance(meaning, Idle) for meaning in found):
        yield held(site, statement)


def _is_kept(names: frozenset[str], chain: Chain, origin: _Origin) -> bool:
    """Whether names, or what is computed from them, serve for more than checks and messages."""
    function = function_of(chain)
    nodes = list(ast.walk(function))
    names = _spread(names, nodes, array=origin.array)
    if is_used(function, names, array=origin.array):
        return True
    returned = (node.value for node in nodes if isinstance(node, ast.Return) and node.value)
    given = any(mentions(value, names, origin.array, plain=True) for value in returned)
    return given and _is_kept_outside(origin)


def _is_kept_outside(origin: _Origin) -> bool:
    """Whether a returned value is more than checked where the function was called.

    What the outermost function returns is the model's answer.
    """
    found = _meanings(origin.outer, origin.array, origin.known)
    return not found or any(isinstance(meaning, Held) for meaning in found)


def _answered(origin: _Origin) -> Iterator[Meaning]:
    """The branches that a returned value decides where the function was called."""
    found = _meanings(origin.outer, origin.array, origin.known)
    return (meaning for meaning in found if not isinstance(meaning, Held))


def _named(names: frozenset[str], chain: Chain, origin: _Origin) -> Iterator[Meaning]:
    """The branches of the same function that names decide, or names computed from them."""
    function = function_of(chain)
    nodes = list(ast.walk(function))
    names = _spread(names, nodes, array=origin.array)
    for node in nodes:
        for condition in conditions_of(node):
            if mentions(condition, names, origin.array, plain=False):
                path = _path(function, node)
                caught = holds_back([*path, node]) or is_caught(origin.outer)
                yield from branch(node, condition, origin.site.file, path, caught=caught)
        if isinstance(node, ast.Assert) and mentions(node.test, names, origin.array, plain=False):
            path = _path(function, node)
            if holds_back([*path, node]) or is_caught(origin.outer):
                yield from assertion(node, origin.site.file, caught=True)
        value = node.value if isinstance(node, ast.Return) else None
        if value and not computes(value) and mentions(value, names, origin.array, plain=True):
            yield from _answered(origin)


def _spread(names: frozenset[str], nodes: Sequence[ast.AST], *, array: bool) -> frozenset[str]:
    """The names, and all that are computed from them in turn."""
    kinds = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
    assigned = [(targets_of(node), node.value) for node in nodes if isinstance(node, kinds)]
    assigned += [(targets_of(node), node.iter) for node in nodes if isinstance(node, ast.For)]
    assigned += [
        (fills(node, value), value)
        for node in nodes
        if isinstance(node, ast.Call)
        for value in node.args
        if fills(node, value)
    ]
    before: frozenset[str] = frozenset()
    while names != before:
        before = names
        for targets, value in assigned:
            if value is not None and mentions(value, names, array, plain=True):
                names |= targets
    return names


def _path(root: ast.AST, wanted: ast.AST) -> Chain:
    """The nodes from `root` to `wanted`, which is left out."""
    parents = {child: node for node in ast.walk(root) for child in ast.iter_child_nodes(node)}
    path: Chain = []
    node = parents.get(wanted)
    while node is not None:
        path.insert(0, node)
        node = parents.get(node)
    return path
