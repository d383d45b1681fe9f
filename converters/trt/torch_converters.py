"""The ATen operators that torch-tensorrt converts, and those that it does not decompose before.

The converters are those of the wheel's sources, recorded in `tests/data/torch_tensorrt`; a test
compares both. Operators of other libraries and of several GPUs are left out. The decompositions
are those that the package removes from torch's own table, measured with both at 2.13.
"""

from __future__ import annotations

TABLE_VERSION = "2.13"


def operators(names: str) -> frozenset[str]:
    """Return the names of ATen operators that a text lists."""
    return frozenset(f"aten.{name}" for name in names.split())


# Python's operators and torch's functions on sizes.
SIZE_FUNCTIONS = frozenset({
    "add", "eq", "floordiv", "getitem", "mod", "mul", "neg", "pow", "sub", "sym_min", "sym_not",
    "truediv",
})  # fmt: skip
# Converted on any arguments.
CONVERTED = operators(
    "_adaptive_avg_pool2d.default _adaptive_avg_pool3d.default _cdist_forward.default "
    "_pad_circular.default _pdist_forward.default _prelu_kernel.default _reshape_copy.default "
    "_softmax.default abs.default acos.default acosh.default adaptive_avg_pool1d.default "
    "adaptive_avg_pool2d.default adaptive_avg_pool3d.default add.Scalar add.Tensor "
    "addmm.default amax.default amin.default any.default any.dim any.dims arange.start_step "
    "argmax.default argmin.default asin.default asinh.default atan.default atan2.default "
    "atan2.out atanh.default batch_norm batch_norm.default bmm.default ceil.default "
    "clamp.Tensor clamp.default clip.Tensor clip.default constant_pad_nd.default copy.default "
    "cos.default cosh.default detach.default div.Scalar div.Scalar_mode div.Tensor "
    "div.Tensor_mode dot.default elu.default embedding.default eq.Scalar eq.Tensor "
    "erf.default exp.default expand.default expm1.default flip.default floor.default "
    "floor_divide.Scalar floor_divide.default fmod.Scalar fmod.Tensor full.default "
    "gather.default ge.Scalar ge.Tensor gelu.default grid_sampler grid_sampler.default "
    "grid_sampler_2d grid_sampler_2d.default gt.Scalar gt.Tensor hardsigmoid.default "
    "hardtanh.default index_select.default isinf.default isnan.default le.Scalar le.Tensor "
    "leaky_relu.default linear.default log.default log10.default log1p.default log2.default "
    "logical_and.default logical_not.default logical_or.default logical_xor.default lt.Scalar "
    "lt.Tensor matmul matmul.default max.default maximum.default mean.default mean.dim "
    "min.default minimum.default mm.default mul.Scalar mul.Tensor mv.default "
    "native_layer_norm.default ne.Scalar ne.Tensor neg.default nonzero.default pad.default "
    "permute.default pixel_shuffle.default pixel_unshuffle.default pow.Scalar "
    "pow.Tensor_Scalar pow.Tensor_Tensor prod.default prod.dim_int reciprocal.default "
    "reflection_pad1d.default reflection_pad2d.default reflection_pad3d.default relu.default "
    "remainder.Scalar remainder.Tensor replication_pad1d.default replication_pad2d.default "
    "replication_pad3d.default reshape.default resize_.default roll.default round.default "
    "rsqrt.default scalar_tensor.default scatter.src scatter.value select.int sigmoid.default "
    "sign.default sin.default sinh.default slice.Tensor softplus.default sqrt.default "
    "squeeze.dim squeeze.dims sub.Scalar sub.Tensor sum.default sum.dim_IntList "
    "sym_numel.default sym_size.int tan.default tanh.default tile.default trunc.default "
    "unsqueeze.default upsample_bicubic2d.vec upsample_bilinear2d.vec upsample_linear1d.vec "
    "upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec "
    "upsample_trilinear3d.vec view.default where.self"
)
# Converted if the arguments fit the converter, which is only known where the package runs.
CHECKED = operators(
    "_embedding_bag.default _native_batch_norm_legit.no_stats "
    "_native_batch_norm_legit_no_training.default _scaled_dot_product_cudnn_attention.default "
    "_scaled_dot_product_efficient_attention.default "
    "_scaled_dot_product_flash_attention.default _to_copy.default as_strided.default "
    "avg_pool1d.default avg_pool2d.default avg_pool3d.default bitwise_and.Scalar "
    "bitwise_and.Scalar_Tensor bitwise_and.Tensor bitwise_not.default bitwise_or.Scalar "
    "bitwise_or.Scalar_Tensor bitwise_or.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor "
    "bitwise_xor.Tensor cat.default clone.default convolution.default cumsum.default "
    "diagonal.default embedding_bag.default empty.memory_format index.Tensor "
    "index_put.default max.dim max_pool1d.default max_pool2d.default max_pool3d.default "
    "min.dim native_batch_norm.default native_dropout.default native_group_norm.default "
    "rand.default randn.default randperm.default scaled_dot_product_attention.default "
    "sort.default split.Tensor split.sizes split_with_sizes.default topk.default"
)
# Converters of the operators that torch's own decompositions consist of.
PRIMITIVES = frozenset({"prims.broadcast_in_dim.default", "prims.div.default", "prims.sum.default"})
# Converted only where no size is dynamic.
STATIC_ONLY = operators(
    "_cdist_forward.default as_strided.default diagonal.default empty.memory_format "
    "gather.default log1p.default native_dropout.default rand.default randn.default "
    "randperm.default resize_.default"
) | {"prims.broadcast_in_dim.default"}
# The size of the output depends on the data; the engine then allocates it.
DATA_DEPENDENT = operators("index.Tensor nonzero.default")
# Not decomposed, though torch's own table does.
NOT_DECOMPOSED = operators(
    "_chunk_cat.default _prelu_kernel.default _safe_softmax.default "
    "_scaled_dot_product_flash_attention_for_cpu.default _unsafe_index_put.default "
    "_unsafe_masked_index.default _unsafe_masked_index_put_accumulate.default "
    "_weight_norm_interface.default affine_grid_generator.default all.default all.dim "
    "all.dims baddbmm.default baddbmm.dtype bernoulli.default block_diag.default "
    "channel_shuffle.default dot.default floor_divide.Scalar floor_divide.default glu.default "
    "hann_window.default hann_window.periodic hardsigmoid.default isin.Scalar_Tensor "
    "isin.Tensor_Scalar isin.Tensor_Tensor linalg_cross.default linear.default matmul.default "
    "max_unpool2d.default max_unpool3d.default multi_margin_loss.default "
    "multilabel_margin_loss_forward.default mv.default nll_loss2d_forward.default "
    "pixel_shuffle.default pixel_unshuffle.default reflection_pad1d.default "
    "reflection_pad2d.default reflection_pad3d.default replication_pad1d.default "
    "replication_pad2d.default replication_pad3d.default resize_as.default roll.default "
    "scaled_dot_product_attention.default softplus.default split.Tensor squeeze.default "
    "squeeze.dim std_mean.correction sum.default take.default unsafe_split.Tensor "
    "unsafe_split_with_sizes.default upsample_bicubic2d.vec upsample_linear1d.default "
    "upsample_linear1d.vec upsample_nearest1d.vec upsample_nearest3d.vec "
    "upsample_trilinear3d.vec vdot.default"
)
