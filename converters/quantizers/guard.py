"""What must hold of every Q/DQ model, whoever made it: it is quantized, and its scales can work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from ...core.errors import ConversionError, Hint, Option
from .wiring import DEQUANTIZE, PRODUCTS, QUANTIZE, GraphWiring, tensor_values

if TYPE_CHECKING:
    import onnx


class NothingQuantizedError(ConversionError):
    """The model has nothing that computes in 8 bits, or nothing that may."""

    lasting = True

    def __init__(
        self, told: str = "it quantized no convolution and no matrix product of the model"
    ) -> None:
        super().__init__(told, hint="build it without --int8, or keep less in floating point")


@dataclass(frozen=True, kw_only=True)
class LostTensor:
    """A tensor whose useful values all fall within one step of its scale; and who reads it."""

    tensor: str
    step: float
    useful: float
    readers: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.tensor} (step {self.step:.3g}, values of about {self.useful:.3g})"


def check_quantized(model: onnx.ModelProto, useful: Mapping[str, float]) -> int:
    """How many products compute in 8 bits.

    Args:
        model: with its small constants in memory.
        useful: the size of a tensor's useful values, by name (`activations.Activations`).

    Raises:
        NothingQuantizedError: none does.
        ConversionError: a scale is not finite, not positive, or so large that the useful values
            vanish.
    """
    wiring = GraphWiring(model.graph)
    for node in model.graph.node:
        if node.op_type in {QUANTIZE, DEQUANTIZE}:
            _check_scale(node, wiring)
    for lost in find_lost_tensors(model, useful):
        readers = ", ".join(lost.readers)
        raise ConversionError(
            f"quantizing {lost} for {readers} would lose it",
            hint=Hint("keep it in floating point: ", Option("keep-fp", f"{lost.readers[0]}")),
            option="keep-fp",
        )
    count = sum(_is_quantized(node, wiring) for node in model.graph.node)
    if count == 0:
        raise NothingQuantizedError
    return count


def find_lost_tensors(model: onnx.ModelProto, useful: Mapping[str, float]) -> Iterator[LostTensor]:
    """Each activation that its scale would wipe out: a mask's fill sets the range, not the data."""
    wiring = GraphWiring(model.graph)
    for node in model.graph.node:
        scale = wiring.constants.get(node.input[1]) if node.op_type == QUANTIZE else None
        size = useful.get(node.input[0], 0.0)
        if scale is None or size == 0.0:
            continue
        step = float(tensor_values(scale).max())
        if is_lost(step, size):
            yield LostTensor(
                tensor=node.input[0],
                step=step,
                useful=size,
                readers=_quantizer_readers(node, wiring),
            )


def is_lost(step: float, useful: float) -> bool:
    """Whether values of the size `useful` are lost at this step: most become 0 or one step."""
    return not isfinite(step) or step > useful


def _quantizer_readers(node: onnx.NodeProto, wiring: GraphWiring) -> tuple[str, ...]:
    """Who reads what a quantizer gives, through its dequantizer."""
    taken = [reader.output[0] for reader in wiring.readers.get(node.output[0], ())]
    names = [reader.name for name in taken for reader in wiring.readers.get(name, ())]
    return tuple(dict.fromkeys(names)) or (node.name,)


def _check_scale(node: onnx.NodeProto, wiring: GraphWiring) -> None:
    import numpy as np

    constant = wiring.constants.get(node.input[1])
    if constant is None:
        return
    scale = tensor_values(constant).astype(np.float64)
    bad = scale[~(np.isfinite(scale) & (scale > 0))]
    if bad.size:
        around = [r.name for r in wiring.readers.get(node.output[0], ())]
        raise ConversionError(
            f"the scale of {node.name} is {bad.flat[0]} (read by {', '.join(around) or 'nobody'})",
            hint=Hint(
                "look at the samples with `modelc calibrate`, or keep the node: ",
                Option("keep-fp", "NODE"),
            ),
            option="keep-fp",
        )


def _is_quantized(node: onnx.NodeProto, wiring: GraphWiring) -> bool:
    """Whether a product reads both its factors from dequantizers."""
    return node.op_type in PRODUCTS and all(
        wiring.producer_if(name, DEQUANTIZE) is not None for name in node.input[:2]
    )
