"""The segments that torch-tensorrt would make of a program: engines, and what stays in torch.

The plan needs neither the package nor a GPU. The graph is lowered as the package lowers it
(`torch_lowering.py`). Nodes are collected in turns: all that are ready for TensorRT, then all that
are ready for torch, and so on. What passes sizes or several results between converted nodes stays
together: such a group waits until all that it reads is there. A turn of TensorRT with fewer nodes
than a block has joins the turn of torch before it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.errors import ErrorCode, UsageError
from ...core.segments import LeftOut, LeftOutReason, Segment, SegmentOptions, SegmentPlan
from .torch_arguments import accepts_arguments, has_dynamic_sizes, needs_plugin
from .torch_complex import IN_PAIRS
from .torch_converters import (
    CHECKED,
    CONVERTED,
    DATA_DEPENDENT,
    PRIMITIVES,
    SIZE_FUNCTIONS,
    STATIC_ONLY,
    TABLE_VERSION,
)
from .torch_lowering import lower_program, operator_name

if TYPE_CHECKING:
    import torch

SOURCE = f"the converters of torch-tensorrt {TABLE_VERSION}"
_KNOWN = CONVERTED | CHECKED | PRIMITIVES
_Reasons = Mapping["torch.fx.Node", LeftOutReason | None]


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
    module = lower_program(program)
    _check_operators(chosen.torch_ops, set(map(operator_name, _calls(module))))
    reasons: dict[torch.fx.Node, LeftOutReason | None] = {}
    for node in _calls(module):
        reasons[node] = _reason_of(node, chosen.torch_ops, reasons)
    turns = _partition(module, reasons, chosen.min_block_size)
    return _describe(turns, reasons, chosen.min_block_size)


def _calls(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in module.graph.nodes if node.op == "call_function"]


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
    found = set(map(operator_name, _calls(lower_program(program))))
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


def _reason_of(
    node: torch.fx.Node, torch_ops: Iterable[str], reasons: _Reasons
) -> LeftOutReason | None:
    """Return why a node stays in torch; None if a converter takes it."""
    name = operator_name(node)
    if any(_matches(one, (name,)) for one in torch_ops):
        return LeftOutReason.REQUESTED
    if any(one.is_complex() for arg in (node, *node.all_input_nodes) for one in _tensors(arg)):
        return LeftOutReason.COMPLEX
    if name == "operator.getitem":
        return next((reasons.get(one) for one in node.all_input_nodes), None)
    if not _has_converter(node):
        return LeftOutReason.NO_CONVERTER
    if name in STATIC_ONLY and has_dynamic_sizes(node):
        return LeftOutReason.DYNAMIC_SIZES
    return None if accepts_arguments(name, node) else LeftOutReason.ARGUMENTS


def _has_converter(node: torch.fx.Node) -> bool:
    name = operator_name(node)
    packet, _, overload = name.rpartition(".")
    if packet in ("operator", "torch"):
        return overload in SIZE_FUNCTIONS
    whole = {name, packet} if overload == "default" else {name}
    return bool(whole & _KNOWN) or bool(node.meta.get(IN_PAIRS))


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    """Return the tensors of a node's result."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [one for one in tree_leaves(node.meta.get("val")) if isinstance(one, torch.Tensor)]


def _partition(module: torch.fx.GraphModule, reasons: _Reasons, least: int) -> list[_Turn]:
    """Return the turns; all is torch's where a block has more nodes than have converters."""
    from torch.fx.passes.tools_common import FxNetAccFusionsFinder

    converted = {node for node, reason in reasons.items() if reason is None}
    if len(converted) < max(least, 1):
        return [_Turn(engine=False, nodes=list(reasons))]
    inside = reasons.keys()
    needs = {node: {one for one in node.all_input_nodes if one in inside} for node in reasons}
    turns = _take_turns(needs, converted)
    if len(converted) < len(reasons):
        _join_groups(needs, FxNetAccFusionsFinder(module, set(converted))())
        joined = _take_turns(needs, converted)
        if sum(len(one.nodes) for one in joined) == len(reasons):  # no groups wait for each other
            turns = joined
    return _merge_small(turns, least)


def _join_groups(
    needs: Mapping[torch.fx.Node, set[torch.fx.Node]],
    groups: Mapping[torch.fx.Node, set[torch.fx.Node]],
) -> None:
    """Let each node of a group need what the group reads, and its readers need all of the group."""
    for node, group in groups.items():
        for one in group:
            needs[node].update(needs[one] - group)
            for user in one.users:
                if user not in group and user in needs:
                    needs[user].add(node)


def _take_turns(
    needs: Mapping[torch.fx.Node, set[torch.fx.Node]], converted: Collection[torch.fx.Node]
) -> list[_Turn]:
    """Return the turns; the first is torch's if one of its nodes is ready at once.

    Nodes that wait for each other are left out.
    """
    order = {node: place for place, node in enumerate(needs)}
    waiting = {node: len(needed) for node, needed in needs.items()}
    readers: dict[torch.fx.Node, list[torch.fx.Node]] = {node: [] for node in needs}
    ready: dict[bool, list[torch.fx.Node]] = {True: [], False: []}
    for node, needed in needs.items():
        for one in needed:
            readers[one].append(node)
        if not needed:
            ready[node in converted].append(node)
    engine = not ready[False]
    turns: list[_Turn] = []
    while ready[engine]:
        taken: list[torch.fx.Node] = []
        while ready[engine]:
            taken.append(ready[engine].pop())
            for reader in readers[taken[-1]]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    ready[reader in converted].append(reader)
        turns.append(_Turn(engine=engine, nodes=sorted(taken, key=order.__getitem__)))
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


def _describe(turns: Sequence[_Turn], reasons: _Reasons, least: int) -> SegmentPlan:
    """Return the plan with the share of each segment."""
    work = {node: _flops(node) for node in reasons}
    unit = "FLOPs" if any(work.values()) else "operators"
    if unit == "operators":
        work = dict.fromkeys(reasons, 1)
    total = sum(work.values()) or 1
    segments = tuple(
        Segment(
            engine=turn.engine,
            operators=_count(turn.nodes),
            nodes=len(turn.nodes),
            share=sum(work[node] for node in turn.nodes) / total,
        )
        for turn in turns
    )
    in_engines = [node for turn in turns if turn.engine for node in turn.nodes]
    return SegmentPlan(
        segments=segments,
        switches=max(len(segments) - 1, 0),
        share=sum(one.share for one in segments if one.engine),
        work=unit,
        min_block_size=least,
        left_out=_list_left_out(turns, reasons),
        uncertain=_count(node for node in in_engines if _is_uncertain(node)),
        source=SOURCE,
        data_dependent=_count(node for node in in_engines if operator_name(node) in DATA_DEPENDENT),
    )


def _is_uncertain(node: torch.fx.Node) -> bool:
    """Return whether it depends on the GPU host, or on several operators, if it is in an engine."""
    return needs_plugin(node) or bool(node.meta.get(IN_PAIRS))


def _count(nodes: Iterable[torch.fx.Node]) -> dict[str, int]:
    return dict(Counter(map(operator_name, nodes)))


def _list_left_out(turns: Iterable[_Turn], reasons: _Reasons) -> tuple[LeftOut, ...]:
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
    if formula is None or not tensors or node.meta.get(IN_PAIRS):
        return 0  # pairs have another shape than the complex numbers that the operator reads

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
