"""Programs that pt2e quantized: the scales, zero points and integers of their operators.

A program of torch.export has them as arguments of `quantized_decomposed` operators, which torch
defines once their module is imported (`core.torch_file.register_operators`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..core.weights import QuantizationStep

if TYPE_CHECKING:
    import torch

    from ..core.contract import Array

_SPACE = "quantized_decomposed"
_QUANTIZE = ("quantize_per_tensor", "quantize_per_channel")
_DEQUANTIZE = ("dequantize_per_tensor", "dequantize_per_channel")
_SCALE, _ZERO = 1, 2  # positions of arguments


def rounds_in_program(module: torch.nn.Module) -> bool:
    """Return whether it holds a program that rounds activations to integers."""
    return any(name in _QUANTIZE for _, _, name in _find_nodes(module))


def list_program_steps(module: torch.nn.Module) -> Iterator[QuantizationStep]:
    """Yield the operators of a module's programs with constant scales, as float32."""
    import numpy as np

    for graph, node, name in _find_nodes(module):
        if name not in (*_QUANTIZE, *_DEQUANTIZE):
            continue
        scales, zero = _read_value(graph, node.args[_SCALE]), node.args[_ZERO]
        if scales is None:
            continue
        integers = _read_value(graph, node.args[0]) if name in _DEQUANTIZE else None
        yield QuantizationStep(
            place=str(node.name),
            scales=scales.astype(np.float32),
            zeros=np.zeros(1, np.int64) if zero is None else _read_value(graph, zero),
            integers=integers,
        )


def note_steps(module: torch.nn.Module) -> tuple[str, ...]:
    """Return a note on what a quantized program is and how it is judged; nothing for others."""
    if not rounds_in_program(module):
        return ()
    steps = list(list_program_steps(module))
    weights = sum(step.integers is not None for step in steps)
    note = (
        f"quantized by pt2e: onnx and openvino keep the scales and zero points of {len(steps)} "
        f"operators and the integers of {weights}; their outputs are judged within the limits of "
        "INT8, since an activation between two integers may become the other one"
    )
    return (note,)


def _find_nodes(module: torch.nn.Module) -> Iterator[tuple[Any, Any, str]]:
    """Yield the graph module, the node and the operator's name."""
    import torch

    for part in module.modules():
        if not isinstance(part, torch.fx.GraphModule):
            continue
        for node in part.graph.nodes:
            target = node.target
            if isinstance(target, torch._ops.OpOverload) and target.namespace == _SPACE:
                yield part, node, target._schema.name.rpartition("::")[2]


def _read_value(graph: Any, argument: Any) -> Array | None:
    """Return a number, or a tensor that the graph holds; None for what it computes."""
    import numpy as np
    import torch

    if isinstance(argument, int | float):
        return np.asarray(argument)
    if not isinstance(argument, torch.fx.Node) or argument.op != "get_attr":
        return None
    value = graph
    for name in str(argument.target).split("."):
        value = getattr(value, name)
    found: Array = value.detach().numpy()
    return found
