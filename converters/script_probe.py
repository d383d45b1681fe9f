"""Looks into scripted TorchScript: its graph is laid out as it runs on the feed.

A script branches and loops, so it has an order of execution for each feed. `forms` runs the graph
once, operator by operator, takes the branches that the feed takes, unrolls the loops, and leaves
the flat graph that the other calls look into.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.contract import Feed, Runner
from ..core.errors import Hint, Option, RunnerError, UsageError
from ..core.target_extensions import TensorForm
from .probing_operators import compute
from .torchscript_probe import FlatGraph, TorchScriptProbe

if TYPE_CHECKING:
    import torch

_MOST_STEPS = 200_000  # of an unrolled graph
_SCOPE = re.compile(r"([^.()]+)\(([^()]*)\)")
_NOWHERE = ("SELF", "UNKNOWN_INSTANCE")
_CALLS = ("prim::CallMethod", "prim::CallFunction", "prim::fork")


@dataclass(kw_only=True)
class _UnrolledGraph(FlatGraph):
    """A graph as it ran: what it computed on the way is in `live`."""

    live: dict[str, Any] = field(default_factory=dict)

    def run(
        self, module: torch.jit.ScriptModule, given: Mapping[str, Any], inputs: Mapping[str, str]
    ) -> list[str]:
        """Lay out `forward`; returns the names of what it gives.

        Args:
            module: the script.
            given: what goes in, by input.
            inputs: the input by the name of forward's parameter.

        Raises:
            UsageError: it cannot be laid out.
            RunnerError: it raised, or an operator failed.
        """
        import torch

        graph: Any = module.inlined_graph
        self.graphs.append(graph)
        own, *rest = list(graph.inputs())
        names: dict[str, str] = {}
        self._fix(names, own.debugName(), module, "")
        schema: Any = module.forward
        for value, argument in zip(rest, schema.schema.arguments[1:], strict=True):
            name = inputs.get(argument.name, "")
            if name in given:
                names[value.debugName()] = name
                self.live[name] = given[name]
            elif argument.has_default_value():
                self._fix(names, value.debugName(), argument.default_value, "")
            else:
                raise UsageError(
                    f"no input of the signature goes to {argument.name!r} of the script's forward",
                    hint="debug the ONNX of the same model",
                )
        with torch.no_grad():
            self._walk(graph, names)
        return [names[value.debugName()] for value in graph.outputs()]

    def _walk(self, block: Any, names: dict[str, str]) -> None:
        for node in block.nodes():
            kind = node.kind()
            reads = [names[value.debugName()] for value in node.inputs()]
            made = [value.debugName() for value in node.outputs()]
            if kind == "prim::Constant":
                self._fix(names, made[0], node.output().toIValue(), "")
            elif kind == "prim::GetAttr":
                owner, name = self.paths[reads[0]], node.s("name")
                inner = f"{owner}.{name}" if owner else name
                self._fix(names, made[0], getattr(self.fixed[reads[0]], name), inner)
            elif kind == "prim::If":
                then, otherwise = node.blocks()
                taken = then if bool(self._value(reads[0])) else otherwise
                self._walk(taken, names)
                given = [names[value.debugName()] for value in taken.outputs()]
                names.update(zip(made, given, strict=True))
            elif kind == "prim::Loop":
                names.update(zip(made, self._loop(node, reads, names), strict=True))
            elif kind == "prim::RaiseException":
                raise RunnerError(
                    f"the script raises {self._value(reads[0])}", hint="take another --feed"
                )
            else:
                self._do(node, names, (reads, made))

    def _loop(self, node: Any, reads: list[str], names: dict[str, str]) -> list[str]:
        """Unroll a loop; returns the names of what is carried out of it."""
        (body,) = node.blocks()
        turn, *inside = [value.debugName() for value in body.inputs()]
        most, go, carried = int(self._value(reads[0])), reads[1], reads[2:]
        for number in range(most):
            if not bool(self._value(go)):
                break
            self._fix(names, turn, number, "")
            names.update(zip(inside, carried, strict=True))
            self._walk(body, names)
            go, *carried = [names[value.debugName()] for value in body.outputs()]
        return carried

    def _do(self, node: Any, names: dict[str, str], ends: tuple[list[str], list[str]]) -> None:
        """Compute one operator and note it."""
        if node.kind() in _CALLS or len(self.steps) >= _MOST_STEPS:
            raise UsageError(
                f"the script cannot be laid out at {node.kind()}",
                hint=Hint(
                    "debug the ONNX of the same model, or export it with ",
                    Option("capture", "trace"),
                ),
                option="capture",
            )
        hierarchy = _SCOPE.findall(node.getModuleHierarchy())
        scopes = [one for one in hierarchy if one[0] not in _NOWHERE]
        path = ".".join(name for name, _ in scopes)
        if scopes:
            self.kinds[path] = scopes[-1][1]
        self._step(node, names, ends, path)
        step = self.steps[-1]
        args = [self._value(name) for name in step.inputs]
        self.live.update(zip(step.outputs, compute(step, args), strict=True))

    def _value(self, name: str) -> Any:
        return self.live[name] if name in self.live else self.fixed[name]


class ScriptProbe(TorchScriptProbe):
    """A script; it has nodes once `forms` has laid it out on a feed."""

    def __init__(
        self,
        module: torch.jit.ScriptModule,
        inputs: Mapping[str, str],
        runner: Runner,
        *,
        scope: str = "",
    ) -> None:
        self.scope = scope
        self._module = module
        self._parameters = inputs  # of forward, by input
        super().__init__(FlatGraph(root=module), tuple(inputs), ((), ()), runner)

    def forms(self, feed: Feed) -> Mapping[str, TensorForm]:
        """Of every tensor that the script computes on this feed."""
        flat = _UnrolledGraph(root=self._module)
        inputs = {parameter: name for name, parameter in self._parameters.items()}
        ends = flat.run(self._module, self._bind_feed(feed), inputs)
        flat.live.clear()
        names = tuple(self._runner.run(feed))
        runs = self.runs + 2
        super().__init__(flat, self.inputs, (names, tuple(ends)), self._runner)
        self.runs = runs
        return super().forms(feed)


def has_calls(module: torch.jit.ScriptModule) -> bool:
    """Whether a trace holds what only a script has: functions, branches or loops."""
    graphs = [getattr(one, "graph", None) for one in module.modules() if hasattr(one, "forward")]
    nodes = [node for graph in graphs if graph is not None for node in graph.nodes()]
    return any(node.kind() in _CALLS[1:] or next(node.blocks(), None) is not None for node in nodes)


def parameters_by_input(inputs: Sequence[str], parameters: Sequence[str]) -> dict[str, str]:
    """The parameter of forward by input: of the same name, else in the order of both.

    Raises:
        UsageError: they do not go together.
    """
    if set(inputs) <= set(parameters):
        return {name: name for name in inputs}
    if len(inputs) <= len(parameters):
        return dict(zip(inputs, parameters, strict=False))
    raise UsageError(
        f"the script's forward takes {', '.join(parameters)}, not {', '.join(inputs)}",
        hint="debug the ONNX of the same model",
    )
