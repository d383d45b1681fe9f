"""Which arguments torch-tensorrt's converters take, by operator.

A converter that rejects its arguments leaves the operator in torch. The conditions are those of
the wheel that `torch_converters.TABLE_VERSION` names, on a host with its compiled runtime.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import Node

_MOST_SORTED = 3840  # TensorRT's topk layer takes no more
_CASTS = ("float32", "int32", "int64", "bool", "int8", "float16", "bfloat16")
_INDEX_TYPES = ("int32", "int64", "bool")


def accepts_arguments(name: str, node: Node) -> bool:
    """Return whether a converter of the operator takes the node's arguments."""
    check = _CHECKS.get(name)
    return check is None or check(node)


def needs_plugin(node: Node) -> bool:
    """Return whether the converter needs a plugin of the package's compiled runtime."""
    return str(node.target) == "aten.index_put.default" and _argument(node, 3, False) is True


def has_dynamic_sizes(node: Node) -> bool:
    """Return whether a result, or a value that is read directly, has a size that is not fixed."""
    return any(map(_is_dynamic, (node, *_direct_nodes(node))))


def is_tensor(node: Node) -> bool:
    """Return whether a node is recorded as one tensor, by the tracer and not by a later pass."""
    return "tensor_meta" in node.meta


def _direct_nodes(node: Node) -> list[Any]:
    values = (*node.args, *node.kwargs.values())
    return [one for one in values if hasattr(one, "all_input_nodes")]


def _is_dynamic(node: Node) -> bool:
    import torch
    from torch.utils._pytree import tree_leaves

    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    for one in tree_leaves(node.meta.get("val")):
        if isinstance(one, symbols):
            return True
        if isinstance(one, torch.Tensor) and any(isinstance(s, symbols) for s in one.shape):
            return True
    return False


def _argument(node: Node, place: int, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place and node.args[place] is not None else default


def _is_first_only(node: Node) -> bool:
    """Return whether the first of several results is the only one that is read."""
    users = list(node.users)
    return [(one.target, one.args[1:2]) for one in users] == [(operator.getitem, (0,))]


def _value(node: Any) -> Any:
    return node.meta.get("val") if hasattr(node, "meta") else None


def _has_dtype(node: Any, names: Sequence[str]) -> bool:
    value = _value(node)
    return value is None or str(getattr(value, "dtype", "")).removeprefix("torch.") in names


def _is_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return True
    return hasattr(value, "meta") and is_tensor(value) and _has_dtype(value, ("bool",))


def _takes_bools(node: Node) -> bool:
    return all(map(_is_bool, node.args[:2]))


def _takes_cat(node: Node) -> bool:
    """Reject an empty vector among tensors of more dims, which torch ignores."""
    inputs: Any = node.args[0]
    if not all(is_tensor(one) for one in inputs):
        return True
    shapes = [tuple(_value(one).shape) for one in inputs]
    return len({len(one) for one in shapes}) == 1 or (0,) not in shapes


def _takes_bag(node: Node) -> bool:
    return _is_first_only(node) and _value(node.args[1]).dim() == 1


def _takes_index(node: Node) -> bool:
    places: Any = node.args[1]
    return all(one is None or _has_dtype(one, _INDEX_TYPES) for one in places)


def _takes_split(node: Node) -> bool:
    size = node.args[1]
    return not hasattr(size, "meta") or not _is_dynamic(size)  # type: ignore[arg-type]


def _takes_average(node: Node) -> bool:
    return _argument(node, 4, False) is False and _argument(node, 6) is None


def _takes_max_pool(node: Node) -> bool:
    """Reject dilation, even a given list of ones, and rounding up."""
    return bool(_argument(node, 4, 1) == 1) and _argument(node, 5, False) is False


def _takes_count(count: Any) -> bool:
    return isinstance(count, int) and count <= _MOST_SORTED


def _takes_sort(node: Node) -> bool:
    source: Any = node.args[0]
    return is_tensor(source) and _takes_count(_value(source).shape[_argument(node, 1, -1)])


def _is_copy_of_input(node: Node) -> bool:
    """Return whether a node copies an input of the program to an output."""
    source = any(getattr(one, "op", "") == "placeholder" for one in node.args)
    return source and any(one.op == "output" for one in node.users)


def _takes_clone(node: Node) -> bool:
    return not _is_copy_of_input(node) or not has_dynamic_sizes(node)


def _takes_cast(node: Node) -> bool:
    dtype = str(node.kwargs.get("dtype")).removeprefix("torch.")
    return dtype in _CASTS and _takes_clone(node)


def _takes_diagonal(node: Node) -> bool:
    return is_tensor(node.args[0]) and 0 not in _value(node).shape  # type: ignore[arg-type]


def _takes_strided(node: Node) -> bool:
    sizes: Any = node.args[1]
    return 0 not in sizes


def _has_no_type(node: Node) -> bool:
    return node.kwargs.get("dtype") is None and node.kwargs.get("layout") is None


def _has_no_place(node: Node) -> bool:
    return not any(node.kwargs.get(key) for key in ("device", "layout", "memory_format"))


def _takes_broadcast(node: Node) -> bool:
    """Accept new dims of size 1 only."""
    shape: Any = node.args[1]
    kept: Any = node.args[2]
    return all(size == 1 for axis, size in enumerate(shape) if axis not in kept)


def _takes_attention(node: Node) -> bool:
    """Accept heads of one size, with the batch, heads and sizes of query and key alike."""
    shapes = [_value(one).shape for one in node.args[:3]]
    query, key, value = shapes
    if not len(query) == len(key) == len(value) or key != value:
        return False
    ignored = {len(query) - 2}
    if node.kwargs.get("enable_gqa", False):
        ignored.add(1)
        if query[1] % key[1] != 0:
            return False
    return all(a == b for i, (a, b) in enumerate(zip(query, key, strict=True)) if i not in ignored)


def _attention_without(place: int) -> Callable[[Node], bool]:
    """Reject what the argument at a place asks for."""
    return lambda node: not _argument(node, place, False) and _takes_attention(node)


_CHECKS: dict[str, Callable[[Node], bool]] = {
    "aten._embedding_bag.default": _takes_bag,
    "aten._native_batch_norm_legit.no_stats": _is_first_only,
    "aten._native_batch_norm_legit_no_training.default": _is_first_only,
    "aten._scaled_dot_product_cudnn_attention.default": _attention_without(7),
    "aten._scaled_dot_product_efficient_attention.default": _attention_without(4),
    "aten._scaled_dot_product_flash_attention.default": _attention_without(5),
    "aten._to_copy.default": _takes_cast,
    "aten.as_strided.default": _takes_strided,
    "aten.cat.default": _takes_cat,
    "aten.clone.default": _takes_clone,
    "aten.diagonal.default": _takes_diagonal,
    "aten.embedding_bag.default": _takes_bag,
    "aten.empty.memory_format": _has_no_place,
    "aten.index.Tensor": _takes_index,
    "aten.index_put.default": _takes_index,
    "aten.max.dim": _is_first_only,
    "aten.min.dim": _is_first_only,
    "aten.native_batch_norm.default": _is_first_only,
    "aten.native_dropout.default": lambda node: _argument(node, 2) is False,
    "aten.native_group_norm.default": _is_first_only,
    "aten.rand.default": _has_no_type,
    "aten.randn.default": _has_no_type,
    "aten.randperm.default": _has_no_type,
    "aten.scaled_dot_product_attention.default": _takes_attention,
    "aten.sort.default": _takes_sort,
    "aten.topk.default": lambda node: _takes_count(node.args[1]),
    "prims.broadcast_in_dim.default": _takes_broadcast,
    **dict.fromkeys(
        ("aten.split.Tensor", "aten.split.sizes", "aten.split_with_sizes.default"), _takes_split
    ),
    **{f"aten.avg_pool{dims}d.default": _takes_average for dims in (1, 2, 3)},
    **{f"aten.max_pool{dims}d.default": _takes_max_pool for dims in (1, 2, 3)},
    **{
        f"aten.bitwise_{name}.{kind}": _takes_bools
        for name in ("and", "or", "xor")
        for kind in ("Tensor", "Scalar", "Scalar_Tensor")
    },
    "aten.bitwise_not.default": lambda node: _is_bool(node.args[0]),
}
