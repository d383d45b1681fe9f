"""Replace products with constant weights by MatMulNBits: for quantizers, and for checkpoints.

A quantizer rounds the weights. A checkpoint that has its weights as integers gives these: a
constant of the exported model is replaced only if it has exactly the values of its integers.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..checkpoints.torchao_weights import find_matrices
from ..core.contract import Array
from ..core.weights import QuantizedMatrix
from .onnx_blocks import BLOCK_PRODUCT, ROUNDS_ACTIVATIONS, BlockWeights
from .onnx_files import read_values
from .onnx_guard import list_model_files
from .onnx_topology import load_model, sort_nodes
from .onnx_weight_file import OnnxWeightFile, write_weights
from .quantizers.qdq_biases import drop_unread

if TYPE_CHECKING:
    import onnx
    import torch

    Pack: TypeAlias = Callable[[Array, str], BlockWeights | None]

_MICROSOFT = "com.microsoft"
_MATRIX, _BIASED = 2, 3  # number of dims; number of inputs of a Gemm with a bias
_SIZES = (256, 128, 64, 32, 16)  # weights in a block of MatMulNBits


class BlockRewriter:
    """Replaces products of a model in place, each weight packed once.

    `pack` returns the blocks of a matrix, with the rows that are summed first, by the matrix and
    the name of its constant; None leaves the product.
    """

    def __init__(
        self, source: tuple[onnx.ModelProto, Path], weights: OnnxWeightFile, pack: Pack,
        *, dynamic: bool = False,
    ) -> None:  # fmt: skip
        """Prepare to rewrite a model, read from a file; `weights` is the result's.

        With `dynamic`, products round their activations to 8 bits at run time.
        """
        self._model, self._path = source
        self._graph, self._weights = self._model.graph, weights
        self._pack = pack
        self._settings: dict[str, Any] = {"accuracy_level": ROUNDS_ACTIVATIONS} if dynamic else {}
        self._constants = {tensor.name: tensor for tensor in self._graph.initializer}
        self._stored: dict[tuple[str, bool], tuple[list[str], BlockWeights]] = {}
        self.left: list[str] = []
        self.count = 0

    def products(self) -> Iterator[onnx.NodeProto]:
        """Yield the products of the main graph with constant weights."""
        for node in self._graph.node:
            if node.op_type in ("MatMul", "Gemm") and node.input[1] in self._constants:
                yield node

    def rewrite(self, node: onnx.NodeProto) -> None:
        """Replace a product; a Gemm becomes a product and a sum."""
        given = {one.name: one for one in node.attribute}
        turned = "transB" in given and bool(given["transB"].i)
        scaled = any(name in given and given[name].f != 1 for name in ("alpha", "beta"))
        plain = not scaled and not ("transA" in given and given["transA"].i)
        found = self._store(node.input[1], turned=turned) if plain else None
        if found is None:
            self.left.append(node.name)
            return
        self._replace(node, *found)
        self.count += 1

    def _replace(self, node: onnx.NodeProto, weights: list[str], blocks: BlockWeights) -> None:
        from onnx import helper

        biased = node.op_type == "Gemm" and len(node.input) == _BIASED and node.input[2]
        made = f"{node.output[0]}::product" if biased else node.output[0]
        product = helper.make_node(
            BLOCK_PRODUCT, [node.input[0], *weights], [made], name=node.name, domain=_MICROSOFT,
            K=blocks.rows, N=blocks.scales.shape[0], bits=blocks.bits, block_size=blocks.size,
            **self._settings,
        )  # fmt: skip
        product.metadata_props.extend(node.metadata_props)
        if biased:
            inputs, name = [made, node.input[2]], f"{node.name}::bias"
            self._graph.node.append(helper.make_node("Add", inputs, [node.output[0]], name=name))
        node.CopyFrom(product)

    def _store(self, name: str, *, turned: bool) -> tuple[list[str], BlockWeights] | None:
        """Add the blocks of a weight to the model; None if it stays in floating point."""
        key = name, turned
        if key in self._stored:
            return self._stored[key]
        tensor = self._constants[name]
        if len(tensor.dims) != _MATRIX or tensor.data_type != tensor.FLOAT:
            return None
        array = read_values(tensor, self._path)
        blocks = self._pack(array.T if turned else array, name)
        if blocks is None or blocks.zeros is None:
            return None
        stem = f"{name}::turned" if turned else name
        names = [f"{stem}::{part}" for part in ("blocks", "scales", "zeros")]
        for part, values in zip(names, (blocks.packed, blocks.scales, blocks.zeros), strict=True):
            self._graph.initializer.append(self._weights.add(values, part))
        if _MICROSOFT not in {one.domain for one in self._model.opset_import}:
            self._model.opset_import.add(domain=_MICROSOFT, version=1)
        self._stored[key] = names, blocks
        return self._stored[key]


def keep_integers(path: Path, module: torch.nn.Module, folder: Path) -> tuple[str, ...]:
    """Store the weights that the checkpoint has as integers as these; return notes.

    Args:
        path: of the exported model, which is written anew.
        module: eager, with the integers beside its weights.
        folder: for the time of the work.
    """
    known = {_digest(one.dequantize()): (name, one) for name, one in find_matrices(module)}
    if not known:
        return ()
    placed: set[str] = set()

    def pack(array: Array, _: str) -> BlockWeights | None:
        name, matrix = known.get(_digest(array.T), ("", None))
        blocks = None if matrix is None else pack_integers(matrix)
        if blocks is not None:
            placed.add(name)
        return blocks

    source, files = folder / "floats", list_model_files(path)
    source.mkdir()
    for file in files:
        shutil.move(file, source / file.name)
    model = load_model(source / path.name)
    external = len(files) > 1
    with write_weights(model, path, source / path.name, external=external) as weights:
        rewriter = BlockRewriter((model, source / path.name), weights, pack)
        for node in list(rewriter.products()):
            rewriter.rewrite(node)
        drop_unread(model)
        sort_nodes(model.graph)
    shutil.rmtree(source)
    left = [name for name, _ in known.values() if name not in placed]
    notes = [f"{len(placed)} weights keep the integers and scales of the checkpoint (MatMulNBits)"]
    if left:
        notes.append(
            f"{len(left)} weights of the checkpoint's integers are stored as floats, as no matrix "
            f"product reads them whole or their blocks do not fit: {', '.join(left[:10])}"
        )
    return tuple(notes)


def pack_integers(matrix: QuantizedMatrix) -> BlockWeights | None:
    """Return integers as MatMulNBits stores them: unsigned, in blocks of 16 to 256, a power of 2.

    Blocks that share a scale repeat it; None if blocks of that size cross those of the checkpoint.
    """
    import numpy as np

    rows, columns = matrix.integers.shape
    size = _block_size(matrix, columns)
    if size is None:
        return None
    count = -(-columns // size)
    middle = 1 << (matrix.bits - 1)
    groups = np.arange(count) * size // matrix.block
    zeros: Array = (matrix.zeros.astype(np.int16)[:, groups] + middle).astype(np.uint8)
    packed: Array = zeros.repeat(size, axis=1)  # the padding is zeros
    packed[:, :columns] = (matrix.integers.astype(np.int16) + middle).astype(np.uint8)
    if matrix.bits == 4:  # noqa: PLR2004 - two in a byte, the lower half first
        packed = packed[:, 0::2] + 16 * packed[:, 1::2]
        zeros = np.pad(zeros, ((0, 0), (0, count % 2)))
        zeros = zeros[:, 0::2] + 16 * zeros[:, 1::2]
    blocks = BlockWeights(
        packed=packed.reshape(rows, count, -1), scales=matrix.scales[:, groups].copy(),
        zeros=zeros, bits=matrix.bits, size=size, rows=columns,
    )  # fmt: skip
    if not np.array_equal(blocks.dequantize(), matrix.dequantize()):
        raise AssertionError("the packed integers are not the checkpoint's")
    return blocks


def _block_size(matrix: QuantizedMatrix, columns: int) -> int | None:
    """Return the largest size of blocks within those of the checkpoint; None without one."""
    if matrix.block == columns:  # the last is padded
        return next((s for s in _SIZES[:0:-1] if s >= columns), 128)
    sizes = (s for s in _SIZES if matrix.block % s == 0)
    return next(sizes, None)


def _digest(array: Array) -> tuple[tuple[int, ...], bytes]:
    import numpy as np

    held = np.ascontiguousarray(array, np.float32)
    return held.shape, hashlib.sha256(held.data).digest()
