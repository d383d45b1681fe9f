"""Probe TorchScript archives: run their flat graphs operator by operator with torch.

A script has an order of execution for each feed: `forms` unrolls it on one feed, and the other
calls probe that flat graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.contract import Array, Feed, Outputs, Runner
from ..core.errors import UsageError
from ..core.target_extensions import ProbeNode, QuantizedRange, TensorForm
from ..core.torch_tools import to_array
from .runner_base import nodes_between
from .torchscript_graph import DEBUG_ONNX, FlatGraph, TorchScriptStep, UnrolledGraph
from .torchscript_operators import compute

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
_HALVES = (5, 15)  # torch's codes of float16 and bfloat16


class TorchScriptProbe:
    """A flat TorchScript graph; `scope` is where it holds the user's module."""

    loader = _LOADER
    scope = SCOPE

    def __init__(
        self,
        module: torch.jit.ScriptModule,
        inputs: Sequence[str],
        outputs: Sequence[str],
        runner: Runner,
    ) -> None:
        """Flatten a traced module, which takes the inputs in order and returns the outputs.

        Raises:
            UsageError: its code branches or loops.
        """
        self.runs = 0
        self.inputs = tuple(inputs)
        self._runner = runner
        flat = FlatGraph(root=module)
        self._set_graph(flat, outputs, flat.flatten(module, "forward", list(inputs), ""))

    def _set_graph(self, flat: FlatGraph, names: Sequence[str], ends: list[str]) -> None:
        """Probe this graph, whose results `ends` the runner returns as `names`."""
        self._flat = flat
        self._steps = {step.name: step for step in flat.steps}
        self._makers = {out: step.name for step in flat.steps for out in step.outputs}
        if len(ends) == 1 and names:  # a tuple of all outputs
            maker = self._steps.get(self._makers.get(ends[0], ""))
            if maker is not None and maker.kind == "prim::TupleConstruct":
                ends = list(maker.inputs)
        self.ends: Mapping[str, str] = dict(zip(names, ends, strict=False))
        self.outputs = tuple(ends)
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
                module=self._user_module(step.module),
                kind=self._flat.kinds.get(step.module, ""),
                owner=self._owner(step),
                attributes={
                    str(place): str(fixed[name])
                    for place, name in enumerate(step.inputs)
                    if name in fixed and isinstance(fixed[name], (int, float, str, bool))
                },
                half=step.kind == "aten::to"
                and any(type(fixed.get(n)) is int and fixed[n] in _HALVES for n in step.inputs),
            )

    def forms(self, feed: Feed) -> Mapping[str, TensorForm]:
        """Return the form of every tensor, from a run that keeps nothing else."""
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
        """Run the archive itself, and compute the tensors inside beside it."""
        names = tuple(tensors)
        found = self._arrays(self._evaluate(self._bind_feed(feed), names), names)
        self.runs += 1
        outputs = self._runner.run(feed)
        own = {self.ends[name]: array for name, array in outputs.items() if name in self.ends}
        return {**found, **own}

    def part(self, given: Feed, wanted: Collection[str]) -> Outputs:
        """Run the operators between."""
        names = tuple(wanted)
        return self._arrays(self._evaluate(self._bind_feed(given), names), names)

    def constant(self, name: str) -> Array:
        """Return a parameter, a buffer or a constant of the code."""
        return to_array(self._flat.fixed[name])

    def range_of(self, node: ProbeNode) -> QuantizedRange | None:  # noqa: ARG002 - of the contract
        """Return None: no TorchScript of modelc has quantizers."""
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
        """Compute what is wanted from what is given; the rest is dropped after its last reader."""
        import torch

        self.runs += 1
        fixed = self._flat.fixed
        reads = {step.name: step.inputs for step in self._flat.steps}
        needed = nodes_between(self._makers, reads, {*given, *fixed}, wanted)
        steps = [step for step in self._flat.steps if step.name in needed]
        last = {name: step.name for step in steps for name in step.inputs}
        values: dict[str, Any] = dict(given)
        found: dict[str, Any] = {name: given[name] for name in wanted if name in given}
        with torch.no_grad():
            for step in steps:
                args = [values[name] if name in values else fixed[name] for name in step.inputs]
                made = dict(zip(step.outputs, compute(step, args), strict=True))
                # copies, as `aten::add_` and `aten::relu_` write into tensors
                found.update(
                    (name, value.clone() if hasattr(value, "clone") else value)
                    for name, value in made.items()
                    if name in wanted
                )
                values.update((name, v) for name, v in made.items() if name not in given)
                keep(made)
                for name in [name for name in step.inputs if last[name] == step.name]:
                    values.pop(name, None)
        return found

    def _owner(self, step: TorchScriptStep) -> str:
        """Return the module of the first weight among an operator's inputs."""
        paths = [self._flat.paths.get(name, "") for name in step.inputs]
        return self._user_module(next((p.rpartition(".")[0] for p in paths if "." in p), ""))

    def _user_module(self, module: str) -> str:
        """Return the path of a module in the user's model."""
        if not self.scope:
            return module
        return "" if module == self.scope else module.removeprefix(f"{self.scope}.")


class ScriptProbe(TorchScriptProbe):
    """A script; it has nodes once `forms` has unrolled it on a feed."""

    def __init__(
        self,
        module: torch.jit.ScriptModule,
        inputs: Mapping[str, str],
        runner: Runner,
        *,
        scope: str = "",
    ) -> None:
        """Probe a module whose forward has a parameter for each of `inputs`."""
        self.runs = 0
        self.inputs = tuple(inputs)
        self.scope = scope
        self._runner = runner
        self._module = module
        self._inputs = {parameter: name for name, parameter in inputs.items()}
        self._set_graph(FlatGraph(root=module), (), [])

    def forms(self, feed: Feed) -> Mapping[str, TensorForm]:
        """Return the form of every tensor that the script computes on this feed."""
        flat = UnrolledGraph(root=self._module)
        ends = flat.run(self._bind_feed(feed), self._inputs)
        flat.values.clear()
        self._set_graph(flat, tuple(self._runner.run(feed)), ends)
        self.runs += 2
        return super().forms(feed)


def parameters_by_input(inputs: Sequence[str], parameters: Sequence[str]) -> dict[str, str]:
    """Return forward's parameter by input: of the same name, else in the order of both.

    Raises:
        UsageError: there are more inputs than parameters.
    """
    if set(inputs) <= set(parameters):
        return {name: name for name in inputs}
    if len(inputs) <= len(parameters):
        return dict(zip(inputs, parameters, strict=False))
    raise UsageError(
        f"the script's forward takes {', '.join(parameters)}, not {', '.join(inputs)}",
        hint=DEBUG_ONNX,
    )
