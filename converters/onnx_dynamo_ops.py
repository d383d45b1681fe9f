"""ONNX translations of operators that the dynamo exporter translates unportably."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .onnx_image_ops import linspace
from .onnx_shared_ops import OpWriter, all_true

_SUM, _MEAN, _MAX = 0, 1, 2  # modes as torch numbers them
_PADDING = 7  # position of `padding_idx` after the weight
_END = (1 << 63) - 1
_FLOAT, _INT64, _BOOL, _DOUBLE = 1, 7, 9, 11  # onnx.TensorProto
_ATTENTION = 23  # the first opset with an attention operator
_MATRIX, _HEADED = 2, 4  # dims of one matrix, and of a batch of matrices by head


def pad(op: Any, self: Any, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> Any:
    """Write circular padding as slices: only ONNX Runtime supports the `wrap` mode of Pad."""
    from onnxscript.function_libs.torch_lib.ops import nn

    if mode != "circular" or not all(isinstance(size, int) and size >= 0 for size in pad):
        return nn.aten_pad(self, pad, mode, value)
    for place, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        axis = len(self.shape) - 1 - place
        parts = [op.Slice(self, [-before], [_END], [axis])] if before else []
        parts += [self, *([op.Slice(self, [0], [after], [axis])] if after else [])]
        self = _join_parts(op, parts, axis, like=self)
    return self


def _join_parts(op: Any, parts: Sequence[Any], axis: int, *, like: Any) -> Any:
    """Concatenate the parts, and set the rank of the result, which the next axis requires."""
    if len(parts) == 1:
        return like
    joined = op.Concat(*parts, axis=axis)
    if joined.shape is None:
        from onnxscript import ir

        joined.shape = ir.Shape([None] * len(like.shape))
    return joined


def attention(  # noqa: PLR0913, PLR0917 - the operator's own
    op: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Translate as the exporter does, with 0 for a query whose mask hides all keys, as in torch.

    ONNX's Softmax gives NaN in such a row, or the mean over all keys, depending on the fill value.
    The exporter takes four dims alone: tensors without heads, or without a batch, get them here. Of
    three dims, the first is the batch, or the heads if groups of queries share keys.
    """
    rank = len(query.shape)
    if rank < _HEADED:
        axes = [0, 1] if rank == _MATRIX else [0 if enable_gqa else 1]
        if attn_mask is not None and len(attn_mask.shape) < _MATRIX:
            attn_mask = _unsqueeze(op, attn_mask, [0])
        elif attn_mask is not None and len(attn_mask.shape) == rank > _MATRIX:
            attn_mask = _unsqueeze(op, attn_mask, axes)
        query, key, value = (_unsqueeze(op, one, axes) for one in (query, key, value))
        others = (attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return op.Squeeze(attention(op, query, key, value, *others), axes)
    if op.version >= _ATTENTION:
        from torch.onnx._internal.exporter._torchlib.ops.nn import (
            aten_scaled_dot_product_attention_23 as written,
        )
    else:
        from onnxscript.function_libs.torch_lib.ops.nn import (
            aten_scaled_dot_product_attention as written,
        )
    given = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    found = written(*given)
    if attn_mask is None:
        return found
    is_bool = attn_mask.dtype is not None and attn_mask.dtype.value == _BOOL
    fill = op.CastLike(float("-inf"), attn_mask) if not is_bool else None
    visible = attn_mask if is_bool else op.Greater(attn_mask, fill)
    keys = op.ReduceMax(op.Cast(visible, to=_INT64), [-1], keepdims=1)
    return op.Where(op.Greater(keys, 0), found, op.CastLike(0.0, found))


def _unsqueeze(op: Any, value: Any, axes: Sequence[int]) -> Any:
    """Insert dims of size 1, and set the shape of the result, which the exporter asks for."""
    made = op.Unsqueeze(value, list(axes))
    if made.shape is None:
        from onnxscript import ir

        sizes = list(value.shape)
        for axis in axes:
            sizes.insert(axis, 1)
        made.shape = ir.Shape(sizes)
    if made.dtype is None:
        made.dtype = value.dtype
    return made


def reduce_embedding_bag(  # noqa: PLR0913, PLR0917 - the operator's own
    op: Any,
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,  # noqa: ARG001 - of a backward pass
    mode: int = _SUM,
    sparse: bool = False,  # noqa: ARG001 - of a backward pass
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Any, Any, Any, Any]:
    """Reduce the rows of a table by bag: scatter each row to its bag, without a loop over bags.

    The other results serve a backward pass, which artifacts lack.
    """
    if include_last_offset:
        offsets = op.Slice(offsets, [0], [-1], [0])
    bags = _bag_numbers(op, indices, op.Cast(offsets, to=_INT64))
    rows = op.Gather(weight, indices)
    if per_sample_weights is not None:
        rows = op.Mul(rows, op.Unsqueeze(per_sample_weights, [-1]))
    valid = _is_not_padding(op, indices, padding_idx)
    sizes = _scatter_values(
        op, op.Shape(offsets), bags, op.Cast(valid, to=_INT64), fill=0, by="add"
    )
    found = _reduce_rows(op, rows, op.Unsqueeze(valid, [-1]), (bags, sizes), mode=mode)
    bag_sizes = (
        op.Concat(sizes, op.Constant(value_ints=[0]), axis=0)
        if include_last_offset
        else op.Identity(sizes)
    )
    return found, bags, bag_sizes, op.CastLike(found, sizes) if mode == _MAX else bag_sizes


def reduce_public_embedding_bag(op: Any, weight: Any, *given: Any, **named: Any) -> object:
    """Translate the public operator, in which a negative `padding_idx` counts from the end.

    In the internal operator, a negative value means no padding.
    """
    others, last = given[:_PADDING], given[_PADDING:]
    padding = named.pop("padding_idx", last[0] if last else None)
    if padding is not None and padding < 0:
        padding += weight.shape[0]
    return reduce_embedding_bag(op, weight, *others, **{**named, "padding_idx": padding})


def _bag_numbers(op: Any, indices: Any, offsets: Any) -> Any:
    """Return the bag of each index: the number of bags that begin up to it, minus one."""
    count = op.Shape(indices)
    begins = _scatter_values(
        op, op.Add(count, 1), offsets, op.Expand(1, op.Shape(offsets)), fill=0, by="add"
    )
    return op.Sub(op.CumSum(op.Slice(begins, [0], count, [0]), 0), 1)


def _is_not_padding(op: Any, indices: Any, padding_idx: int | None) -> Any:
    """Which indices count: all but those of padding."""
    if padding_idx is None or padding_idx < 0:
        return op.Cast(op.Expand(1, op.Shape(indices)), to=_BOOL)
    return op.Not(op.Equal(op.Cast(indices, to=_INT64), padding_idx))


def _reduce_rows(op: Any, rows: Any, valid: Any, by: tuple[Any, Any], *, mode: int) -> Any:
    """Sum, average or take the maximum of the rows of each bag; 0 for an empty bag."""
    bags, sizes = by
    wide = op.Expand(op.Unsqueeze(bags, [-1]), op.Shape(rows))
    shape = op.Concat(op.Shape(sizes), op.Shape(rows, start=1), axis=0)
    nothing = float("-inf") if mode == _MAX else 0.0
    rows = op.Where(valid, rows, op.CastLike(nothing, rows))
    how = "max" if mode == _MAX else "add"
    found = _scatter_values(op, shape, wide, rows, fill=op.CastLike(nothing, rows), by=how)
    empty = op.Unsqueeze(op.Equal(sizes, 0), [-1])
    if mode == _MAX:
        return op.Where(empty, op.CastLike(0.0, rows), found)
    if mode == _MEAN:
        return op.Div(found, op.CastLike(op.Unsqueeze(op.Max(sizes, 1), [-1]), rows))
    return found


def _scatter_values(op: Any, shape: Any, places: Any, values: Any, *, fill: Any, by: str) -> Any:  # noqa: PLR0913 - ONNX's
    return op.ScatterElements(op.Expand(fill, shape), places, values, axis=0, reduction=by)


def roll(op: Any, self: Any, shifts: Any, dims: Any = ()) -> Any:
    """Roll by shifts that depend on sizes, as in `fftshift`; torch's own takes constants only."""
    from onnxscript.function_libs.torch_lib.ops import core

    shifts, dims = (list(one) if isinstance(one, list | tuple) else [one] for one in (shifts, dims))
    if not dims and not isinstance(shifts[0], int):  # all elements as one row
        from onnxscript import ir

        row = op.Reshape(self, [-1])
        row.shape = ir.Shape([None])
        return op.Reshape(roll(op, row, shifts, [0]), op.Shape(self))
    if not dims or all(isinstance(shift, int) for shift in shifts):
        return core.aten_roll(self, shifts, dims)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = dim % len(self.shape)
        size = op.Shape(self, start=axis, end=axis + 1)
        first = op.Sub(size, op.Mod(shift, size))
        parts = [op.Slice(self, first, [_END], [axis]), op.Slice(self, [0], first, [axis])]
        self = _join_parts(op, parts, axis, like=self)
    return self


def scalar_tensor(op: Any, s: Any, dtype: int = _FLOAT, *given: Any, **named: Any) -> Any:
    """Write a double with all its digits; torch's own casts it from float32."""
    from onnxscript import ir
    from onnxscript.function_libs.torch_lib.ops import core

    if isinstance(s, float) and dtype == _DOUBLE:
        return op.Constant(value=ir.tensor(s, dtype=ir.DataType.DOUBLE))
    return core.aten_scalar_tensor(s, dtype, *given, **named)


def is_any_true(op: Any, self: Any) -> Any:
    """Return whether any element is true."""
    return op.Greater(op.ReduceSum(op.Cast(self, to=_INT64), keepdims=0), 0)


DYNAMO_OPS: Mapping[str, OpWriter] = {
    "aten::embedding_bag": reduce_public_embedding_bag,
    "aten::_embedding_bag": reduce_embedding_bag,
    "aten::_embedding_bag_forward_only": reduce_embedding_bag,
    "aten::_is_all_true": all_true,
    "aten::_is_any_true": is_any_true,
    "aten::linspace": linspace,
    "aten::pad": pad,
    "aten::roll": roll,
    "aten::scalar_tensor": scalar_tensor,
    "aten::scaled_dot_product_attention": attention,
}
