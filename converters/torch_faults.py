"""Access to the graphs of TorchScript modules and exported programs for planting faults."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.contract import RECORD, Array
from .planted_faults import (
    FACTOR,
    SMALL_NUMBER,
    EditableAttribute,
    EditableConstant,
    SizeFault,
    SwappableInputs,
)

if TYPE_CHECKING:
    import torch  # noqa: TC004 - imported where it is used

# operators whose first two tensors (for `where` the last two) do not commute
_ORDERED = {
    "aten::sub": (0, 1), "aten::div": (0, 1), "aten::pow": (0, 1), "aten::lt": (0, 1),
    "aten::gt": (0, 1), "aten::le": (0, 1), "aten::ge": (0, 1), "aten::where": (1, 2),
    "aten::atan2": (0, 1),
}  # fmt: skip
_ENDLESS = 1 << 31  # iterations of a loop: a `while` has the maximum of int64


class _CallNumbers(ABC):
    """Floats among the arguments of calls, which have no names."""

    @abstractmethod
    def _numbers(self, *, small: bool) -> Iterator[EditableAttribute]:
        """Yield the first float of each call; `small` selects those that may be an epsilon."""

    def attributes(self) -> list[EditableAttribute]:
        """Return the first float of each call that has one."""
        return list(self._numbers(small=False))

    def epsilons(self) -> list[EditableAttribute]:
        """Return the small floats of normalizations and additions."""
        return list(self._numbers(small=True))


@dataclass(frozen=True, kw_only=True)
class ScriptGraph(_CallNumbers):
    """A loaded TorchScript module, with the names of its inputs; it has not run yet."""

    module: torch.jit.ScriptModule
    record: Mapping[str, Any]
    inputs: Sequence[str]

    def has_open_loop(self) -> bool:
        """Return whether the script has a `while`."""
        graph = self.module.inlined_graph  # made anew at each call; its nodes end with it
        loops = [node for node in _block_nodes(graph) if node.kind() == "prim::Loop"]
        counts = [next(loop.inputs()) for loop in loops]
        constant = [one for one in counts if one.node().kind() == "prim::Constant"]
        return any((one.toIValue() or 0) >= _ENDLESS for one in constant)

    def constants(self, *, scalar: bool) -> list[EditableConstant]:
        """Return parameters and buffers; scalars are attributes of nodes."""
        return [] if scalar else _state_constants(self.module.state_dict())

    def _nodes(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield nodes of forward and of the modules that it calls, with labels and graphs."""
        for path, part in self.module.named_modules():
            if hasattr(part, "graph"):  # a module without calls has no forward
                graph = part.graph
                for node in _block_nodes(graph):
                    yield f"{path}: {node.kind()}" if path else str(node.kind()), graph, node

    def swappable_inputs(self) -> list[SwappableInputs]:
        """Return pairs of tensors."""
        found = []
        for label, _, node in self._nodes():
            inputs, places = list(node.inputs()), _ORDERED.get(node.kind())
            if places is None or len(inputs) <= places[1]:
                continue
            pair = [inputs[place] for place in places]
            if pair[0] != pair[1] and all(str(one.type()) == "Tensor" for one in pair):
                swap = partial(_swap_values, node, places, pair)
                found.append(SwappableInputs(node=label, places=places, swap=swap))
        return found

    def _numbers(self, *, small: bool) -> Iterator[EditableAttribute]:
        for label, graph, node in self._nodes():
            inputs = [
                float(one.toIValue())
                if one.node().kind() == "prim::Constant" and str(one.type()) == "float"
                else None
                for one in node.inputs()
            ]
            for place, number in _first_number(node.kind(), inputs, small=small):
                write = partial(_write_number, graph, node, place)
                yield EditableAttribute(node=label, name="", value=number, write=write)

    def float_outputs(self) -> list[tuple[Any, int, Any]]:
        """Return the first returned tensor, alone or in a tuple: its reader, position and value."""
        end = self.module.graph.return_node()
        for at, value in enumerate(list(end.inputs())):
            if str(value.type()) == "Tensor":
                return [(end, at, value)]
            if value.node().kind() == "prim::TupleConstruct":
                for inner, one in enumerate(list(value.node().inputs())):
                    if str(one.type()) == "Tensor":
                        return [(value.node(), inner, one)]
        return []

    def multiply_output(self, output: tuple[Any, int, Any], fault: SizeFault) -> str | None:
        """Multiply an output at one size of an input."""
        import torch

        graph: Any = self.module.graph
        given = list(graph.inputs())[1:]
        place = self.inputs.index(fault.input) if fault.input in self.inputs else len(given)
        if place >= len(given):
            return None
        reader, at, value = output
        graph.setInsertPoint(reader)

        def step(kind: str, values: list[Any], type_: Any) -> Any:
            node = graph.create(kind, values)
            node.output().setType(type_)
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
        reader.replaceInput(at, step("aten::mul", [value, times], value.type()))
        return ""

    def save(self, copy: Path) -> None:
        """Write the archive."""
        import torch

        torch.jit.save(self.module, str(copy), _extra_files={RECORD: dumps(self.record)})


@dataclass(frozen=True, kw_only=True)
class ProgramGraph(_CallNumbers):
    """An exported program; no fault acts at single sizes, which would require a guard."""

    program: torch.export.ExportedProgram
    record: Mapping[str, Any]

    def has_open_loop(self) -> bool:
        """Return whether the program has a `while`."""
        modules = self.program.graph_module.modules()
        graphs = [one.graph for one in modules if hasattr(one, "graph")]
        return any("while_loop" in str(node.target) for graph in graphs for node in graph.nodes)

    def constants(self, *, scalar: bool) -> list[EditableConstant]:
        """Return parameters and buffers; scalars are attributes of nodes."""
        return [] if scalar else _state_constants(self.program.state_dict)

    def _calls(self) -> Iterator[tuple[str, Any]]:
        """Yield calls with their operators, such as `aten::sub` for `aten.sub.Tensor`."""
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                yield str(getattr(node.target, "name", str)()).partition(".")[0], node

    def swappable_inputs(self) -> list[SwappableInputs]:
        """Return pairs of float tensors of one shape, so that the rest of the graph fits."""
        found = []
        for operator, node in self._calls():
            places = _ORDERED.get(operator)
            if places is None or len(node.args) <= places[1]:
                continue
            pair = [node.args[place] for place in places]
            values = [getattr(one, "meta", {}).get("val") for one in pair]
            shapes = [getattr(value, "shape", None) for value in values]
            floats = [bool(getattr(value, "is_floating_point", bool)()) for value in values]
            if pair[0] is not pair[1] and all(floats) and shapes[0] == shapes[1]:
                swap = partial(_swap_args, node, places, pair)
                found.append(SwappableInputs(node=str(node.name), places=places, swap=swap))
        return found

    def _numbers(self, *, small: bool) -> Iterator[EditableAttribute]:
        for operator, node in self._calls():
            for place, number in _first_number(operator, node.args, small=small):
                write = partial(node.update_arg, place)
                yield EditableAttribute(node=str(node.name), name="", value=number, write=write)

    def float_outputs(self) -> Sequence[Any]:
        """Return none."""
        return ()

    def multiply_output(self, output: Any, fault: SizeFault) -> None:
        """Multiply no output."""

    def save(self, copy: Path) -> None:
        """Write the archive."""
        import torch

        torch.export.save(self.program, str(copy), extra_files={RECORD: dumps(self.record)})


def _block_nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _block_nodes(inner)


def _state_constants(state: Mapping[str, torch.Tensor]) -> list[EditableConstant]:
    """Return the float tensors of a state with several elements; they are written in place."""
    import torch

    def write(tensor: torch.Tensor, array: Array) -> None:
        tensor.copy_(torch.from_numpy(array))

    tensors = {name: one.detach() for name, one in state.items()}
    return [
        EditableConstant(
            name=name, read=partial(torch.Tensor.numpy, one.cpu()), write=partial(write, one)
        )
        for name, one in tensors.items()
        if one.is_floating_point() and one.numel() > 1
    ]


def _first_number(
    operator: str, inputs: Iterable[object], *, small: bool
) -> Iterator[tuple[int, float]]:
    """Yield the first float that is an epsilon (`small`) or another number, with its position.

    Epsilons belong to normalizations or additions. Other numbers of normalizations, and those of
    dropouts, matter in training only.
    """
    normalises = "norm" in operator
    other = operator.startswith("aten::") and not normalises and "dropout" not in operator
    if (normalises or operator == "aten::add") if small else other:
        for place, number in enumerate(inputs):
            if isinstance(number, float) and number and (abs(number) <= SMALL_NUMBER) == small:
                yield place, number
                return


def _swap_values(node: Any, places: tuple[int, int], pair: Sequence[Any]) -> None:
    node.replaceInput(places[0], pair[1])
    node.replaceInput(places[1], pair[0])


def _swap_args(node: Any, places: tuple[int, int], pair: Sequence[Any]) -> None:
    node.update_arg(places[0], pair[1])
    node.update_arg(places[1], pair[0])


def _write_number(graph: Any, node: Any, place: int, number: float) -> None:
    graph.setInsertPoint(node)
    node.replaceInput(place, graph.insertConstant(number))
