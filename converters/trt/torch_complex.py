"""Complex numbers in the graph that torch-tensorrt partitions: the package computes with pairs.

The package rewrites what it can with real and imaginary parts in a last dim, which TensorRT runs.
An operator that it cannot rewrite reads and returns complex numbers in torch, between casts. Only
products of complex numbers are taken apart here node by node; any other operator stands for the
several that the package makes of it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from .torch_converters import operators

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Graph, Node

IN_PAIRS = "modelc_in_pairs"  # key of a node's meta: it stands for real operators
_PARTS = (0, 1)  # places of the real and the imaginary part in the last dim
_REWRITTEN = operators(
    "_conj.default _unsafe_view.default abs.default acos.default acosh.default add.Scalar "
    "add.Tensor alias.default angle.default asin.default asinh.default atan.default atanh.default "
    "bmm.default cat.default ceil.default chunk.default clone.default cos.default cosh.default "
    "detach.default div.Scalar div.Tensor exp.default expand.default expm1.default "
    "flatten.using_ints flip.default floor.default full_like.default imag.default isinf.default "
    "isnan.default log.default log10.default log1p.default log2.default matmul.default mean.dim "
    "mm.default mul.Scalar mul.Tensor narrow.default neg.default ones_like.default "
    "permute.default polar.default pow.Tensor_Scalar pow.Tensor_Tensor prod.dim_int real.default "
    "reciprocal.default repeat.default reshape.default roll.default round.default "
    "scalar_tensor.default select.int sin.default sinh.default slice.Tensor split.Tensor "
    "split_with_sizes.default sqrt.default squeeze.default squeeze.dim squeeze.dims stack.default "
    "sub.Scalar sub.Tensor sum.dim_IntList sym_size.int t.default tan.default tanh.default "
    "transpose.int trunc.default unsqueeze.default view.default where.self "
    "zeros_like.default"
)


def compute_in_pairs(graph: Graph) -> None:
    """Rewrite complex numbers as the package does."""
    import torch

    aten = torch.ops.aten
    pairs = {node for node in graph.nodes if _is_complex(node)}
    touched = [
        node
        for node in graph.nodes
        if node.op == "call_function" and not pairs.isdisjoint((node, *node.all_input_nodes))
    ]
    for node in pairs.difference(touched):
        node.meta = {**node.meta, "val": _as_pairs(node.meta["val"])}
    for node in touched:
        name = str(node.target)
        if node.target in (aten.view_as_complex.default, aten.view_as_real.default):
            pairs.update(node.all_input_nodes)
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.mul.Tensor and pairs.issuperset(node.args):
            pairs.add(_multiply_pairs(graph, node))
        elif name in _REWRITTEN or node.target is operator.getitem:
            real = _as_pairs(node.meta.get("val"))
            node.meta = {**node.meta, "val": real, IN_PAIRS: node.target is not operator.getitem}
        else:
            _keep_complex(graph, node, pairs)


def _is_complex(node: Node) -> bool:
    return getattr(getattr(node.meta.get("val"), "dtype", None), "is_complex", False)


def _is_pair(value: Any, pairs: set[Node]) -> bool:
    """Return whether a value is a node that has real and imaginary parts in its last dim.

    A transform to complex numbers of real ones is not: the package leaves its result as it is.
    """
    if not hasattr(value, "all_input_nodes") or value not in pairs or _is_complex(value):
        return False
    tensor = value.meta.get("val")
    return tensor is not None and tensor.dim() > 0 and bool(tensor.shape[-1] == len(_PARTS))


def _as_pairs(value: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    def convert(one: Any) -> Any:
        is_tensor = isinstance(one, torch.Tensor) and one.is_complex()
        return torch.view_as_real(one) if is_tensor else one

    return tree_map(convert, value)


def _multiply_pairs(graph: Graph, node: Node) -> Node:
    """Replace a product by those of the parts: (a + bi)(c + di) = (ac - bd) + (ad + bc)i."""
    import torch

    aten, pair = torch.ops.aten, _as_pairs(node.meta["val"])
    stack = node.meta.get("nn_module_stack")

    def call(target: Any, value: Tensor, *args: Any) -> Node:
        made = graph.call_function(target, args)
        made.meta = {"val": value, "nn_module_stack": stack}
        return made

    with graph.inserting_before(node):
        a, b, c, d = (
            call(operator.getitem, one.meta["val"].select(-1, part), one, (..., part))
            if one.op == "get_attr"
            else call(aten.select.int, one.meta["val"].select(-1, part), one, -1, part)
            for one in node.all_input_nodes * (3 - len(node.all_input_nodes))
            for part in _PARTS
        )
        real = pair.select(-1, 0)
        ac, bd, ad, bc = (
            call(aten.mul.Tensor, real, *two) for two in ((a, c), (b, d), (a, d), (b, c))
        )
        halves = (call(aten.sub.Tensor, real, ac, bd), call(aten.add.Tensor, real, ad, bc))
        rows = [call(aten.unsqueeze.default, real.unsqueeze(-1), one, -1) for one in halves]
        product = call(aten.cat.default, pair, rows, -1)
    node.replace_all_uses_with(product)
    return product


def _keep_complex(graph: Graph, node: Node, pairs: set[Node]) -> None:
    """Let an operator read and return complex numbers, between casts from and to pairs."""
    import torch

    aten = torch.ops.aten
    stack = node.meta.get("nn_module_stack")
    read: list[tuple[int, Any]] = [
        (place, one) for place, one in enumerate(node.args) if _is_pair(one, pairs)
    ]
    for place, one in read:
        with graph.inserting_before(node):
            cast = graph.call_function(aten.view_as_complex.default, (one,))
        parts = one.meta["val"].unbind(-1)
        cast.meta = {"val": torch.complex(*parts), "nn_module_stack": stack}
        node.update_arg(place, cast)
    if read and node in pairs:
        with graph.inserting_after(node):
            back = graph.call_function(aten.view_as_real.default, (node,))
        back.meta = {"val": torch.view_as_real(node.meta["val"]), "nn_module_stack": stack}
        node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not back)
        pairs.add(back)
