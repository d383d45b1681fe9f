"""Plant faults in the graphs of torch's formats: TorchScript modules and exported programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from ..core.contract import Array
from ..core.target_extensions import FaultKind
from .planted_faults import (
    EPSILON_FACTOR,
    FACTOR,
    FACTOR_TEXT,
    SMALL_NUMBER,
    EditableConstant,
    FaultChange,
    SizeFault,
    alter_constant,
    alter_element,
    swap_rows,
)

if TYPE_CHECKING:
    import torch

# operators whose first two tensors (for `where` the last two) do not commute
_ORDERED = {
    "aten::sub": (0, 1), "aten::div": (0, 1), "aten::pow": (0, 1), "aten::lt": (0, 1),
    "aten::gt": (0, 1), "aten::le": (0, 1), "aten::ge": (0, 1), "aten::where": (1, 2),
    "aten::atan2": (0, 1),
}  # fmt: skip


_ENDLESS = 1 << 31  # iterations of a loop: a `while` has the maximum of int64


def has_open_loop(module: torch.jit.ScriptModule) -> bool:
    """Return whether a script has a `while`, which a fault might keep from ending."""
    graph = module.inlined_graph  # made anew at each call; its nodes end with it
    loops = [node for node in _block_nodes(graph) if node.kind() == "prim::Loop"]
    counts = [next(loop.inputs()) for loop in loops]
    constant = [one for one in counts if one.node().kind() == "prim::Constant"]
    return any((one.toIValue() or 0) >= _ENDLESS for one in constant)


def plant_in_state(
    state: Mapping[str, torch.Tensor], kind: FaultKind, random: Random
) -> FaultChange | None:
    """Alter an element of a float tensor, or swap two of its rows, in place."""
    import torch

    def write(tensor: torch.Tensor, array: Array) -> None:
        tensor.copy_(torch.from_numpy(array))

    tensors = {name: one.detach() for name, one in state.items()}
    constants = [
        EditableConstant(
            name=name, read=partial(torch.Tensor.numpy, one.cpu()), write=partial(write, one)
        )
        for name, one in tensors.items()
        if one.is_floating_point() and one.numel() > 1
    ]
    change = alter_element if kind is FaultKind.WEIGHT else swap_rows
    return alter_constant(constants, change, random)


def plant_in_script(
    module: torch.jit.ScriptModule, kind: FaultKind, random: Random
) -> FaultChange | None:
    """Change a loaded TorchScript module in place, before it runs."""
    if kind is FaultKind.WEIGHT:
        return plant_in_state(module.state_dict(), kind, random)
    places = list(_script_nodes(module, kind))
    if kind is FaultKind.SWAP and (not places or random.random() < 1 / 2):
        return plant_in_state(module.state_dict(), kind, random)
    if not places:
        return None
    path, graph, node = random.choice(places)
    change = _alter_node(graph, node, kind)
    return f"{path}: {node.kind()}" if path else str(node.kind()), change


def _script_nodes(
    module: torch.jit.ScriptModule, kind: FaultKind
) -> Iterator[tuple[str, Any, Any]]:
    """Yield nodes of forward and of the modules that it calls, with the modules' paths."""
    for path, part in module.named_modules():
        if not hasattr(part, "graph"):
            continue  # a module without calls has no forward
        graph = part.graph
        for node in _block_nodes(graph):
            if _can_alter_node(node, kind):
                yield path, graph, node


def _block_nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _block_nodes(inner)


def _can_alter_node(node: Any, kind: FaultKind) -> bool:
    inputs = list(node.inputs())
    if kind is FaultKind.SWAP:
        one, other = _ORDERED.get(node.kind(), (0, 0))
        if one == other or len(inputs) <= other or inputs[one] == inputs[other]:
            return False
        return all(str(inputs[place].type()) == "Tensor" for place in (one, other))
    found = any(_float_constant(one, kind) is not None for one in inputs)
    return found and _has_number(node.kind(), kind)


def _has_number(operator: str, kind: FaultKind) -> bool:
    """Return whether floats of an operator are what `kind` changes.

    Epsilons belong to normalizations or additions. Other numbers of normalizations, and those of
    dropouts, matter in training only.
    """
    normalises = "norm" in operator
    if kind is FaultKind.EPSILON:
        return normalises or operator == "aten::add"
    return operator.startswith("aten::") and not normalises and "dropout" not in operator


def _float_constant(value: Any, kind: FaultKind) -> float | None:
    """Return the float constant that a value is, if `kind` changes it."""
    if value.node().kind() != "prim::Constant" or str(value.type()) != "float":
        return None
    number = float(value.toIValue())
    small = 0 < abs(number) <= SMALL_NUMBER
    return number if number and small == (kind is FaultKind.EPSILON) else None


def _alter_node(graph: Any, node: Any, kind: FaultKind) -> str:
    inputs = list(node.inputs())
    if kind is FaultKind.SWAP:
        one, other = _ORDERED[node.kind()]
        node.replaceInput(one, inputs[other])
        node.replaceInput(other, inputs[one])
        return f"inputs {one} and {other} swapped"
    times = EPSILON_FACTOR if kind is FaultKind.EPSILON else FACTOR
    found = [(place, _float_constant(one, kind)) for place, one in enumerate(inputs)]
    place, number = next((place, one) for place, one in found if one is not None)
    graph.setInsertPoint(node)
    node.replaceInput(place, graph.insertConstant(number * times))
    return f"{number:.4g} -> {number * times:.4g}"


def plant_at_size(graph: Any, inputs: Sequence[str], fault: SizeFault) -> FaultChange | None:
    """Multiply the first float output of a script's graph at one size of an input."""
    import torch

    given = list(graph.inputs())[1:]
    place = inputs.index(fault.input) if fault.input in inputs else None
    found = _first_output(graph)
    if place is None or place >= len(given) or found is None:
        return None
    reader, at, output = found
    graph.setInsertPoint(reader)

    def step(kind: str, values: list[Any], attributes: Any) -> Any:
        node = graph.create(kind, values)
        node.output().setType(attributes)
        graph.insertNode(node)
        return node.output()

    constant = graph.insertConstant
    kinds: Any = torch._C
    whole, real, truth = kinds.IntType.get(), kinds.FloatType.get(), kinds.BoolType.get()
    size = step("aten::size", [given[place], constant(fault.axis)], whole)
    compare = "aten::ge" if fault.onward else "aten::eq"
    hit = step("aten::Float", [step(compare, [size, constant(fault.size)], truth)], real)
    more = step("aten::mul", [hit, constant(FACTOR - 1)], real)
    times = step("aten::add", [more, constant(1)], real)
    reader.replaceInput(at, step("aten::mul", [output, times], output.type()))
    return "output", FACTOR_TEXT


def _first_output(graph: Any) -> tuple[Any, int, Any] | None:
    """Return the first returned tensor, alone or in a tuple: its reader and position."""
    end = graph.return_node()
    for at, value in enumerate(list(end.inputs())):
        if str(value.type()) == "Tensor":
            return end, at, value
        if value.node().kind() == "prim::TupleConstruct":
            for inner, one in enumerate(list(value.node().inputs())):
                if str(one.type()) == "Tensor":
                    return value.node(), inner, one
    return None


def plant_in_program(
    program: torch.export.ExportedProgram, kind: FaultKind, random: Random
) -> FaultChange | None:
    """Change an exported program in place; None for one with a `while`, which might not end."""
    graphs = [one.graph for one in program.graph_module.modules() if hasattr(one, "graph")]
    if any("while_loop" in str(node.target) for graph in graphs for node in graph.nodes):
        return None
    if kind is FaultKind.WEIGHT:
        return plant_in_state(program.state_dict, kind, random)
    nodes = [node for node in program.graph.nodes if _can_alter_call(node, kind)]
    if kind is FaultKind.SWAP and (not nodes or random.random() < 1 / 2):
        return plant_in_state(program.state_dict, kind, random)
    if not nodes:
        return None
    node = random.choice(nodes)
    return str(node.name), _alter_call(node, kind)


def _can_alter_call(node: Any, kind: FaultKind) -> bool:
    if node.op != "call_function":
        return False
    if kind is FaultKind.SWAP:
        one, other = _ORDERED.get(_operator_name(node), (0, 0))
        pair = [node.args[place] for place in (one, other)] if other < len(node.args) else []
        return one != other and len(pair) > 1 and pair[0] is not pair[1] and _is_same_type(pair)
    return _number_args(node, kind) != []


def _is_same_type(pair: Sequence[Any]) -> bool:
    """Return whether both are float tensors of one shape, so that the rest of the graph fits."""
    values = [getattr(one, "meta", {}).get("val") for one in pair]
    shapes = [getattr(value, "shape", None) for value in values]
    floats = [bool(getattr(value, "is_floating_point", bool)()) for value in values]
    return all(floats) and shapes[0] == shapes[1]


def _operator_name(node: Any) -> str:
    """Return `aten::sub` for a call of `aten.sub.Tensor`."""
    return str(getattr(node.target, "name", str)()).partition(".")[0]


def _number_args(node: Any, kind: FaultKind) -> list[int]:
    """Return the positions of the call's float arguments that `kind` changes."""
    if not _has_number(_operator_name(node), kind):
        return []
    epsilon = kind is FaultKind.EPSILON
    return [
        place
        for place, value in enumerate(node.args)
        if isinstance(value, float) and value and (0 < abs(value) <= SMALL_NUMBER) == epsilon
    ]


def _alter_call(node: Any, kind: FaultKind) -> str:
    if kind is FaultKind.SWAP:
        one, other = _ORDERED[_operator_name(node)]
        pair = node.args[one], node.args[other]
        node.update_arg(one, pair[1])
        node.update_arg(other, pair[0])
        return f"inputs {one} and {other} swapped"
    place = _number_args(node, kind)[0]
    number = node.args[place]
    altered = number * (EPSILON_FACTOR if kind is FaultKind.EPSILON else FACTOR)
    node.update_arg(place, altered)
    return f"{number:.4g} -> {altered:.4g}"
