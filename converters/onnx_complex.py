# ruff: noqa: TID253 - a dispatch mode is a class of torch; the file is imported where it is used
"""Split the complex tensors of a program into pairs of real ones, as ONNX lacks complex operators.

torch's exporter translates some thirty complex operators; `torch.einsum`, `where`, `pad` and slice
assignment are missing. torch has decompositions into real and imaginary parts for most operators
(`ComplexTensor`); the rules below are for the others. Each node that reads or returns a complex
tensor runs under them, and the real operators that ran replace it. Only Fourier transforms keep
whole tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._subclasses.complex_tensor import ComplexTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..capture.refusals import RefusedError, last_user_place

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
    program = program.run_decompositions({})  # functional: no operator writes into its inputs
    checks = torch.ops.aten._assert_tensor_metadata.default  # of `.to(device)`
    for node in program.graph.find_nodes(op="call_function", target=checks):
        program.graph.erase_node(node)
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
    values = _pytree.tree_leaves(node.meta.get("val"))
    return any(isinstance(one, torch.Tensor) and one.is_complex() for one in values)


def _can_split(node: torch.fx.Node) -> bool:
    """Return whether a node is an operator or one of its outputs, and no branch or loop.

    ONNX has an STFT operator, for which the exporter returns a whole tensor.
    """
    if node.op != "call_function" or node.target is operator.getitem:
        return node.op == "call_function"
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.name != "aten::stft"


def _join_input_parts(node: torch.fx.Node, made: NodeParts) -> None:
    """Join the parts of complex tensors for nodes that cannot be split, such as the output."""

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
    inputs = [leaf for part in parts.values() for leaf in _leaves(part)]
    try:
        found = _insert_real_ops(node, run, inputs)
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
    fake_mode = detect_fake_mode([one.meta.get("val") for one in node.graph.nodes])
    with fake_mode or nullcontext(), enable_python_dispatcher():  # keeps sizes dynamic
        body = make_fx(run, _allow_non_fake_inputs=True)(*(one.meta["val"] for one in inputs))
    body.graph.eliminate_dead_code()
    return _copy_nodes(body, node, inputs)


def _leaves(part: Any) -> list[Any]:
    return [part.real, part.imaginary] if isinstance(part, _ComplexParts) else [part]


class _NodeFunction:
    """A node as a function of the parts of its inputs; it returns all parts in one list."""

    def __init__(self, *, node: torch.fx.Node, parts: Mapping[Any, Any]) -> None:
        self._node, self._parts = node, parts
        self._spec: Any = None
        self._pairs: list[bool] = []

    def __call__(self, *values: Any) -> list[Any]:
        given, target = iter(values), self._node.target
        known = {
            one: ComplexTensor(next(given), next(given))
            if isinstance(part, _ComplexParts)
            else _split_parts(next(given))
            for one, part in self._parts.items()
        }
        args, kwargs = torch.fx.map_arg((self._node.args, self._node.kwargs), known.__getitem__)
        with _ComplexRules():  # type: ignore[no-untyped-call]  # torch's own
            found = target(*args, **kwargs)  # type: ignore[operator]  # an operator of torch
        leaves, self._spec = _pytree.tree_flatten(found)
        self._pairs = [isinstance(one, ComplexTensor) for one in leaves]
        both = ([one.re, one.im] if isinstance(one, ComplexTensor) else [one] for one in leaves)
        return [part for parts in both for part in parts]

    def close(self, nodes: Iterator[Any]) -> Any:
        """Pair up the nodes that replace the outputs of the node."""
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


ComplexRule = Callable[..., Any]
_aten = torch.ops.aten
_REAL = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
_WHOLE = (_aten._fft_c2c, _aten._fft_c2r)  # for which ONNX has DFT
_ARITHMETIC = (_aten.add, _aten.mul, _aten.rsub, _aten.sub)
# torch's decompositions of these accept complex tensors only
_MIXED = (
    _aten.bmm, _aten.cat, _aten.copy, _aten.dot, _aten.index_put, _aten.mm, _aten.select_scatter,
    _aten.slice_scatter, _aten.stack, _aten.where,
)  # fmt: skip
_MAX_FACTORS = 8  # powers up to here become products, as eager computes 2 and 3


class _ComplexRules(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Return `ComplexTensor` from operators with complex results while the mode is active."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator by our rule, by torch's rule, or unchanged."""
        packet, named = func.overloadpacket, dict(kwargs or {})
        pairs = [one for one in _pytree.tree_leaves((args, named)) if _is_pair(one)]
        if packet in _WHOLE:
            args = _pytree.tree_map(_join_parts, args)
        elif packet in _MIXED and pairs:
            args = _pytree.tree_map(_add_imaginary_part, args)
        elif packet in _ARITHMETIC and (pairs or any(isinstance(one, complex) for one in args)):
            like = next(one for one in args if isinstance(one, Tensor))
            operands = [_operand(one, like) for one in args[:2]]
            func, args = packet, (*operands, *args[2:])
        ours = pairs or packet in _MAKERS or named.get("dtype") in _REAL
        rule: ComplexRule | None = _COMPLEX_RULES.get(packet) if ours else None
        found = func(*args, **named) if rule is None else rule(func, *args, **named)
        return _pytree.tree_map(_split_parts, found)


def _split_parts(value: Any) -> Any:
    """Split a whole complex tensor into two parts; return anything else unchanged."""
    if not isinstance(value, Tensor) or _is_pair(value) or not value.is_complex():
        return value
    return _pair_last_dim(torch.view_as_real(value))


def _pair_last_dim(parts: Tensor) -> ComplexTensor:
    return ComplexTensor(parts.select(-1, 0), parts.select(-1, 1))


def _is_pair(value: Any) -> bool:
    return isinstance(value, ComplexTensor)


def _join_parts(value: Any) -> Any:
    return value.as_interleaved() if _is_pair(value) else value


def _add_imaginary_part(value: Any) -> Any:
    """Add an imaginary part of 0 to real numbers; return flags and indices unchanged."""
    if isinstance(value, Tensor) and not _is_pair(value) and value.is_floating_point():
        return ComplexTensor(value, torch.zeros_like(value))
    return value


def _operand(value: Any, like: Tensor) -> Any:
    """Return an arithmetic operand, which may be a number or integers, in two parts."""
    if _is_pair(value):
        return value
    kind = _REAL.get(like.dtype, like.dtype)
    kind = kind if kind.is_floating_point else torch.get_default_dtype()
    if isinstance(value, Tensor):
        return _add_imaginary_part(value if value.is_floating_point() else value.to(kind))
    number = complex(value)
    return ComplexTensor(
        torch.full((), number.real, dtype=kind), torch.full((), number.imag, dtype=kind)
    )


def _apply_by_parts(func: Any, values: Any, *args: Any, **named: Any) -> Any:
    return ComplexTensor(func(values.re, *args, **named), func(values.im, *args, **named))


def _zeros(func: Any, *args: Any, dtype: Any = None, **named: Any) -> Any:
    """Create zeros or ones, or cast real tensors to complex."""
    if dtype not in _REAL or any(map(_is_pair, args)):
        return func(*args, dtype=dtype, **named)
    real = func(*args, dtype=_REAL[dtype], **named)
    return ComplexTensor(real, torch.zeros_like(real))


def _full(func: Any, size: Any, value: Any, *, dtype: Any = None, **named: Any) -> Any:
    if dtype not in _REAL and not isinstance(value, complex):
        return func(size, value, dtype=dtype, **named)
    number, kind = complex(value), _REAL.get(dtype, torch.get_default_dtype())
    parts = (func(size, part, dtype=kind, **named) for part in (number.real, number.imag))
    return ComplexTensor(*parts)


def _pow(func: Any, values: Any, exponent: Any) -> Any:
    """Write small powers as products: torch's rule takes the logarithm, which is undefined at 0."""
    if not isinstance(exponent, int | float):
        return func(values, exponent)
    if exponent == 0:
        return ComplexTensor(torch.ones_like(values.re), torch.zeros_like(values.im))
    if exponent == 0.5:  # noqa: PLR2004 - as eager writes it
        return values.sqrt()
    if exponent not in range(1, _MAX_FACTORS + 1):
        return func(values, exponent)
    found = values
    for _ in range(int(exponent) - 1):
        found = found * values
    return found


def _refuse_operator(func: Any, *_: Any, **__: Any) -> Any:
    """Reject what gives other results on two parts than on whole numbers."""
    raise NotImplementedError(f"{func} of complex numbers")


def _view(func: Any, values: Any, shape: Any) -> Any:
    """Change the shape; a view as another dtype would see other bytes in two parts."""
    return _refuse_operator(func) if isinstance(shape, torch.dtype) else func(values, shape)


_MAKERS = (_aten.complex, _aten.polar, _aten.view_as_complex, _aten.full)
_COMPLEX_RULES: Mapping[Any, ComplexRule] = {
    _aten._to_copy: _zeros,
    _aten.asin: _refuse_operator,
    _aten.complex: lambda _, *parts: ComplexTensor(*_aten.broadcast_tensors(parts)),
    _aten.full: _full,
    _aten.new_ones: _zeros,
    _aten.new_zeros: _zeros,
    _aten.ones: _zeros,
    _aten.polar: lambda _, length, angle: ComplexTensor(length * angle.cos(), length * angle.sin()),
    _aten.pow: _pow,
    _aten.roll: _apply_by_parts,
    _aten.tril: _apply_by_parts,
    _aten.triu: _apply_by_parts,
    _aten.unfold: _apply_by_parts,
    _aten.view: _view,
    _aten.view_as_complex: lambda _, parts: _pair_last_dim(parts),
    _aten.zeros: _zeros,
    _aten.zeros_like: _zeros,
}
