"""Write ONNX operators into a graph of the TorchScript exporter, as `op.Mul(x, y)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_SUFFIXES = ((bool, "i"), (int, "i"), (float, "f"), (str, "s"))


def python_value(value: Any) -> Any:
    """Return the Python value of a constant in the graph; anything else unchanged."""
    node = value.node()
    if node.kind() == "prim::Constant":
        return value.toIValue()
    if node.kind() == "prim::ListConstruct":
        return [python_value(part) for part in node.inputs()]
    if node.kind() == "onnx::Constant" and node.kindOf("value") == "t":
        held = node.t("value")
        return held.item() if held.dim() == 0 else value
    if node.kind() == "onnx::Constant" and node.kindOf("value") == "s":
        return node.s("value")
    return value


class SymbolicOpBuilder:
    """Adds the operator called by name to the graph; accepts what onnxscript's opsets accept.

    Inputs are graph values or Python numbers, which take the dtype of the inputs that they must
    agree with. `_outputs` is the number of outputs of a variadic operator.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def __getattr__(self, name: str) -> Callable[..., Any]:
        import onnx

        schema = onnx.defs.get_schema(name, max_inclusive_version=self._graph.opset)

        def write(*inputs: Any, _outputs: int | None = None, **attributes: Any) -> Any:
            values = [self._value(schema, at, inputs) for at in range(len(inputs))]
            named = {
                f"{key}_{_attribute_suffix(value)}": value for key, value in attributes.items()
            }
            count = _outputs or schema.min_output or schema.max_output
            return self._graph.op(name, *values, outputs=count, **named)

        return write

    def _value(self, schema: Any, at: int, inputs: Sequence[Any]) -> Any:
        import torch

        value = inputs[at]
        if value is None:
            from torch.onnx import symbolic_helper

            return symbolic_helper._optional_input_placeholder_tensor(self._graph)  # type: ignore[no-untyped-call]  # torch's own
        if isinstance(value, torch.Tensor):
            return self._graph.op("Constant", value_t=value)
        if isinstance(value, torch._C.Value):
            return value
        constant = self._graph.op("Constant", value_t=torch.tensor(value))
        like = self._like(schema, at, inputs)
        return constant if like is None else self._graph.op("CastLike", constant, like)

    def _like(self, schema: Any, at: int, inputs: Sequence[Any]) -> Any:
        """Return the input whose dtype this one must have."""
        import torch

        types = [_formal_input(schema, index).type_str for index in range(len(inputs))]
        for index, value in enumerate(inputs):
            if isinstance(value, torch._C.Value) and types[index] == types[at]:
                return value
        return None


def _formal_input(schema: Any, index: int) -> Any:
    """Return the schema's input; indices beyond the last belong to the last, which is variadic."""
    return schema.inputs[min(index, len(schema.inputs) - 1)]


def _attribute_suffix(value: Any) -> str:
    """Return the exporter's suffix for the type of an attribute."""
    import torch

    if isinstance(value, torch.Tensor):
        return "t"
    one = value[0] if isinstance(value, (list, tuple)) and value else value
    found = [suffix for kind, suffix in _SUFFIXES if isinstance(one, kind)]
    if not found:
        raise TypeError(f"an attribute cannot be a {type(value).__name__}")
    return found[0]
