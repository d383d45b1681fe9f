"""The segments that torch-tensorrt would make of a program: engines, and what stays in torch.

The plan needs neither the package nor a GPU. The operators are those after the package's
decompositions, without what is constant, and with max pools that return no indices; its other
passes, which fuse or drop single operators, are left out. Nodes are collected in turns: all that
are ready for TensorRT, then all that are ready for torch, and so on. A turn of TensorRT with fewer
nodes than a block has joins the turn of torch before it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.errors import ErrorCode, UsageError
from ...core.segments import LeftOut, LeftOutReason, Segment, SegmentOptions, SegmentPlan
from .torch_converters import (
    CHECKED,
    CONVERTED,
    DATA_DEPENDENT,
    DECOMPOSED,
    NOT_DECOMPOSED,
    SIZE_FUNCTIONS,
    STATIC_ONLY,
    TABLE_VERSION,
)

if TYPE_CHECKING:
    import torch

SOURCE = f"the converters of torch-tensorrt {TABLE_VERSION}"
_KNOWN = CONVERTED | CHECKED | DECOMPOSED
_UNCERTAIN = CHECKED | DECOMPOSED
_CHECKS = ("aten._assert", "aten.sym_constrain_range")  # dropped before the partition


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """Nodes that are ready together."""

    engine: bool
    nodes: list[Any]  # of torch.fx.Node


def plan_segments(
    program: torch.export.ExportedProgram, options: SegmentOptions | None = None
) -> SegmentPlan:
    """Return the plan for a program.

    Raises:
        UsageError: the program lacks an operator of `torch_ops`.
    """
    chosen = options or SegmentOptions()
    nodes = _lower(program)
    _check_operators(chosen.torch_ops, {operator_name(node) for node in nodes})
    reasons = {node: _reason_of(node, chosen.torch_ops) for node in nodes}
    turns = _merge_small(_take_turns(nodes, reasons), chosen.min_block_size)
    return _describe(turns, reasons, chosen.min_block_size)


def _lower(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """Return the calls of the decomposed program whose results are used and not constant."""
    import torch

    table = torch.export.default_decompositions()
    for operator in list(table):
        if str(operator) in NOT_DECOMPOSED:
            del table[operator]
    lowered = program.run_decompositions(table)
    _fuse_max_pools(lowered.graph)
    calls = [node for node in lowered.graph.nodes if node.op == "call_function"]
    used: set[torch.fx.Node] = set()
    for node in reversed(calls):
        if operator_name(node).startswith(_CHECKS):
            continue
        if any(user.op == "output" or user in used for user in node.users):
            used.add(node)
    given = set(lowered.graph_signature.user_inputs)
    varying = {node for node in lowered.graph.nodes if node.name in given}
    for node in calls:
        if not varying.isdisjoint(node.all_input_nodes) or _is_random(node):
            varying.add(node)
    return [node for node in calls if node in used and node in varying]


def _fuse_max_pools(graph: torch.fx.Graph) -> None:
    """Replace max pools whose indices are not used, as the package does, by ones without them."""
    import operator

    import torch

    for node in list(graph.nodes):
        name = operator_name(node) if node.op == "call_function" else ""
        users = list(node.users)
        if not name.startswith("aten.max_pool") or "_with_indices." not in name or len(users) != 1:
            continue
        (first,) = users
        if first.target is not operator.getitem or first.args[1] != 0:
            continue
        packet = name.removeprefix("aten.").partition("_with_indices")[0]
        with graph.inserting_after(first):
            plain = graph.call_function(
                getattr(torch.ops.aten, packet).default, node.args, node.kwargs
            )
        plain.meta = {**node.meta, "val": first.meta["val"]}
        first.replace_all_uses_with(plain)
        graph.erase_node(first)
        graph.erase_node(node)


def _is_random(node: torch.fx.Node) -> bool:
    """Return whether a call draws numbers, so that its result is no constant."""
    import torch

    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def operator_name(node: torch.fx.Node) -> str:
    """Return the name of the operator that a node calls: `aten.add.Tensor`, or `operator.add`."""
    target: Any = node.target
    if not hasattr(target, "overloadpacket") and hasattr(target, "__name__"):
        owner = "torch" if target.__name__.startswith("sym_") else "operator"
        return f"{owner}.{target.__name__}"
    return str(target)


def _matches(name: str, operators: Collection[str]) -> bool:
    """Return whether a name, with or without its overload, is one of the operators."""
    return any(one == name or one.rpartition(".")[0] == name for one in operators)


def expand_operators(program: torch.export.ExportedProgram, names: Iterable[str]) -> set[str]:
    """Return the names that the package takes for `torch_executed_ops`, of all overloads.

    Args:
        program: the program, which must have each operator once it is lowered.
        names: operators, with or without an overload, as `aten.sin`.

    Raises:
        UsageError: the program lacks one of them.
    """
    chosen = tuple(names)
    if not chosen:
        return set()
    found = {operator_name(node) for node in _lower(program)}
    _check_operators(chosen, found)
    return {f"torch.ops.{one}" for one in found if any(_matches(name, (one,)) for name in chosen)}


def _check_operators(names: Iterable[str], operators: Collection[str]) -> None:
    """Raise a UsageError for a name that is none of the operators."""
    for name in names:
        if not _matches(name, operators):
            raise UsageError(
                f"--torch-ops {name}: the program has no such operator",
                hint=f"its operators are {', '.join(sorted(operators))}",
                option="torch-ops",
                code=ErrorCode.NOT_FOUND,
            )


def _reason_of(node: torch.fx.Node, torch_ops: Iterable[str]) -> LeftOutReason | None:
    """Return why a node stays in torch; None if a converter takes it."""
    name = operator_name(node)
    if any(_matches(one, (name,)) for one in torch_ops):
        return LeftOutReason.REQUESTED
    values = [*_tensors(node), *(one for arg in node.all_input_nodes for one in _tensors(arg))]
    if any(one.is_complex() for one in values):
        return LeftOutReason.COMPLEX
    packet, _, overload = name.rpartition(".")
    whole = {name, packet} if overload == "default" else {name}
    if packet not in ("operator", "torch") and not whole & _KNOWN:
        return LeftOutReason.NO_CONVERTER
    if packet in ("operator", "torch") and overload not in SIZE_FUNCTIONS:
        return LeftOutReason.NO_CONVERTER
    if name in STATIC_ONLY and any(_is_dynamic(one) for one in values):
        return LeftOutReason.DYNAMIC_SIZES
    return None


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    """Return the tensors of a node's result."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [one for one in tree_leaves(node.meta.get("val")) if isinstance(one, torch.Tensor)]


def _is_dynamic(tensor: torch.Tensor) -> bool:
    return any(not isinstance(size, int) for size in tensor.shape)


def _take_turns(
    nodes: Sequence[torch.fx.Node], reasons: Mapping[torch.fx.Node, LeftOutReason | None]
) -> list[_Turn]:
    """Return the turns; the first is torch's if one of its nodes is ready at once."""
    inside = set(nodes)
    left = {node: {one for one in node.all_input_nodes if one in inside} for node in nodes}
    engine = all(reasons[node] is None for node in nodes if not left[node])
    turns: list[_Turn] = []
    while left:
        taken: list[torch.fx.Node] = []
        done: set[torch.fx.Node] = set()
        for node in list(left):  # in order: what a node reads comes before it
            if (reasons[node] is None) is engine and left[node] <= done:
                taken.append(node)
                done.add(node)
                del left[node]
        for waiting in left.values():
            waiting.difference_update(done)
        if taken:
            turns.append(_Turn(engine=engine, nodes=taken))
        engine = not engine
    return turns


def _merge_small(turns: Iterable[_Turn], least: int) -> list[_Turn]:
    """Return the turns without engines of fewer than `least` nodes."""
    merged: list[_Turn] = []
    for turn in turns:
        engine = turn.engine and len(turn.nodes) >= least
        if merged and not engine and not merged[-1].engine:
            merged[-1].nodes.extend(turn.nodes)
        else:
            merged.append(_Turn(engine=engine, nodes=list(turn.nodes)))
    return merged


def _describe(
    turns: Sequence[_Turn], reasons: Mapping[torch.fx.Node, LeftOutReason | None], least: int
) -> SegmentPlan:
    """Return the plan with the share of each segment."""
    work = {node: _flops(node) for node in reasons}
    unit = "FLOPs" if any(work.values()) else "operators"
    if unit == "operators":
        work = dict.fromkeys(reasons, 1)
    total = sum(work.values()) or 1
    segments = tuple(
        Segment(
            engine=turn.engine,
            operators=dict(Counter(map(operator_name, turn.nodes))),
            nodes=len(turn.nodes),
            share=sum(work[node] for node in turn.nodes) / total,
        )
        for turn in turns
    )
    in_engines = [operator_name(node) for turn in turns if turn.engine for node in turn.nodes]
    return SegmentPlan(
        segments=segments,
        switches=max(len(segments) - 1, 0),
        share=sum(one.share for one in segments if one.engine),
        work=unit,
        min_block_size=least,
        left_out=_list_left_out(turns, reasons),
        uncertain=dict(Counter(name for name in in_engines if name in _UNCERTAIN)),
        source=SOURCE,
        data_dependent=dict(Counter(name for name in in_engines if name in DATA_DEPENDENT)),
    )


def _list_left_out(
    turns: Iterable[_Turn], reasons: Mapping[torch.fx.Node, LeftOutReason | None]
) -> tuple[LeftOut, ...]:
    """Return the operators in torch by name and reason, the first module of each."""
    groups: dict[tuple[str, LeftOutReason], list[torch.fx.Node]] = {}
    for turn in turns:
        for node in () if turn.engine else turn.nodes:
            reason = reasons[node] or LeftOutReason.SMALL_BLOCK
            groups.setdefault((operator_name(node), reason), []).append(node)
    return tuple(
        LeftOut(operator=name, reason=reason, count=len(found), module=_module_of(found[0]))
        for (name, reason), found in groups.items()
    )


def _module_of(node: torch.fx.Node) -> str:
    """Return the path of the innermost module that called the operator."""
    stack = node.meta.get("nn_module_stack") or {}
    return next((str(path) for path, _ in reversed(stack.values())), "")


def _flops(node: torch.fx.Node) -> int:
    """Return the FLOPs of convolutions and matrix products at the sizes of the example; 0 else."""
    from torch.utils.flop_counter import flop_registry

    name, tensors = operator_name(node), _tensors(node)
    shapes = [_sizes(one) for arg in node.all_input_nodes for one in _tensors(arg)]
    if name == "aten.linear.default":
        return 2 * math.prod(_sizes(tensors[0])) * shapes[1][-1]
    if name == "aten.matmul.default":
        return 2 * math.prod(_sizes(tensors[0])) * shapes[0][-1]
    if name.startswith("aten.scaled_dot_product_attention"):
        query, key, value = shapes[:3]
        return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None or not tensors:
        return 0

    from torch.fx.node import map_arg

    values = map_arg(node.args, lambda one: one.meta.get("val"))
    keywords = map_arg(node.kwargs, lambda one: one.meta.get("val"))
    return _hint(formula(*values, **keywords, out_val=node.meta["val"]))


def _sizes(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(map(_hint, tensor.shape))


def _hint(size: Any) -> int:
    """Return a size as the example has it; 1 for a size that depends on data."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else 1
