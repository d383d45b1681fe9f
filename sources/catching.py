"""Whether an error raised at a place of the user's code is caught further out: a branch, then."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from itertools import pairwise

from .naming import call_name
from .places import CodeSite
from .spans import Chain, find_chain, parse_file

# Whether an error raised at a place of the user's code is caught further out: a branch, then.


# What packages catch of their own calls, for arguments and imports that are not there.
_CALL_ERRORS = frozenset(("TypeError", "ImportError", "ModuleNotFoundError"))


def is_caught(sites: Iterable[CodeSite]) -> bool:
    """Whether one of the frames stands in a `try` that goes on after an error, or a `suppress`."""
    return any(_is_site_caught(site) for site in sites)


def _is_site_caught(site: CodeSite) -> bool:
    tree = parse_file(site.file)
    chain = [] if tree is None or site.span[1] < 0 else find_chain(tree, site.span)
    return is_error_handled(chain)


def is_error_handled(chain: Chain) -> bool:
    """Whether one of these nodes, each within the one before it, catches what the last raises."""
    return any(_continues_after_error(outer, inner) for outer, inner in pairwise(chain))


def _continues_after_error(outer: ast.AST, inner: ast.AST) -> bool:
    if isinstance(outer, ast.Try) and inner in outer.body:
        return any(map(_is_silent_handler, outer.handlers))
    if isinstance(outer, ast.With) and inner in outer.body:
        return any(call_name(item.context_expr) == "suppress" for item in outer.items)
    return False


def _is_silent_handler(handler: ast.ExceptHandler) -> bool:
    """Whether a handler goes on, after errors that a check may raise."""
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {getattr(one, "id", "") for one in named}
    return not isinstance(handler.body[-1], ast.Raise) and not names <= _CALL_ERRORS
