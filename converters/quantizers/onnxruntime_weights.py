"""ONNX Runtime's block quantizer: matrix products become MatMulNBits, with float activations.

In INT8_DYNAMIC the product itself rounds the activations (`accuracy_level` 4).

It needs no samples. Of the library's other methods, on a tiny Llama with random weights, HQQ and
GPTQ keep as much as rounding to nearest (15.2 and 15.3 dB), and k-quant less (14.5 dB).
"""

from __future__ import annotations

from functools import partial

from ...core.contract import Array, Quantized, QuantizeJob
from ...core.errors import ConversionError
from ...core.kinds import Precision
from ..installed_packages import package_versions
from ..onnx_block_rewriter import BlockRewriter
from ..onnx_blocks import BITS, BlockWeights
from ..onnx_topology import load_model, sort_nodes
from ..onnx_weight_file import write_weights
from .qdq_biases import drop_unread
from .quantization_checks import NothingQuantizedError
from .quantizer_workspace import call_quietly, create_workspace

METHODS = ("rtn",)
# Weights with one scale. On a tiny Llama with random weights, INT4 keeps 15.3 dB with 32, 13.4 with
# 64 and 11.9 with 128, for 5.1, 4.6 and 4.3 bits a weight; INT8 keeps 38.6 dB with 32 (9.1 bits)
# and 36.9 with 128 (8.3 bits), far above its limit.
GROUPS = {Precision.INT4: 32, Precision.INT8_WEIGHTS: 128, Precision.INT8_DYNAMIC: 128}
_OPSET = 13
_LEFT = "kept in floating point, as their weights are small or no float32 matrix: "
_PORTION = 1 << 24  # weights that are quantized at once
_ROUNDED = 1.001  # times the radius of rounding: and the roundoff of float32


def quantize_weights(job: QuantizeJob) -> Quantized:
    """Quantize the weights of matrix products in blocks along the axis that is summed.

    Products whose weights are no finite float32 matrix, or have fewer rows than half a block, stay
    in floating point.

    Raises:
        ConversionError: no product can be quantized, or ONNX Runtime rounded one wrongly.
    """
    place = create_workspace(job, opset=_OPSET, link=True)
    model, bits = load_model(place.model), BITS[job.precision]
    size, path = job.group_size or GROUPS[job.precision], job.folder / "model.onnx"
    dynamic = job.precision is Precision.INT8_DYNAMIC
    with write_weights(model, path, place.model, external=place.external) as weights:
        pack = partial(_pack, bits, size)
        rewriter = BlockRewriter((model, place.model), weights, pack, dynamic=dynamic)
        for node in list(rewriter.products()):
            if node.name not in job.keep:
                rewriter.rewrite(node)
        if not rewriter.count:
            raise NothingQuantizedError(
                f"no matrix product has float32 weights with {size // 2} rows or more",
                kept=bool(job.keep),
            )
        drop_unread(model)
        sort_nodes(model.graph)
    place.clear()
    return Quantized(
        path=path,
        versions=package_versions("onnxruntime-gpu", "onnxruntime", "onnx"),
        options={
            "quantizer": "onnxruntime",
            "method": METHODS[0],
            "activations": "8 bits, at run time" if dynamic else "float",
            "weights": f"{bits} bits in blocks of {size}, with zero points",
            "products": str(rewriter.count),
            "kept": ", ".join(job.keep),
        },
        notes=(_LEFT + ", ".join(rewriter.left),) if rewriter.left else (),
    )


def _pack(bits: int, size: int, array: Array, name: str) -> BlockWeights | None:
    """Round a matrix; None if it has fewer rows than half a block, or NaN or Inf."""
    rows = array.shape[0]
    if rows < size // 2 or not _is_finite(array):
        return None
    packed, scales, zeros = quantize_blocks(array, bits=bits, size=size, name=name)
    return BlockWeights(
        packed=packed, scales=scales.reshape(array.shape[1], -1), zeros=zeros,
        bits=bits, size=size, rows=rows,
    )  # fmt: skip


def quantize_blocks(array: Array, *, bits: int, size: int, name: str) -> tuple[Array, ...]:
    """Return the integers, scales and zero points of a matrix, each weight checked.

    Columns share nothing: those of a large matrix are quantized in portions.

    Args:
        array: the matrix, with the rows that are summed first.
        bits: of an integer.
        size: of a block.
        name: of the weight, for messages.

    Raises:
        ConversionError: a weight is off by more than half a step of its block.
    """
    import numpy as np

    width = max(_PORTION // array.shape[0], 1)
    portions = [
        _quantize_portion(np.ascontiguousarray(part), bits=bits, size=size, name=name)
        for first in range(0, array.shape[1], width)
        if (part := array[:, first : first + width]).size
    ]
    return tuple(np.concatenate(parts) for parts in zip(*portions, strict=True))


def _quantize_portion(array: Array, *, bits: int, size: int, name: str) -> tuple[Array, ...]:
    import numpy as np
    from onnxruntime.quantization import matmul_nbits_quantizer as library

    settings = library.DefaultWeightOnlyQuantConfig(block_size=size, bits=bits, is_symmetric=False)
    packed, scales, zeros = call_quietly(
        "ONNX Runtime's quantizer",
        lambda: library.DefaultWeightOnlyQuantizer(settings).qbits_block_quant(array),
    )
    found = BlockWeights(
        packed=packed, scales=scales, zeros=zeros, bits=bits, size=size, rows=array.shape[0]
    )
    rounded = found.read_weights()
    off = np.abs(rounded.values - array.T) > _ROUNDED * rounded.radius
    if off.any():
        raise ConversionError(
            f"ONNX Runtime's quantizer moved {int(off.sum())} of {off.size} weights of {name} by "
            "more than half a step",
            hint="use another precision, and report this",
        )
    return packed, scales, zeros


def _is_finite(array: Array) -> bool:
    """Whether all elements are finite, by minimum and maximum, which need no memory."""
    import numpy as np

    return not array.size or bool(np.isfinite(array.min()) and np.isfinite(array.max()))
