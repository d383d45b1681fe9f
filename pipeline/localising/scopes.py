"""Reads the scopes that exporters write as paths of eager's modules.

torch.export writes the paths themselves. The TorchScript exporter writes names: a trace repeats the
last one (`/layer1/layer1.0/conv1`) and numbers later calls (`relu_1`), a script leaves out module
lists (`/0/conv1` for `blocks.0.conv1`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache

from ...core.probe import ProbeNode

_NUMBERED_SCOPE = re.compile(r"(.+)_\d+")
_MAX_SCOPE = 64  # names in a scope


def resolve_scopes(
    nodes: Sequence[ProbeNode], modules: Collection[str], called: Collection[str]
) -> tuple[ProbeNode, ...]:
    """The nodes, each with the path of eager's module that its scope means.

    A scope that means none of them, or several, is left as it is; the module that the node's
    weights are named after stands for it, and for one that is missing.

    Args:
        nodes: of the artifact.
        modules: the paths of eager's modules.
        called: those of them that were called: lists of modules are not.
    """
    known = frozenset(modules)
    passed_over = known - frozenset(called)

    @cache
    def meant(scope: str, owner: str, kind: str) -> str:
        if scope in known and (scope or kind):
            return scope
        names = scope.split(".")[:_MAX_SCOPE]
        found = dict.fromkeys(_iter_matching_paths(names, "", known, passed_over))
        if len(found) > 1:
            found = {path: None for path in found if owner == path or owner.startswith(f"{path}.")}
        if len(found) == 1 and scope:
            return next(iter(found))
        inner = owner.partition(".")[2]  # a wrapper's attribute before it
        return next((one for one in (owner, inner) if one and one in known), scope)

    def resolved(node: ProbeNode) -> ProbeNode:
        inside = node.inside and tuple(dict.fromkeys(meant(one, "", "") for one in node.inside))
        return replace(node, module=meant(node.module, node.owner, node.kind), inside=inside)

    return tuple(resolved(node) for node in nodes)


def _iter_matching_paths(
    names: Sequence[str], path: str, known: Collection[str], lists: Collection[str]
) -> Iterator[str]:
    """The paths that names may mean below a path; what is exact hides what is not."""
    if not names:
        yield path
        return
    name, *rest = names
    child = f"{path}.{name}" if path else name
    if child in known:
        yield from _iter_matching_paths(rest, child, known, lists)
        return
    if path == name or path.endswith(f".{name}"):
        yield from _iter_matching_paths(rest, path, known, lists)
        return
    numbered = _NUMBERED_SCOPE.fullmatch(name)
    if numbered is not None:
        once = f"{path}.{numbered[1]}" if path else numbered[1]
        if once in known:
            yield from _iter_matching_paths(rest, once, known, lists)
            return
    for one in lists:
        if one.rpartition(".")[0] == path and one and f"{one}.{name}" in known:
            yield from _iter_matching_paths(rest, f"{one}.{name}", known, lists)
