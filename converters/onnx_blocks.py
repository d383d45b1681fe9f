"""MatMulNBits, ONNX Runtime's product with integer weights in blocks and float activations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Array
from ..core.errors import ConversionError, Hint, Option
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
BITS: Mapping[Precision, int] = {
    Precision.INT4: 4, Precision.INT8_WEIGHTS: 8, Precision.INT8_DYNAMIC: 8,
}  # fmt: skip
ROUNDS_ACTIVATIONS = 4  # an `accuracy_level`: to 8 bits, one scale per row and block
_BYTE, _NIBBLE = 8, 4  # bits
_MATRIX = 2  # dims
_PARTS = slice(1, 4)  # inputs: the integers, their scales and, if any, their zero points
_ORDER = 4  # the input with the block of each row, if blocks are not of neighbours


@dataclass(frozen=True, kw_only=True)
class BlockWeights:
    """The weights of a product with `columns` outputs, as MatMulNBits stores them.

    `packed` has the shape (columns, blocks, bytes of a block): the rows of a column in blocks of
    `size`, padded, two 4-bit integers in a byte, the lower half first. `scales` has the shape
    (columns, blocks), `zeros` (columns, bytes) with as many integers, or (columns, blocks) floats
    as HQQ writes them; None is the middle.
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
        if self.zeros is not None and self.zeros.dtype.kind == "f":
            zeros = self.zeros.reshape(columns, blocks)
        elif self.zeros is not None:
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
        values, zeroed = self.dequantize(), self.zeros is not None
        return IntegerWeights(values=values, radius=radius, blocks=blocks, zeroed=zeroed)


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
    numbers = block_numbers(node)
    if numbers["bits"] == _BYTE and numbers.get("accuracy_level") == ROUNDS_ACTIVATIONS:
        return Precision.INT8_DYNAMIC
    return next((one for one, width in BITS.items() if width == numbers["bits"]), None)


def check_float_weights(path: Path, reader: str) -> None:
    """Check that a model has no integer weights in blocks, which `reader` does not read.

    Raises:
        ConversionError: it has.
    """
    if BLOCK_PRODUCT in {node.op_type for node in all_nodes(read_graph(path).graph)}:
        raise ConversionError(
            f"{reader} does not read {BLOCK_PRODUCT}, in which the ONNX has its integer weights",
            hint=Hint("use ", Option("to", "onnx"), " or ", Option("to", "openvino"), " alone"),
        )


def count_block_elements(model: onnx.ModelProto) -> dict[str, tuple[str, int]]:
    """Return the dtype and the number of elements that each tensor of packed weights stores."""
    found = {}
    for node in all_nodes(model.graph):
        if node.op_type == BLOCK_PRODUCT:
            numbers = block_numbers(node)
            found[node.input[1]] = f"uint{numbers['bits']}", numbers["K"] * numbers["N"]
    return found


def read_integer_weights(path: Path) -> Iterator[IntegerMatrix]:
    """Yield the constant weights in blocks of a file: MatMulNBits, DequantizeLinear."""
    model = read_graph(path)
    constants = {
        tensor.name: tensor for graph in all_graphs(model.graph) for tensor in graph.initializer
    }
    nodes = list(all_nodes(model.graph))
    for node in nodes:
        if node.op_type == "DequantizeLinear" and all(
            one in constants for one in node.input if one
        ):
            read = [read_values(constants[one], path) for one in node.input if one]
            numbers = {"axis": 1, "block_size": 0, **{one.name: one.i for one in node.attribute}}
            if read[0].ndim == _MATRIX and read[1].ndim == _MATRIX and numbers["block_size"]:
                uses = {_is_lookup(one, node.output[0]) for one in nodes} - {None}
                matrix = _read_dequantized(read, numbers)
                yield replace(matrix, table=True in uses, factor=False in uses)
        names = [name for name in node.input[_PARTS] if name]
        known = node.op_type == BLOCK_PRODUCT and all(name in constants for name in names)
        if not known or any(node.input[_ORDER : _ORDER + 1]):
            continue
        numbers = block_numbers(node)
        packed, scales, *zeros = (read_values(constants[name], path) for name in names)
        columns = numbers["N"]
        if numbers["bits"] in BITS.values():
            blocks = BlockWeights(
                packed=packed.reshape(columns, -1), scales=scales.reshape(columns, -1),
                zeros=zeros[0].reshape(columns, -1) if zeros else None,
                bits=numbers["bits"], size=numbers["block_size"], rows=numbers["K"],
            )  # fmt: skip
            yield IntegerMatrix(shape=(columns, blocks.rows), read_rows=blocks.read_columns)


def _is_lookup(node: onnx.NodeProto, table: str) -> bool | None:
    """Whether a node looks up rows of a table; None if it does not read it."""
    if table not in node.input:
        return None
    return node.op_type == "Gather" and node.input[0] == table


def _read_dequantized(read: list[Array], numbers: Mapping[str, int]) -> IntegerMatrix:
    """Return the weights of a DequantizeLinear with blocks along an axis."""
    import numpy as np

    axis, size = numbers["axis"], numbers["block_size"]
    integers, scales, *zeros = (one.astype(np.float32) for one in read)
    own = np.arange(scales.size, dtype=np.int32).reshape(scales.shape)
    parts = [one.repeat(size, axis=axis) for one in (scales, own, *zeros)]
    scale, blocks, *zero = (one[tuple(map(slice, integers.shape))] for one in parts)
    values = (integers - zero[0] if zero else integers) * scale
    radius = np.abs(scale) * (0.5 if zero else 1.0)

    def read_rows(first: int, last: int) -> IntegerWeights:
        numbers = np.unique(blocks[first:last], return_inverse=True)[1]
        return IntegerWeights(
            values=values[first:last], radius=radius[first:last], zeroed=bool(zero),
            blocks=numbers.reshape(values[first:last].shape),
        )  # fmt: skip

    return IntegerMatrix(shape=values.shape, read_rows=read_rows)
