"""Equal elements in OpenVINO's TopK: in the order of their indices, as ONNX has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openvino


def keep_order_of_equals(model: openvino.Model) -> None:
    """Have each sorting TopK take the lower index of equal elements first, in place.

    ONNX asks for it, and a stable sort of torch becomes such a TopK; OpenVINO's reader of ONNX
    leaves it open, and its CPU takes what its blocks of work come upon. Without sorting, where
    OpenVINO knows no such order, TopK stays as it is.
    """
    for node in [node for node in _nodes(model) if node.get_type_name() == "TopK"]:
        told = node.get_attributes()
        if told.get("stable") is False and told.get("sort") != "none":
            node.set_attribute("stable", True)


def _nodes(model: openvino.Model) -> Iterator[Any]:
    """All nodes, those in the bodies of If and Loop too."""
    for node in model.get_ordered_ops():
        yield node
        for name in ("get_then_body", "get_else_body"):
            if hasattr(node, name):
                yield from _nodes(getattr(node, name)())
        if node.get_type_name() in ("Loop", "TensorIterator"):
            yield from _nodes(node.get_function())
