"""TorchScript graphs laid flat: as they are written, or as they run on one feed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.errors import Hint, Option, RunnerError, UsageError
from .torchscript_operators import WITH_RESULT, compute, is_changing

if TYPE_CHECKING:
    import torch

_MAX_STEPS = 200_000  # of an unrolled graph
_SCOPE = re.compile(r"([^.()]+)\(([^()]*)\)")
_NO_MODULE = ("SELF", "UNKNOWN_INSTANCE")
_CALLS = ("prim::CallMethod", "prim::CallFunction", "prim::fork")
DEBUG_ONNX = "debug the ONNX of the same model"


@dataclass(frozen=True, kw_only=True)
class TorchScriptStep:
    """One operator of the flat graph; names are unique in it."""

    name: str
    kind: str
    module: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    node: Any  # of the graph
    named: Mapping[int, str]  # keyword-only arguments, by position


@dataclass(kw_only=True)
class FlatGraph:
    """A module's graph with the methods that it calls inlined."""

    root: Any
    steps: list[TorchScriptStep] = field(default_factory=list)
    fixed: dict[str, Any] = field(default_factory=dict)  # constants, parameters and submodules
    paths: dict[str, str] = field(default_factory=dict)  # of submodules and parameters
    kinds: dict[str, str] = field(default_factory=dict)  # classes by module path
    count: int = 0
    graphs: list[Any] = field(default_factory=list)  # their nodes end with them

    def flatten(self, module: Any, method: str, given: Sequence[str], path: str) -> list[str]:
        """Inline one method; return the names of its results.

        Raises:
            UsageError: it branches or loops, so that there is no single order of execution.
        """
        graph = getattr(module, method).graph
        self.graphs.append(graph)
        self.kinds[path] = str(getattr(module, "original_name", ""))
        names: dict[str, str] = {}
        own, *rest = list(graph.inputs())
        self._fix(names, own.debugName(), module, path)
        names.update(zip((value.debugName() for value in rest), given, strict=True))
        for node in graph.nodes():
            if next(node.blocks(), None) is not None:
                raise UsageError(
                    f"the TorchScript of {path or 'the model'} branches or loops ({node.kind()})",
                    hint=f"{DEBUG_ONNX}, or a traced archive",
                )
            if self._is_fixed(node, names):
                continue
            if node.kind() == "prim::CallMethod":
                owner, *reads = _names_of(node.inputs(), names)
                found = self.flatten(self.fixed[owner], node.s("name"), reads, self.paths[owner])
                names.update(zip(_outputs(node), found, strict=True))
            else:
                self._add_step(node, names, path)
        return _names_of(graph.outputs(), names)

    def _is_fixed(self, node: Any, names: dict[str, str]) -> bool:
        """Note the value of a constant or an attribute; return whether the node is one."""
        if node.kind() == "prim::Constant":
            self._fix(names, _outputs(node)[0], node.output().toIValue(), "")
        elif node.kind() == "prim::GetAttr":
            (owner,) = _names_of(node.inputs(), names)
            name = node.s("name")
            path = f"{self.paths[owner]}.{name}".lstrip(".")
            self._fix(names, _outputs(node)[0], getattr(self.fixed[owner], name), path)
        else:
            return False
        return True

    def _fix(self, names: dict[str, str], value: str, thing: object, path: str) -> None:
        self.count += 1
        names[value] = path or f"constant_{self.count}"
        if names[value] in self.fixed and self.fixed[names[value]] is not thing:
            names[value] = f"{names[value]}#{self.count}"
        self.fixed[names[value]], self.paths[names[value]] = thing, path

    def _add_step(self, node: Any, names: dict[str, str], path: str) -> TorchScriptStep:
        self.count += 1
        kind, made = str(node.kind()), _outputs(node)
        name = f"{path}/{kind.partition('::')[2]}_{self.count}".lstrip("/")
        inputs = tuple(_names_of(node.inputs(), names))
        results = [name] if len(made) == 1 else [f"{name}.{place}" for place in range(len(made))]
        outputs = tuple(results)
        if is_changing(node):  # readers of a changed list read the result
            own = kind in WITH_RESULT or not results
            changed = f"{inputs[0]}.changed_{self.count}" if own else results[0]
            names.update({value: changed for value, one in names.items() if one == inputs[0]})
            outputs = (changed, *results) if own else outputs
        names.update(zip(made, results, strict=True))
        step = TorchScriptStep(
            name=name,
            kind=kind,
            module=path,
            inputs=inputs,
            outputs=outputs,
            node=node,
            named=_keyword_arguments(node),
        )
        self.steps.append(step)
        return step


@dataclass(kw_only=True)
class UnrolledGraph(FlatGraph):
    """A script's graph as it runs on a feed: with the branches taken, and the loops unrolled."""

    values: dict[str, Any] = field(default_factory=dict)  # of what was computed

    def run(self, given: Mapping[str, Any], inputs: Mapping[str, str]) -> list[str]:
        """Run `forward` operator by operator; return the names of its results.

        Args:
            given: tensors by input.
            inputs: the input by the name of forward's parameter.

        Raises:
            UsageError: it cannot be unrolled.
            RunnerError: it raised, or an operator failed.
        """
        import torch

        graph: Any = self.root.inlined_graph
        self.graphs.append(graph)
        own, *rest = list(graph.inputs())
        names: dict[str, str] = {}
        self._fix(names, own.debugName(), self.root, "")
        for value, argument in zip(rest, self.root.forward.schema.arguments[1:], strict=True):
            name = inputs.get(argument.name, "")
            if name in given:
                names[value.debugName()] = name
                self.values[name] = given[name]
            elif argument.has_default_value():
                self._fix(names, value.debugName(), argument.default_value, "")
            else:
                raise UsageError(
                    f"no input of the signature goes to {argument.name!r} of the script's forward",
                    hint=DEBUG_ONNX,
                )
        with torch.no_grad():
            self._walk(graph, names)
        return _names_of(graph.outputs(), names)

    def _walk(self, block: Any, names: dict[str, str]) -> None:
        for node in block.nodes():
            if self._is_fixed(node, names):
                continue
            kind = node.kind()
            if kind == "prim::If":
                (condition,) = _names_of(node.inputs(), names)
                then, otherwise = node.blocks()
                branch = then if bool(self._value(condition)) else otherwise
                self._walk(branch, names)
                found = _names_of(branch.outputs(), names)
                names.update(zip(_outputs(node), found, strict=True))
            elif kind == "prim::Loop":
                names.update(zip(_outputs(node), self._unroll(node, names), strict=True))
            elif kind == "prim::RaiseException":
                message, *_ = _names_of(node.inputs(), names)
                raise RunnerError(
                    f"the script raises {self._value(message)}", hint="give another --feed"
                )
            else:
                self._compute(node, names)

    def _unroll(self, node: Any, names: dict[str, str]) -> list[str]:
        """Unroll a loop; return the names of its results."""
        (body,) = node.blocks()
        index, *inside = [value.debugName() for value in body.inputs()]
        limit, condition, *state = _names_of(node.inputs(), names)
        for number in range(int(self._value(limit))):
            if not bool(self._value(condition)):
                break
            self._fix(names, index, number, "")
            names.update(zip(inside, state, strict=True))
            self._walk(body, names)
            condition, *state = _names_of(body.outputs(), names)
        return state

    def _compute(self, node: Any, names: dict[str, str]) -> None:
        if node.kind() in _CALLS or len(self.steps) >= _MAX_STEPS:
            raise UsageError(
                f"the script cannot be unrolled at {node.kind()}",
                hint=Hint(f"{DEBUG_ONNX}, or export it with ", Option("capture", "trace")),
                option="capture",
            )
        hierarchy = _SCOPE.findall(node.getModuleHierarchy())
        scopes = [one for one in hierarchy if one[0] not in _NO_MODULE]
        path = ".".join(name for name, _ in scopes)
        if scopes:
            self.kinds[path] = scopes[-1][1]
        step = self._add_step(node, names, path)
        results = compute(step, [self._value(name) for name in step.inputs])
        self.values.update(zip(step.outputs, results, strict=True))

    def _value(self, name: str) -> Any:
        return self.values[name] if name in self.values else self.fixed[name]


def has_calls(module: torch.jit.ScriptModule) -> bool:
    """Return whether a trace contains what only a script has: functions, branches or loops."""
    graphs = [getattr(one, "graph", None) for one in module.modules() if hasattr(one, "forward")]
    nodes = [node for graph in graphs if graph is not None for node in graph.nodes()]
    return any(node.kind() in _CALLS[1:] or next(node.blocks(), None) is not None for node in nodes)


def _names_of(values: Any, names: Mapping[str, str]) -> list[str]:
    return [names[value.debugName()] for value in values]


def _outputs(node: Any) -> list[str]:
    return [value.debugName() for value in node.outputs()]


def _keyword_arguments(node: Any) -> dict[int, str]:
    import torch

    if node.schema() == "(no schema)":
        return {}
    arguments = torch._C.parse_schema(node.schema()).arguments
    return {place: one.name for place, one in enumerate(arguments) if one.kwarg_only}
