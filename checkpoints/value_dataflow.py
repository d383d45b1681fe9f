"""Follow a value of tensor data through the user's source to the branches that depend on it."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .name_dataflow import (
    COMPREHENSIONS,
    attribute_names,
    container_names,
    depends_on_names,
    is_message,
    is_used,
    may_be_tensor,
    preserves_number,
    returns_number,
    target_names,
)
from .source_decisions import (
    IdleUse,
    KeptValue,
    ValueUse,
    find_function,
    is_caught,
    is_error_handled,
    list_conditions,
    make_kept_value,
    read_assertion,
    read_branch,
)
from .source_positions import Chain, CodeSite, find_chain


@dataclass(frozen=True, kw_only=True)
class _ValueOrigin:
    """The origin of a value: its site, the frames above it, whether it is an array.

    `caught` says that an enclosing frame catches an error raised there. `known` caches the uses
    by the number of remaining frames: each function asks several times for its caller's.
    """

    site: CodeSite
    outer: Sequence[CodeSite]
    array: bool
    known: dict[int, tuple[ValueUse, ...]]
    caught: bool = False


def find_value_uses(sites: Sequence[CodeSite], *, array: bool = False) -> tuple[ValueUse, ...]:
    """Return the uses of a Python value created at the innermost of `sites`.

    It is followed through names within a function, and, if returned, to the function's caller.

    Args:
        sites: the user's frames, the innermost first.
        array: whether it is an array or a list, not a number.
    """
    return _find_uses(sites, array, {})


def _find_uses(
    sites: Sequence[CodeSite], array: bool, known: dict[int, tuple[ValueUse, ...]]
) -> tuple[ValueUse, ...]:
    """Return the uses, from the cache if known."""
    if len(sites) not in known:
        known[len(sites)] = _read_uses(sites, array, known) if sites else ()
    return known[len(sites)]


def _read_uses(
    sites: Sequence[CodeSite], array: bool, known: dict[int, tuple[ValueUse, ...]]
) -> tuple[ValueUse, ...]:
    site = sites[0]
    chain = find_chain(site)
    if len(chain) < 2:  # noqa: PLR2004 - the first is the file
        text = linecache.getline(site.file, site.line).strip()
        return (KeptValue(file=site.file, line=site.line, text=text),)
    caught = is_caught(sites)  # then a check is a branch
    origin = _ValueOrigin(site=site, outer=sites[1:], array=array, known=known, caught=caught)
    found = tuple(dict.fromkeys(_walk_outwards(chain, origin)))
    if any(isinstance(use, KeptValue) for use in found) or not _is_named(chain, origin):
        return found
    return (*found, make_kept_value(site, chain[-1]))


def _is_named(chain: Chain, origin: _ValueOrigin) -> bool:
    """Whether a walrus names the value, `(most := x.max().item())`, and the name is used."""
    return any(
        isinstance(node, ast.NamedExpr)
        and _is_kept(attribute_names(node.target), chain[:at], origin)
        for at, node in enumerate(chain)
    )


def _walk_outwards(chain: Chain, origin: _ValueOrigin) -> Iterator[ValueUse]:
    """Walk from the value outwards to the statement or condition that uses it.

    The instruction that tests a bare name has the span of the whole statement.
    """
    whole, site = chain[-1], origin.site
    if isinstance(whole, (*COMPREHENSIONS, ast.If, ast.While, ast.IfExp, ast.Assert)):
        yield from _read_whole_statement(whole, origin, chain[:-1])
        return
    plain = True
    for at in range(len(chain) - 1, 0, -1):
        parent, child = chain[at - 1], chain[at]
        if child in list_conditions(parent):
            yield from read_branch(parent, child, site.file, chain[: at - 1], caught=origin.caught)
            if plain and isinstance(parent, (ast.For, ast.AsyncFor)):
                yield from _find_named_branches(target_names(parent), chain[:at], origin)
            return
        if isinstance(parent, ast.stmt) or (
            isinstance(parent, ast.Lambda) and child is parent.body
        ):
            yield from _read_statement(chain[:at], origin, child if plain else None)
            return
        if isinstance(parent, ast.NamedExpr):
            yield from _find_named_branches(attribute_names(parent.target), chain[:at], origin)
        if plain and container_names(parent, child):
            yield from _find_named_branches(container_names(parent, child), chain[:at], origin)
        plain = plain and preserves_number(parent, child)
    yield make_kept_value(site, chain[-1])


def _read_whole_statement(node: ast.AST, origin: _ValueOrigin, above: Chain) -> Iterator[ValueUse]:
    """Read the conditions of an instruction with the span of a branch, comprehension or check."""
    site = origin.site
    if isinstance(node, ast.Assert):
        yield from read_assertion(node, site.file, caught=origin.caught)
    elif isinstance(node, COMPREHENSIONS):
        for part in node.generators:
            for condition in part.ifs:
                yield from read_branch(part, condition, site.file, [*above, node])
    else:
        for condition in list_conditions(node):
            yield from read_branch(node, condition, site.file, above, caught=origin.caught)


def _read_statement(
    chain: Chain, origin: _ValueOrigin, value: ast.AST | None
) -> Iterator[ValueUse]:
    """Read what the last statement of the chain does with a value, if it is still a number."""
    statement, site = chain[-1], origin.site
    if isinstance(statement, ast.Assert):
        yield from read_assertion(statement, site.file, caught=origin.caught)
        return
    if isinstance(statement, ast.Raise) or is_message(statement):
        yield IdleUse(file=site.file, line=site.line)
        return
    found: list[ValueUse] = []
    kept = True
    if value is None:
        pass
    elif isinstance(statement, (ast.Return, ast.Lambda)):
        found = [] if may_be_tensor(value) else list(_read_callers(origin))
        kept = _is_kept_outside(origin)
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        found = list(_find_named_branches(target_names(statement), chain, origin))
        kept = _is_kept(target_names(statement), chain, origin)
    yield from found
    if kept or not any(isinstance(use, IdleUse) for use in found):
        yield make_kept_value(site, statement)


def _is_kept(names: frozenset[str], chain: Chain, origin: _ValueOrigin) -> bool:
    """Whether names, or values computed from them, are used for more than checks and messages."""
    function = find_function(chain)
    nodes = list(ast.walk(function))
    names = _propagate_names(names, nodes, array=origin.array)
    if is_used(function, names, array=origin.array):
        return True
    returned = (node.value for node in nodes if isinstance(node, ast.Return) and node.value)
    given = any(depends_on_names(value, names, origin.array, plain=True) for value in returned)
    return given and _is_kept_outside(origin)


def _is_kept_outside(origin: _ValueOrigin) -> bool:
    """Whether the caller uses a returned value for more than checks.

    The return value of the outermost function is the model's output.
    """
    found = _find_uses(origin.outer, origin.array, origin.known)
    return not found or any(isinstance(use, KeptValue) for use in found)


def _read_callers(origin: _ValueOrigin) -> Iterator[ValueUse]:
    """Return the branches of the caller that depend on a returned value."""
    found = _find_uses(origin.outer, origin.array, origin.known)
    return (use for use in found if not isinstance(use, KeptValue))


def _find_named_branches(
    names: frozenset[str], chain: Chain, origin: _ValueOrigin
) -> Iterator[ValueUse]:
    """Yield the branches of the function that depend on names, or on names computed from them."""
    function = find_function(chain)
    nodes = list(ast.walk(function))
    names = _propagate_names(names, nodes, array=origin.array)
    for node in nodes:
        for condition in list_conditions(node):
            if depends_on_names(condition, names, origin.array, plain=False):
                path = _path_to(function, node)
                caught = is_error_handled([*path, node]) or is_caught(origin.outer)
                yield from read_branch(node, condition, origin.site.file, path, caught=caught)
        if isinstance(node, ast.Assert) and depends_on_names(
            node.test, names, origin.array, plain=False
        ):
            path = _path_to(function, node)
            if is_error_handled([*path, node]) or is_caught(origin.outer):
                yield from read_assertion(node, origin.site.file, caught=True)
        if returns_number(node, names, origin.array):
            yield from _read_callers(origin)


def _propagate_names(
    names: frozenset[str], nodes: Sequence[ast.AST], *, array: bool
) -> frozenset[str]:
    """Return the names, and all names computed from them."""
    kinds = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
    assigned = [(target_names(node), node.value) for node in nodes if isinstance(node, kinds)]
    assigned += [(target_names(node), node.iter) for node in nodes if isinstance(node, ast.For)]
    assigned += [
        (container_names(node, value), value)
        for node in nodes
        if isinstance(node, ast.Call)
        for value in node.args
        if container_names(node, value)
    ]
    before: frozenset[str] = frozenset()
    while names != before:
        before = names
        for targets, value in assigned:
            if value is not None and depends_on_names(value, names, array, plain=True):
                names |= targets
    return names


def _path_to(root: ast.AST, wanted: ast.AST) -> Chain:
    """Return the nodes from `root` to `wanted`, exclusive."""
    parents = {child: node for node in ast.walk(root) for child in ast.iter_child_nodes(node)}
    path: Chain = []
    node = parents.get(wanted)
    while node is not None:
        path.insert(0, node)
        node = parents.get(node)
    return path
