"""Whether an error raised at a place of the user's code is caught further out: a branch, then."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from itertools import pairwise

from .naming import called
from .places import Site
from .spans import Chain, chain_to, tree_of

# What packages catch of their own calls, for arguments and imports that are not there.
_OF_CALLS = frozenset(("TypeError", "ImportError", "ModuleNotFoundError"))


def is_caught(sites: Iterable[Site]) -> bool:
    """Whether one of the frames stands in a `try` that goes on after an error, or a `suppress`."""
    return any(_catches(site) for site in sites)


def _catches(site: Site) -> bool:
    tree = tree_of(site.file)
    chain = [] if tree is None or site.span[1] < 0 else chain_to(tree, site.span)
    return holds_back(chain)


def holds_back(chain: Chain) -> bool:
    """Whether one of these nodes, each within the one before it, catches what the last raises."""
    return any(_goes_on(outer, inner) for outer, inner in pairwise(chain))


def _goes_on(outer: ast.AST, inner: ast.AST) -> bool:
    if isinstance(outer, ast.Try) and inner in outer.body:
        return any(map(_swallows, outer.handlers))
    if isinstance(outer, ast.With) and inner in outer.body:
        return any(called(item.context_expr) == "suppress" for item in outer.items)
    return False


def _swallows(handler: ast.ExceptHandler) -> bool:
    """Whether a handler goes on, after errors that a check may raise."""
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {getattr(one, "id", "") for one in named}
    return not isinstance(handler.body[-1], ast.Raise) and not names <= _OF_CALLS
