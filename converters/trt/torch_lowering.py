"""The graph that torch-tensorrt partitions: decomposed, then changed by the package's passes.

The passes here do what the package's do to the nodes: asserts and unused nodes are dropped, what
is constant is folded, sums keep dims that a broadcast restores, max pools lose indices that nobody
reads, fused RMS norms are taken apart, complex numbers become pairs, and negative bounds of slices
are counted from the end.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any

from .torch_complex import compute_in_pairs
from .torch_decompositions import decomposition_table

if TYPE_CHECKING:
    import torch
    from torch.fx import Graph, GraphModule, Node

_CHECKS = ("aten._assert_scalar.default", "aten._assert_tensor_metadata.default")
_ENDLESS = sys.maxsize  # the bound of a size without one


def operator_name(node: Node) -> str:
    """Return the name of the operator that a node calls: `aten.add.Tensor`, or `operator.add`."""
    target: Any = node.target
    if not hasattr(target, "overloadpacket") and hasattr(target, "__name__"):
        owner = "torch" if target.__name__.startswith("sym_") else "operator"
        return f"{owner}.{target.__name__}"
    return str(target)


def lower_program(program: torch.export.ExportedProgram) -> GraphModule:
    """Return the module whose graph is partitioned; the program is left as it is."""
    module: Any = program.run_decompositions(decomposition_table()).module()  # a GraphModule
    graph: Graph = module.graph
    for node in list(graph.nodes):
        if str(node.target) in _CHECKS:
            graph.erase_node(node)
    _split_rms_norms(graph)
    _drop_unused(graph)
    _fold_constants(graph)
    _fuse_sums(graph)
    _fuse_max_pools(graph)
    _drop_unused(graph)
    compute_in_pairs(graph)
    _drop_unused(graph)
    _drop_endless_bounds(graph)
    _count_from_end(graph)
    _drop_unused(graph)
    lowered: GraphModule = module
    return lowered


def _drop_unused(graph: Graph) -> None:
    """Erase what nobody reads, writes to buffers included, as the package does."""
    for node in reversed(list(graph.nodes)):
        is_unused = node.op.startswith("call_") and not node.users
        if is_unused and (node.all_input_nodes or not _is_random(node)):
            graph.erase_node(node)


def _split_rms_norms(graph: Graph) -> None:
    import torch

    aten = torch.ops.aten
    for node in list(graph.nodes):
        if node.target is not aten._fused_rms_norm.default:
            continue
        x, shape, weight, eps = node.args
        rank = node.meta["val"][0].dim()
        axes = [rank - 1 - place for place in range(len(shape))]
        with graph.inserting_before(node):
            square = graph.call_function(aten.mul.Tensor, (x, x))
            mean = graph.call_function(aten.mean.dim, (square, axes, True))
            total = graph.call_function(aten.add.Tensor, (mean, 1e-5 if eps is None else eps))
            scale = graph.call_function(aten.rsqrt.default, (total,))
            made = [graph.call_function(aten.mul.Tensor, (x, scale))]
            if weight is not None:
                made.append(graph.call_function(aten.mul.Tensor, (made[0], weight)))
        normal, factor = node.meta["val"]
        for one in (square, *made):
            one.meta = _new_meta(node, normal)
        for one in (mean, total, scale):
            one.meta = _new_meta(node, factor)
        for user in list(node.users):
            user.replace_all_uses_with(made[-1] if user.args[1] == 0 else scale)


def _new_meta(node: Node, value: Any) -> dict[str, Any]:
    """Return the meta of a new node, of the module of another; it lacks `tensor_meta`."""
    return {"val": value, "nn_module_stack": node.meta.get("nn_module_stack")}


def _fold_constants(graph: Graph) -> None:
    """Replace tensors that depend on no input, and on no random number, by attributes."""
    import torch

    constant: set[Node] = set()
    for node in graph.nodes:
        read = node.all_input_nodes
        if node.op == "get_attr" or (_is_foldable(node) and constant.issuperset(read)):
            constant.add(node)
    for node in constant:
        is_kept = node.op == "get_attr" or not isinstance(node.meta.get("val"), torch.Tensor)
        if is_kept or constant.issuperset(node.users):
            continue
        with graph.inserting_before(node):
            folded = graph.create_node("get_attr", f"folded_{node.name}")
        folded.meta = node.meta
        node.replace_all_uses_with(folded)


def _is_foldable(node: Node) -> bool:
    import torch

    if node.op != "call_function" or isinstance(node.target, torch._ops.HigherOrderOperator):
        return False
    return not _is_random(node)


def _is_random(node: Node) -> bool:
    """Return whether a call draws numbers, so that its result is no constant."""
    import torch

    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _fuse_sums(graph: Graph) -> None:
    """Replace a sum whose dims a broadcast restores with size 1 by a sum that keeps its dims."""
    import torch

    aten, prims = torch.ops.aten, torch.ops.prims
    for node in list(graph.nodes):
        users = list(node.users)
        if node.target is not prims.sum.default or len(users) != 1:
            continue
        (spread,) = users
        source, dims = node.args[:2]
        kept = [1 if axis in dims else size for axis, size in enumerate(source.meta["val"].shape)]
        if spread.target is not prims.broadcast_in_dim.default or list(spread.args[1]) != kept:
            continue
        with graph.inserting_after(spread):
            total = graph.call_function(aten.sum.dim_IntList, (source, dims, True))
        total.meta = _new_meta(node, spread.meta["val"])
        spread.replace_all_uses_with(total)


def _fuse_max_pools(graph: Graph) -> None:
    """Replace max pools whose indices are not used by ones without them."""
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


def _drop_endless_bounds(graph: Graph) -> None:
    """Replace the least of a size and the largest integer by the size."""
    import torch

    for node in list(graph.nodes):
        if node.target is torch.sym_min and _ENDLESS in node.args[:2]:
            sizes = node.all_input_nodes
            if len(sizes) == 1:
                node.replace_all_uses_with(sizes[0])


def _count_from_end(graph: Graph) -> None:
    """Replace bounds of slices that are the negative of a size by bounds from the start."""
    import torch

    aten = torch.ops.aten
    for node in list(graph.nodes):
        if node.target is not aten.slice.Tensor:
            continue
        for place, bound in list(enumerate(node.args))[2:4]:
            if getattr(bound, "target", None) not in (operator.neg, aten.neg.default):
                continue
            source, dim = node.args[:2]
            shape = source.meta["val"].shape
            with graph.inserting_before(node):
                size = graph.call_function(aten.sym_size.int, (source, dim % len(shape)))
                start = graph.call_function(operator.sub, (size, bound.args[0]))
            size.meta = _new_meta(node, shape[dim])
            start.meta = _new_meta(node, shape[dim] + bound.meta["val"])
            node.update_arg(place, start)
