"""Looks into TorchScript archives: graphs laid flat, and run operator by operator by torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.contract import Array, Feed, Outputs, Runner
from ..core.errors import UsageError
from ..core.target_extensions import ProbeNode, QuantizedRange, TensorForm
from ..core.torch_tools import to_array
from .probing_operators import WITH_RESULT, compute, is_changing
from .runner_base import order_inputs

if TYPE_CHECKING:
    import torch

_LOADER = """
import torch


def run(model, given, output):
    tensors = [torch.from_numpy(array.copy()) for array in given.values()]
    with torch.no_grad():
        return torch.jit.load(str(model))(*tensors).numpy()
"""
_Keep: TypeAlias = Callable[[Mapping[str, object]], None]
SCOPE = "model"  # where the flat module of a trace holds the user's
_MOVED = "aten::to"


@dataclass(frozen=True, kw_only=True)
class TorchScriptStep:
    """One operator of the flat graph; names are unique in it."""

    name: str
    kind: str
    module: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    named: Mapping[int, str]  # arguments that torch takes by name alone, by place
    node: Any = None  # of the graph, where the graph is kept


@dataclass(kw_only=True)
class FlatGraph:
    """A module's graph with all that it calls laid out in one."""

    root: Any
    steps: list[TorchScriptStep] = field(default_factory=list)
    fixed: dict[str, Any] = field(default_factory=dict)  # constants, parameters and submodules
    paths: dict[str, str] = field(default_factory=dict)  # of submodules and parameters
    kinds: dict[str, str] = field(default_factory=dict)  # classes by module path
    count: int = 0
    graphs: list[Any] = field(default_factory=list)  # kept for the nodes of the steps

    def lay(self, module: Any, method: str, given: Sequence[str], path: str) -> list[str]:
        """Lay out one method; returns what it gives.

        Raises:
            UsageError: it branches or loops.
        """
        graph = getattr(module, method).graph
        self.graphs.append(graph)
        self.kinds[path] = str(getattr(module, "original_name", ""))
        names: dict[str, str] = {}
        own, *rest = list(graph.inputs())
        self._fix(names, own.debugName(), module, path)
        names.update(zip((value.debugName() for value in rest), given, strict=True))
        for node in graph.nodes():
            self._node(node, names, path)
        return [names[value.debugName()] for value in graph.outputs()]

    def _node(self, node: Any, names: dict[str, str], path: str) -> None:
        kind = node.kind()
        reads = [names[value.debugName()] for value in node.inputs()]
        made = [value.debugName() for value in node.outputs()]
        if next(node.blocks(), None) is not None:
            raise UsageError(
                f"the TorchScript of {path or 'the model'} branches or loops ({kind})",
                hint="debug the ONNX of the same model, or a traced archive",
            )
        if kind == "prim::Constant":
            self._fix(names, made[0], node.output().toIValue(), "")
        elif kind == "prim::GetAttr":
            owner, name = self.paths[reads[0]], node.s("name")
            inner = f"{owner}.{name}" if owner else name
            self._fix(names, made[0], getattr(self.fixed[reads[0]], name), inner)
        elif kind == "prim::CallMethod":
            owner = self.fixed[reads[0]]
            found = self.lay(owner, node.s("name"), reads[1:], self.paths[reads[0]])
            names.update(zip(made, found, strict=True))
        else:
            self._step(node, names, (reads, made), path)

    def _fix(self, names: dict[str, str], value: str, thing: object, path: str) -> None:
        self.count += 1
        names[value] = path or f"constant_{self.count}"
        if names[value] in self.fixed and self.fixed[names[value]] is not thing:
            names[value] = f"{names[value]}#{self.count}"
        self.fixed[names[value]], self.paths[names[value]] = thing, path

    def _step(
        self, node: Any, names: dict[str, str], ends: tuple[list[str], list[str]], path: str
    ) -> None:
        self.count += 1
        kind = str(node.kind())
        title = f"{path}/{kind.partition('::')[2]}_{self.count}".lstrip("/")
        reads, made = ends
        outputs = tuple(
            title if len(made) == 1 else f"{title}.{index}" for index in range(len(made))
        )
        outputs = self._renamed(node, names, (reads, made), outputs)
        self.steps.append(
            TorchScriptStep(
                name=title,
                kind=kind,
                module=path,
                inputs=tuple(reads),
                outputs=outputs,
                named=_by_name(node),
                node=node,
            )
        )

    def _renamed(
        self,
        node: Any,
        names: dict[str, str],
        ends: tuple[list[str], list[str]],
        outputs: tuple[str, ...],
    ) -> tuple[str, ...]:
        """Note what the outputs are called, and of a changed argument what it is called now.

        Who reads a list that was changed reads the changed one: by the name of the result.
        """
        reads, made = ends
        if not is_changing(node):
            names.update(zip(made, outputs, strict=True))
            return outputs
        own = node.kind() in WITH_RESULT or not outputs
        changed = f"{reads[0]}.changed_{self.count}" if own else outputs[0]
        for value in [value for value, name in names.items() if name == reads[0]]:
            names[value] = changed
        names.update(zip(made, outputs, strict=True))
        return (changed, *outputs) if own else outputs


def open_probe(
    module: torch.jit.ScriptModule, inputs: Sequence[str], outputs: Sequence[str], runner: Runner
) -> TorchScriptProbe:
    """Lay the module's graph flat.

    Args:
        module: takes the inputs in their order, and gives a tensor or a tuple of them.
        inputs: their names.
        outputs: the names of what it gives.
        runner: runs the module as it is.

    Raises:
        UsageError: its code branches or loops: there is no one order of execution to look into.
    """
    flat = FlatGraph(root=module)
    ends = flat.lay(module, "forward", list(inputs), "")
    return TorchScriptProbe(flat, tuple(inputs), (tuple(outputs), tuple(ends)), runner)


class TorchScriptProbe:
    """A flat TorchScript graph; `scope` is where it holds the user's module."""

    loader = _LOADER
    scope = SCOPE

    def __init__(
        self,
        flat: FlatGraph,
        inputs: tuple[str, ...],
        ends: tuple[tuple[str, ...], tuple[str, ...]],
        runner: Runner,
    ) -> None:
        self.runs = 0
        self.inputs = inputs
        self._flat = flat
        self._runner = runner
        self._steps = {out: step for step in flat.steps for out in step.outputs}
        given = list(ends[1])
        if len(given) == 1 and len(ends[0]) >= 1:  # a tuple of all outputs
            maker = self._steps.get(given[0])
            if maker is not None and maker.kind == "prim::TupleConstruct":
                given = list(maker.inputs)
        self.ends: Mapping[str, str] = dict(zip(ends[0], given, strict=False))
        self.outputs = tuple(given)
        self.nodes = tuple(self._describe_nodes())

    def _describe_nodes(self) -> Iterator[ProbeNode]:
        fixed = self._flat.fixed
        for step in self._flat.steps:
            yield ProbeNode(
                name=step.name,
                operator=step.kind,
                inputs=tuple(name for name in step.inputs if name not in fixed),
                outputs=step.outputs,
                constants=tuple(name for name in step.inputs if hasattr(fixed.get(name), "dtype")),
                module=self._in_users(step.module),
                kind=self._flat.kinds.get(step.module, ""),
                owner=self._owner(step),
                attributes={
                    str(place): str(fixed[name])
                    for place, name in enumerate(step.inputs)
                    if name in fixed and isinstance(fixed[name], (int, float, str, bool))
                },
                half=step.kind == _MOVED and _to_half([fixed.get(name) for name in step.inputs]),
            )

    def forms(self, feed: Feed) -> Mapping[str, TensorForm]:
        """Of every tensor, by a run that keeps nothing else."""
        import torch

        found: dict[str, TensorForm] = {}

        def keep(made: Mapping[str, object]) -> None:
            for name, value in made.items():
                if isinstance(value, torch.Tensor):
                    dtype = str(value.dtype).removeprefix("torch.")
                    found[name] = TensorForm(shape=tuple(value.shape), dtype=dtype)

        self._evaluate(self._bind_feed(feed), self.outputs, keep)
        return found

    def tap(self, feed: Feed, tensors: Collection[str]) -> Outputs:
        """The archive itself, and beside it the tensors inside."""
        names = tuple(tensors)
        found = self._arrays(self._evaluate(self._bind_feed(feed), names), names)
        self.runs += 1
        outputs = self._runner.run(feed)
        own = {self.ends[name]: array for name, array in outputs.items() if name in self.ends}
        return {**found, **own}

    def part(self, given: Feed, wanted: Collection[str]) -> Outputs:
        """The operators between."""
        names = tuple(wanted)
        return self._arrays(self._evaluate(self._bind_feed(given), names), names)

    def constant(self, name: str) -> Array:
        """A parameter, a buffer or a constant of the code."""
        return to_array(self._flat.fixed[name])

    def reach(self, node: ProbeNode) -> QuantizedRange | None:  # noqa: ARG002 - of the contract
        """No TorchScript of ours has quantizers."""
        return None

    def extract(self, given: Feed, wanted: Sequence[str], folder: Path) -> str:
        """Write `model.pt`: a trace of the part."""
        import torch

        names = [name for name in given if name not in wanted]

        def part(*tensors: Any) -> Any:
            values = dict(zip(names, tensors, strict=True))
            return self._evaluate(values, tuple(wanted))[wanted[0]]

        tensors = tuple(torch.tensor(given[name]) for name in names)
        with torch.no_grad():
            trace: Callable[..., Any] = torch.jit.trace  # typed nowhere
            traced = trace(part, tensors, check_trace=False)
        torch.jit.save(traced, str(folder / "model.pt"))
        return "model.pt"

    def _bind_feed(self, feed: Feed) -> dict[str, Any]:
        import torch

        return {name: torch.tensor(array) for name, array in feed.items()}

    def _arrays(self, found: Mapping[str, Any], names: Sequence[str]) -> Outputs:
        return {name: to_array(found[name]) for name in names}

    def _evaluate(
        self, given: Mapping[str, Any], wanted: Sequence[str], keep: _Keep = lambda _: None
    ) -> dict[str, Any]:
        """What is wanted, computed from what is given; the rest is dropped once it was read."""
        import torch

        self.runs += 1
        steps = self._between(given, wanted)
        last = {name: place for place, step in enumerate(steps) for name in step.inputs}
        values: dict[str, Any] = dict(given)
        found: dict[str, Any] = {name: given[name] for name in wanted if name in given}
        with torch.no_grad():
            for place, step in enumerate(steps):
                made = dict(zip(step.outputs, self._results(step, values), strict=True))
                found.update(
                    (name, _keep_copy(value)) for name, value in made.items() if name in wanted
                )
                values.update((name, v) for name, v in made.items() if name not in given)
                keep(made)
                for name in [name for name in step.inputs if last[name] == place]:
                    values.pop(name, None)
        return found

    def _between(self, given: Mapping[str, Any], wanted: Sequence[str]) -> list[TorchScriptStep]:
        needed: set[str] = set()
        waiting = list(wanted)
        while waiting:
            name = waiting.pop()
            step = self._steps.get(name)
            if step is None and name not in given and name not in self._flat.fixed:
                order_inputs(given, [name])  # says which input is missing
            if step is None or step.name in needed:
                continue
            needed.add(step.name)
            waiting += [one for one in step.inputs if one not in given]
        return [step for step in self._flat.steps if step.name in needed]

    def _results(self, step: TorchScriptStep, values: Mapping[str, Any]) -> Sequence[Any]:
        fixed = self._flat.fixed
        return compute(step, [values[n] if n in values else fixed[n] for n in step.inputs])

    def _owner(self, step: TorchScriptStep) -> str:
        """The module of the first weight among an operator's inputs."""
        paths = [self._flat.paths.get(name, "") for name in step.inputs]
        return self._in_users(next((p.rpartition(".")[0] for p in paths if "." in p), ""))

    def _in_users(self, module: str) -> str:
        """The path of a module in the user's own."""
        if not self.scope:
            return module
        return "" if module == self.scope else module.removeprefix(f"{self.scope}.")


def _keep_copy(value: Any) -> Any:
    """What later operators do not write into: `aten::add_` and `aten::relu_` do."""
    return value.clone() if hasattr(value, "clone") else value


def _by_name(node: Any) -> dict[int, str]:
    import torch

    if node.schema() == "(no schema)":
        return {}
    arguments = torch._C.parse_schema(node.schema()).arguments
    return {place: one.name for place, one in enumerate(arguments) if one.kwarg_only}


def _to_half(constants: Sequence[object]) -> bool:
    return any(value in (5, 15) for value in constants if type(value) is int)  # torch's own codes
