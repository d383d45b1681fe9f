"""Complex numbers beside real ones in a program, as torch's dynamo exporter can write them.

The exporter writes a complex tensor as a real one with a last axis of two, and takes every operand
of a complex operator for such a one: a real operand is broadcast against that axis. So each real
operand is made complex in the program before it is given to the exporter.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_BINARY = ("add", "sub", "mul", "div")
_OPERANDS = 2  # what follows them is alpha, or how to round


def make_complex(program: torch.export.ExportedProgram) -> None:
    """Give each arithmetic operator with a complex operand complex ones only, in place."""
    import torch

    targets: set[Any] = {getattr(operator, name) for name in ("add", "sub", "mul", "truediv")}
    for name in _BINARY:
        packet = getattr(torch.ops.aten, name)
        targets |= {packet.Tensor, packet.Scalar}
    for node in list(program.graph.nodes):
        if node.op == "call_function" and node.target in targets and _is_complex(node):
            both = [_made_complex(one, node) for one in node.args[:_OPERANDS]]
            node.args = (*both, *node.args[_OPERANDS:])
    program.graph_module.recompile()


def _is_complex(node: torch.fx.Node) -> bool:
    import torch

    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def _made_complex(given: Any, user: torch.fx.Node) -> Any:
    """A number or a tensor as a complex one; what is complex, or no float, as it is."""
    import torch

    if isinstance(given, float | int):
        return complex(given)
    value = given.meta.get("val") if isinstance(given, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return given
    graph = user.graph
    with graph.inserting_before(user):
        none = graph.call_function(torch.ops.aten.zeros_like.default, (given,))
        made = graph.call_function(torch.ops.aten.complex.default, (given, none))
    with value.fake_mode if hasattr(value, "fake_mode") else torch.no_grad():
        none.meta = {**user.meta, "val": torch.zeros_like(value)}
        made.meta = {**user.meta, "val": torch.complex(value, none.meta["val"])}
    return made
