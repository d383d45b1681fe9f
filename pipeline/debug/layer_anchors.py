"""Match tensors of an artifact with eager's values, by module scope, order and shape."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from ...checkpoints.activation_tape import TracedTensor
from ...core.target_extensions import Probe, ProbeNode, TensorForm


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """A tensor of the artifact and the eager module output that it corresponds to.

    `place` is the rank of the tensor's node in execution order.
    """

    tensor: str
    value: TracedTensor
    node: ProbeNode
    place: int


def find_anchors(
    probe: Probe,
    nodes: Sequence[ProbeNode],
    forms: Mapping[str, TensorForm],
    values: Sequence[TracedTensor],
    names: Sequence[str],
) -> tuple[Anchor, ...]:
    """Return one anchor per module call that has a tensor in the artifact, in execution order.

    Where several modules end in the same tensor, the innermost module gets the anchor.

    `nodes` have eager's module paths; `names` are eager's outputs in the model's order.
    """
    graph = _AnchorGraph(probe, nodes, forms)
    by_order = {value.order: value for value in values}
    found: dict[str, Anchor] = {}
    for path, calls in _calls_by_module(values).items():
        scopes = graph.scopes(path, len(calls))
        for leaves, scope in zip(calls, scopes, strict=False):
            pairs = graph.ends(scope, leaves) if path else graph.outputs(probe, names, leaves)
            for tensor, value in pairs:
                inner = value if value.same is None else by_order[value.same]
                anchor = graph.anchor(tensor, inner)
                known = found.get(tensor)
                # names outrank scopes: an output keeps its name when the last operation is missing
                if known is None or not path or _scope_depth(known) <= _scope_depth(anchor):
                    found[tensor] = anchor
    # the last tensor of each value: the ones before it are intermediate results
    anchors = sorted(found.values(), key=lambda one: one.place)
    last = {anchor.value.order: anchor for anchor in anchors}
    return tuple(anchor for anchor in anchors if last[anchor.value.order] is anchor)


def _scope_depth(anchor: Anchor) -> int:
    return anchor.value.module.count(".") + bool(anchor.value.module)


def _calls_by_module(values: Sequence[TracedTensor]) -> dict[str, list[list[TracedTensor]]]:
    """Group the outputs of each module by call."""
    found: dict[str, dict[int, list[TracedTensor]]] = defaultdict(lambda: defaultdict(list))
    for value in values:
        if not value.operation:
            found[value.module][value.call].append(value)
    return {path: list(calls.values()) for path, calls in found.items()}


class _AnchorGraph:
    """The artifact's nodes by module, and the readers of each tensor."""

    def __init__(
        self, probe: Probe, nodes: Sequence[ProbeNode], forms: Mapping[str, TensorForm]
    ) -> None:
        self._forms = forms
        self._place = {node.name: place for place, node in enumerate(nodes)}
        self._outputs = frozenset(probe.outputs)
        self._makers = {out: node for node in nodes for out in node.outputs}
        self._readers: dict[str, list[str]] = defaultdict(list)
        self._by_module: dict[str, list[ProbeNode]] = defaultdict(list)
        for node in nodes:
            for name in node.inputs:
                self._readers[name].append(node.name)
            parts = node.module.split(".") if node.module else []
            for end in range(len(parts) + 1):  # the model itself, then `a`, `a.b` for `a.b`
                self._by_module[".".join(parts[:end])].append(node)

    def scopes(self, path: str, calls: int) -> list[list[ProbeNode]]:
        """Split the nodes below a module by call; return no scopes if they do not split evenly."""
        nodes = self._by_module.get(path, [])
        if calls == 1:
            return [nodes]
        if not nodes or len(nodes) % calls:
            return []
        size = len(nodes) // calls
        parts = [nodes[i * size : (i + 1) * size] for i in range(calls)]
        kinds = {tuple(sorted(node.operator for node in part)) for part in parts}
        return parts if len(kinds) == 1 or size == 1 else []  # a quantizer may stand for a ReLU

    def ends(
        self, scope: list[ProbeNode], leaves: list[TracedTensor]
    ) -> Iterator[tuple[str, TracedTensor]]:
        """Yield the tensors at the end of a scope with the values that they correspond to."""
        inside = {node.name for node in scope}
        made = [out for node in scope for out in node.outputs]
        ends = [
            name
            for name in made
            if name in self._outputs or any(one not in inside for one in self._readers[name])
        ]
        comparable = [leaf for leaf in leaves if leaf.is_floating or leaf.discrete]
        for shape, floating in dict.fromkeys((leaf.shape, leaf.is_floating) for leaf in comparable):
            wanted = [x for x in comparable if (x.shape, x.is_floating) == (shape, floating)]
            fitting = [name for name in ends if self._fits(name, wanted[0])]
            if len(wanted) == 1 and fitting and floating:
                yield fitting[-1], wanted[0]
            elif len(wanted) == len(fitting):
                yield from zip(fitting, wanted, strict=True)

    def outputs(
        self, probe: Probe, names: Sequence[str], leaves: list[TracedTensor]
    ) -> Iterator[tuple[str, TracedTensor]]:
        """Match the artifact's outputs with the model's by name."""
        if len(names) != len(leaves):
            return
        for name, leaf in zip(names, leaves, strict=True):
            tensor = probe.ends.get(name, "")
            if tensor in self._makers and self._fits(tensor, leaf):
                yield tensor, leaf

    def _fits(self, tensor: str, leaf: TracedTensor) -> bool:
        form = self._forms.get(tensor)
        return form is not None and form.shape == leaf.shape and is_comparable(form, leaf)

    def anchor(self, tensor: str, value: TracedTensor) -> Anchor:
        node = self._makers[tensor]
        return Anchor(tensor=tensor, value=value, node=node, place=self._place[node.name])


def is_comparable(form: TensorForm, value: TracedTensor) -> bool:
    """Return whether both are floating-point, or both are integers or bools."""
    return (form.is_floating and value.is_floating) or (form.discrete and value.discrete)


_NUMBERED_SCOPE = re.compile(r"(.+)_\d+")
_MAX_SCOPE = 64  # names in a scope


def resolve_scopes(
    nodes: Sequence[ProbeNode], modules: Collection[str], called: Collection[str]
) -> tuple[ProbeNode, ...]:
    """Replace the scope of each node by the path of the eager module that it denotes.

    If a scope is missing, unknown or ambiguous, use the module that the node's weights are named
    after; without one, leave the scope unchanged.

    Args:
        nodes: the nodes of the artifact.
        modules: the paths of eager's modules.
        called: the paths of modules that eager called; containers such as `ModuleList` are not.
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
        inner = owner.partition(".")[2]  # without the attribute of a wrapper
        return next((one for one in (owner, inner) if one and one in known), scope)

    def resolved(node: ProbeNode) -> ProbeNode:
        inside = node.inside and tuple(dict.fromkeys(meant(one, "", "") for one in node.inside))
        return replace(node, module=meant(node.module, node.owner, node.kind), inside=inside)

    return tuple(resolved(node) for node in nodes)


def _iter_matching_paths(
    names: Sequence[str], path: str, known: Collection[str], lists: Collection[str]
) -> Iterator[str]:
    """Yield the paths below `path` that the names may denote; an exact match hides inexact ones."""
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
