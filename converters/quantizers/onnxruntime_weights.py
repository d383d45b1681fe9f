"""ONNX Runtime's block quantizer: matrix products become MatMulNBits, with float activations.

It needs no samples. Of the library's other methods, on a tiny Llama with random weights, HQQ and
GPTQ keep as much as rounding to nearest (15.2 and 15.3 dB), and k-quant less (14.5 dB).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.contract import Array, Quantized, QuantizeJob
from ...core.errors import ConversionError
from ...core.kinds import Precision
from ..installed_packages import package_versions
from ..onnx_blocks import BITS, BLOCK_PRODUCT, BlockWeights
from ..onnx_files import read_values
from ..onnx_topology import load_model, sort_nodes
from ..onnx_weight_file import OnnxWeightFile, write_weights
from .qdq_biases import drop_unread
from .quantization_checks import NothingQuantizedError
from .quantizer_workspace import call_quietly, create_workspace

if TYPE_CHECKING:
    import onnx

METHODS = ("rtn",)
# Weights with one scale. On a tiny Llama with random weights, INT4 keeps 15.3 dB with 32, 13.4 with
# 64 and 11.9 with 128, for 5.1, 4.6 and 4.3 bits a weight; INT8 keeps 38.6 dB with 32 (9.1 bits)
# and 36.9 with 128 (8.3 bits), far above its limit.
GROUPS = {Precision.INT4: 32, Precision.INT8_WEIGHTS: 128}
_OPSET = 13
_MICROSOFT = "com.microsoft"
_MATRIX, _BIASED = 2, 3  # number of dims; number of inputs of a Gemm with a bias
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
    with write_weights(model, path, place.model, external=place.external) as weights:
        rewriter = _BlockRewriter((model, place.model), weights, bits, size)
        for node in list(rewriter.products()):
            if node.name not in job.keep:
                rewriter.quantize(node)
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
            "activations": "float",
            "weights": f"{bits} bits in blocks of {size}, with zero points",
            "products": str(rewriter.count),
            "kept": ", ".join(job.keep),
        },
        notes=rewriter.notes(),
    )


class _BlockRewriter:
    """Replaces products of a model in place, each weight quantized once."""

    def __init__(
        self, source: tuple[onnx.ModelProto, Path], weights: OnnxWeightFile, bits: int, size: int
    ) -> None:
        """Prepare to rewrite a model, read from a file; `weights` is the result's."""
        self._model, self._path = source
        self._graph, self._weights = self._model.graph, weights
        self._bits, self._size = bits, size
        self._constants = {tensor.name: tensor for tensor in self._graph.initializer}
        self._stored: dict[tuple[str, bool], tuple[list[str], int, int]] = {}
        self._left: list[str] = []
        self.count = 0

    def products(self) -> Iterator[onnx.NodeProto]:
        """Yield the products of the main graph with constant weights."""
        for node in self._graph.node:
            if node.op_type in ("MatMul", "Gemm") and node.input[1] in self._constants:
                yield node

    def notes(self) -> tuple[str, ...]:
        """Return a note on the products that cannot be quantized, if there are any."""
        text = "kept in floating point, as their weights are small or no float32 matrix: "
        return (text + ", ".join(self._left),) if self._left else ()

    def quantize(self, node: onnx.NodeProto) -> None:
        """Replace a product; a Gemm becomes a product and a sum."""
        given = {one.name: one for one in node.attribute}
        turned = "transB" in given and bool(given["transB"].i)
        scaled = "alpha" in given and given["alpha"].f != 1
        if scaled or ("transA" in given and given["transA"].i):
            self._left.append(node.name)
            return
        found = self._store(node.input[1], turned=turned)
        if found is None:
            self._left.append(node.name)
            return
        self._replace(node, *found)
        self.count += 1

    def _replace(self, node: onnx.NodeProto, weights: list[str], rows: int, columns: int) -> None:
        from onnx import helper

        biased = node.op_type == "Gemm" and len(node.input) == _BIASED and node.input[2]
        made = f"{node.output[0]}::product" if biased else node.output[0]
        product = helper.make_node(
            BLOCK_PRODUCT, [node.input[0], *weights], [made], name=node.name, domain=_MICROSOFT,
            K=rows, N=columns, bits=self._bits, block_size=self._size,
        )  # fmt: skip
        if biased:
            inputs, name = [made, node.input[2]], f"{node.name}::bias"
            self._graph.node.append(helper.make_node("Add", inputs, [node.output[0]], name=name))
        node.CopyFrom(product)

    def _store(self, name: str, *, turned: bool) -> tuple[list[str], int, int] | None:
        """Add the blocks of a weight to the model; None if it stays in floating point."""
        key = name, turned
        if key in self._stored:
            return self._stored[key]
        tensor = self._constants[name]
        if len(tensor.dims) != _MATRIX or tensor.data_type != tensor.FLOAT:
            return None
        array = read_values(tensor, self._path)
        array = array.T if turned else array
        if array.shape[0] < self._size // 2 or not _is_finite(array):
            return None
        blocks = quantize_blocks(array, bits=self._bits, size=self._size, name=name)
        stem = f"{name}::turned" if turned else name
        names = [f"{stem}::{part}" for part in ("blocks", "scales", "zeros")]
        for part, values in zip(names, blocks, strict=True):
            self._graph.initializer.append(self._weights.add(values, part))
        if _MICROSOFT not in {one.domain for one in self._model.opset_import}:
            self._model.opset_import.add(domain=_MICROSOFT, version=1)
        self._stored[key] = names, *array.shape
        return self._stored[key]


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
