"""Split the complex tensors of a program into pairs of real ones, as ONNX lacks complex operators.

torch's exporter translates some thirty complex operators; `torch.einsum`, `where`, `pad` and slice
assignment are missing. torch has decompositions into real and imaginary parts for most operators
(`ComplexTensor`). Each node that reads or returns a complex tensor runs under them, and the real
operators that ran replace it. Only Fourier transforms keep whole tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..capture.refusals import RefusedError, last_user_place

if TYPE_CHECKING:
    import torch

NodeParts = dict[Any, Any]  # the outputs of each node: a node, a pair, or a list of these


@dataclass(frozen=True, kw_only=True)
class _ComplexParts:
    """The nodes of a complex tensor's real and imaginary part."""

    real: Any
    imaginary: Any


def split_complex(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return the program with its complex tensors split; the same program if it has none.

    Raises:
        RefusedError: torch has no decomposition for a complex operator.
    """
    if not any(map(_is_complex, program.graph.nodes)):
        return program
    program = program.run_decompositions(
        {}
    )  # functional from here on: no operator writes into its inputs
    made: NodeParts = {}
    for node in list(program.graph.nodes):
        if _can_split(node) and any(
            one in made or _is_complex(one) for one in (node, *node.all_input_nodes)
        ):
            _split_node(node, made)
        else:
            _join_input_parts(node, made)
    for node in reversed([one for one in made if one.op == "call_function"]):
        program.graph.erase_node(node)
    program.graph_module.recompile()
    return program


def _is_complex(node: torch.fx.Node) -> bool:
    import torch
    from torch.utils import _pytree

    values = _pytree.tree_leaves(node.meta.get("val"))
    return any(isinstance(one, torch.Tensor) and one.is_complex() for one in values)


def _can_split(node: torch.fx.Node) -> bool:
    """Return whether a node is an operator or one of its outputs, and no branch or loop.

    ONNX has an STFT operator, for which the exporter returns a whole tensor.
    """
    import torch

    if node.op != "call_function" or node.target is operator.getitem:
        return node.op == "call_function"
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.name != "aten::stft"


def _join_input_parts(node: torch.fx.Node, made: NodeParts) -> None:
    """Join the parts of complex tensors for nodes that cannot be split, such as the output."""
    import torch

    def whole(one: torch.fx.Node) -> Any:
        parts = made.get(one, one)
        if not isinstance(parts, _ComplexParts):
            return parts
        (found,) = _insert_real_ops(node, lambda *both: [torch.complex(*both)], _leaves(parts))
        return found

    node.args = torch.fx.map_arg(node.args, whole)
    node.kwargs = torch.fx.map_arg(node.kwargs, whole)


def _split_node(node: torch.fx.Node, made: NodeParts) -> None:
    """Insert the real operators of a node before it, and record its outputs."""
    inputs = list(node.all_input_nodes)
    if node.target is operator.getitem and node.args[0] in made:
        made[node] = made[node.args[0]][node.args[1]]
    else:
        parts = {one: made.get(one, one) for one in inputs}
        made[node] = _inline_node(node, parts)
    if not isinstance(made[node], _ComplexParts | list | tuple):
        node.replace_all_uses_with(made[node])


def _inline_node(node: torch.fx.Node, parts: Mapping[Any, Any]) -> Any:
    """Return the values that replace a node whose inputs are split.

    Raises:
        RefusedError: torch has no decomposition for it.
    """
    run = _NodeFunction(node=node, parts=parts)
    try:
        found = _insert_real_ops(
            node, run, [leaf for part in parts.values() for leaf in _leaves(part)]
        )
    except (NotImplementedError, RuntimeError, TypeError) as error:
        raise _no_rule_error(node) from error
    return run.close(iter(found))


def _insert_real_ops(
    node: torch.fx.Node, run: Callable[..., list[Any]], inputs: Sequence[Any]
) -> list[Any]:
    """Run the function on the captured values, and copy the executed operators before a node.

    Returns:
        the nodes of its outputs.
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch.fx.experimental.proxy_tensor import make_fx

    with _fake_mode(node.graph), enable_python_dispatcher():  # keeps sizes dynamic
        body = make_fx(run, _allow_non_fake_inputs=True)(*(one.meta["val"] for one in inputs))
    body.graph.eliminate_dead_code()
    return _copy_nodes(body, node, inputs)


def _fake_mode(graph: torch.fx.Graph) -> AbstractContextManager[Any]:
    """Return the fake mode of the program's captured values; none if none is a tensor."""
    from torch._guards import detect_fake_mode

    found = detect_fake_mode([one.meta.get("val") for one in graph.nodes])
    return nullcontext() if found is None else found


def _leaves(part: Any) -> list[Any]:
    return [part.real, part.imaginary] if isinstance(part, _ComplexParts) else [part]


class _NodeFunction:
    """A node as a function of the parts of its inputs; it returns all parts in one list."""

    def __init__(self, *, node: torch.fx.Node, parts: Mapping[Any, Any]) -> None:
        self._node, self._parts = node, parts
        self._spec: Any = None
        self._pairs: list[bool] = []

    def __call__(self, *values: Any) -> list[Any]:
        import torch
        from torch._subclasses.complex_tensor import ComplexTensor
        from torch.utils import _pytree

        from .onnx_complex_rules import ComplexRules, split_parts

        def take_values(part: Any, given: Iterator[Any]) -> Any:
            if isinstance(part, _ComplexParts):
                return ComplexTensor(next(given), next(given))
            return split_parts(next(given))

        given, target = iter(values), self._node.target
        known = {one: take_values(part, given) for one, part in self._parts.items()}
        args, kwargs = torch.fx.map_arg((self._node.args, self._node.kwargs), known.__getitem__)
        with ComplexRules():  # type: ignore[no-untyped-call]  # torch's own
            found = target(*args, **kwargs)  # type: ignore[operator]  # an operator of torch
        leaves, self._spec = _pytree.tree_flatten(found)
        self._pairs = [isinstance(one, ComplexTensor) for one in leaves]
        both = ([one.re, one.im] if isinstance(one, ComplexTensor) else [one] for one in leaves)
        return [part for parts in both for part in parts]

    def close(self, nodes: Iterator[Any]) -> Any:
        """Pair up the nodes that replace the outputs of the node."""
        from torch.utils import _pytree

        leaves = [
            _ComplexParts(real=next(nodes), imaginary=next(nodes)) if pair else next(nodes)
            for pair in self._pairs
        ]
        return _pytree.tree_unflatten(leaves, self._spec)


def _copy_nodes(
    body: torch.fx.GraphModule, node: torch.fx.Node, inputs: Sequence[Any]
) -> list[Any]:
    """Copy the operators of a graph before a node.

    Returns:
        the nodes of the graph's outputs.
    """
    import torch

    known: dict[Any, Any] = dict(zip(body.graph.find_nodes(op="placeholder"), inputs, strict=True))
    with node.graph.inserting_before(node):
        for one in body.graph.nodes:
            if one.op == "get_attr":  # a number that a decomposition turned into a tensor
                value = getattr(body, one.target)
                known[one] = node.graph.call_function(
                    torch.ops.aten.full.default, ([], value.item()), {"dtype": value.dtype}
                )
            elif one.op == "call_function" and one.target is torch.ops.aten.detach.default:
                known[one] = known[one.args[0]]
                continue
            elif one.op == "call_function":
                known[one] = node.graph.node_copy(one, known.__getitem__)
            else:
                continue
            known[one].meta = {**node.meta, "val": one.meta.get("val")}
    ends: Any = body.graph.output_node().args[0]
    found: list[Any] = torch.fx.map_arg(ends, known.__getitem__)
    return found


def _no_rule_error(node: torch.fx.Node) -> RefusedError:
    name = "::".join(str(node.target).split(".")[:2])
    place = last_user_place(str(node.meta.get("stack_trace") or ""))
    return RefusedError(
        f"complex operator {name} has no ONNX translation" + (f" (at {place})" if place else ""),
        hint="compute with the real and the imaginary part (torch.view_as_real)",
    )
