"""MatMulNBits, ONNX Runtime's product with integer weights in blocks and float activations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Array
from ..core.kinds import Precision
from ..core.weights import IntegerMatrix, IntegerWeights
from .onnx_files import read_values
from .onnx_guard import read_graph
from .onnx_topology import all_graphs, all_nodes

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

BLOCK_PRODUCT = "MatMulNBits"
BITS: Mapping[Precision, int] = {Precision.INT4: 4, Precision.INT8_WEIGHTS: 8}
_BYTE, _NIBBLE = 8, 4  # bits
_PARTS = slice(1, 4)  # inputs: the integers, their scales and, if any, their zero points


@dataclass(frozen=True, kw_only=True)
class BlockWeights:
    """The weights of a product with `columns` outputs, as MatMulNBits stores them.

    `packed` has the shape (columns, blocks, bytes of a block): the rows of a column in blocks of
    `size`, padded, two 4-bit integers in a byte, the lower half first. `scales` has the shape
    (columns, blocks), `zeros` (columns, bytes) with as many integers; None is the middle.
    """

    packed: Array
    scales: Array
    zeros: Array | None
    bits: int
    size: int
    rows: int

    def dequantize(self) -> NDArray[np.float32]:
        """Return the weights that the product computes with: (columns, rows)."""
        import numpy as np

        columns, blocks = self.scales.shape
        values = _unpack(self.packed.reshape(columns, -1), self.bits).reshape(columns, blocks, -1)
        zeros = np.full((columns, blocks), 1 << (self.bits - 1), np.int16)
        if self.zeros is not None:
            zeros = _unpack(self.zeros.reshape(columns, -1), self.bits)[:, :blocks]
        scaled = (values - zeros[:, :, None]) * self.scales.astype(np.float32)[:, :, None]
        found: NDArray[np.float32] = scaled.reshape(columns, -1)[:, : self.rows]
        return found

    def read_columns(self, first: int, last: int) -> IntegerWeights:
        """Return the weights of some columns, each a row of the result."""
        part = slice(first, last)
        zeros = None if self.zeros is None else self.zeros[part]
        return replace(
            self, packed=self.packed[part], scales=self.scales[part], zeros=zeros
        ).read_weights()

    def read_weights(self) -> IntegerWeights:
        """Return the weights with the radius and the number of each one's block."""
        import numpy as np

        steps = np.abs(self.scales.astype(np.float32)) * (1.0 if self.zeros is None else 0.5)
        numbers = np.arange(self.scales.size, dtype=np.int32).reshape(self.scales.shape)
        radius, blocks = (one.repeat(self.size, axis=1)[:, : self.rows] for one in (steps, numbers))
        return IntegerWeights(values=self.dequantize(), radius=radius, blocks=blocks)


def _unpack(array: Array, bits: int) -> NDArray[np.int16]:
    import numpy as np

    if bits == _BYTE:
        return array.astype(np.int16)
    halves = np.stack([array & 0x0F, array >> _NIBBLE], axis=-1)
    return halves.reshape(array.shape[0], -1).astype(np.int16)


def block_numbers(node: onnx.NodeProto) -> dict[str, int]:
    """Return the integer attributes of a MatMulNBits: `bits`, `K` (rows), `N` (columns), ..."""
    return {"bits": _NIBBLE, **{one.name: one.i for one in node.attribute}}


def precision_of_blocks(node: onnx.NodeProto) -> Precision | None:
    """Return the precision of the weights of a MatMulNBits; None if it is not one of modelc's."""
    bits = block_numbers(node)["bits"]
    return next((one for one, width in BITS.items() if width == bits), None)


def count_block_elements(model: onnx.ModelProto) -> dict[str, tuple[str, int]]:
    """Return the dtype and the number of elements that each tensor of packed weights stores."""
    found = {}
    for node in all_nodes(model.graph):
        if node.op_type == BLOCK_PRODUCT:
            numbers = block_numbers(node)
            found[node.input[1]] = f"uint{numbers['bits']}", numbers["K"] * numbers["N"]
    return found


def read_integer_weights(path: Path) -> Iterator[IntegerMatrix]:
    """Yield the constant weights of each MatMulNBits in a file."""
    model = read_graph(path)
    constants = {
        tensor.name: tensor for graph in all_graphs(model.graph) for tensor in graph.initializer
    }
    for node in all_nodes(model.graph):
        names = [name for name in node.input[_PARTS] if name]
        if node.op_type != BLOCK_PRODUCT or not all(name in constants for name in names):
            continue
        numbers = block_numbers(node)
        packed, scales, *zeros = (read_values(constants[name], path) for name in names)
        columns = numbers["N"]
        if numbers["bits"] in BITS.values() and all(zero.dtype.kind == "u" for zero in zeros):
            blocks = BlockWeights(
                packed=packed.reshape(columns, -1), scales=scales.reshape(columns, -1),
                zeros=zeros[0].reshape(columns, -1) if zeros else None,
                bits=numbers["bits"], size=numbers["block_size"], rows=numbers["K"],
            )  # fmt: skip
            yield IntegerMatrix(shape=(columns, blocks.rows), read_rows=blocks.read_columns)
