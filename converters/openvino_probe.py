"""Probe OpenVINO IRs: run them with additional outputs or in parts, on OpenVINO's CPU device."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.contract import Array, Feed, Outputs
from ..core.errors import RunnerError
from ..core.target_extensions import ProbeNode, QuantizedRange, TensorForm
from .onnx_origins import NodeOrigin, assign_absorbed_layers, read_origins
from .openvino_reader import openvino_error
from .openvino_rewrites import node_bodies
from .openvino_stateful import read_stateless

if TYPE_CHECKING:
    import openvino

_LOADER = """
import openvino


def run(model, given, output):
    compiled = openvino.Core().compile_model(
        str(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
    )
    return compiled(given)[0].copy()
"""
_PART = "::made"
_HALVES = ("f16", "bf16")
_NO_NODE = ("Constant", "Parameter", "Result")
_MAX_TEXT = 60  # characters of an attribute that is kept


def _read_origins(path: Path) -> Mapping[str, NodeOrigin]:
    """Read the sidecar of `model.fp16.xml`, or that of `model.onnx`."""
    bare = path.with_name(path.name.partition(".")[0] + path.suffix)
    for place in (path, bare):
        for folder in (path.parent, path.parent.parent):  # of a rejected artifact, one above
            found = read_origins(folder / place.name)
            if found:
                return found
    return {}


class OpenVinoProbe:
    """An IR that is read anew for each run, cut, and compiled with the settings."""

    loader = _LOADER

    def __init__(self, path: Path, settings: Mapping[str, str]) -> None:
        """Read the IR, and the origins of the ONNX that it was made from.

        Raises:
            RunnerError: it cannot be read.
            UsageError: its debug sidecar is invalid.
        """
        self.runs = 0
        self._path = path
        self._settings = dict(settings)
        model = read_stateless(self._path)
        self._ports = {
            _tensor_name(op, 0): sorted(op.output(0).get_names()) for op in model.get_parameters()
        }
        self.inputs = tuple(self._ports)
        self.outputs = tuple(_source(result) for result in model.get_results())
        self.ends: Mapping[str, str] = {
            name: _source(result)
            for result in model.get_results()
            for name in result.input_value(0).get_names()
        }
        origins = _read_origins(path)
        self.nodes = assign_absorbed_layers(tuple(self._describe_nodes(model, origins)), origins)

    def _describe_nodes(
        self, model: openvino.Model, origins: Mapping[str, NodeOrigin]
    ) -> Iterator[ProbeNode]:
        known = _inherit_origins(model, origins)
        fixed: set[str] = set()
        owners: dict[str, str] = {}  # modules by tensors computed from their weights alone
        for op in model.get_ordered_ops():
            kind = op.get_type_name()
            reads = [_source(op, i) for i in range(op.get_input_size())]
            made = [_tensor_name(op, i) for i in range(op.get_output_size())]
            if kind == "Constant" or (reads and fixed.issuperset(reads)):
                fixed.update(made)
                owners.update(dict.fromkeys(made, _owner(op, reads, owners)))
            if kind in _NO_NODE or fixed.issuperset(made):
                continue
            name = str(op.get_friendly_name())
            origin = known.get(name) or _origin_from_names(
                name, [owners.get(one, "") for one in reads]
            )
            yield ProbeNode(
                name=op.get_friendly_name(),
                operator=kind,
                inputs=tuple(name for name in reads if name not in fixed),
                outputs=tuple(made),
                constants=tuple(name for name in reads if name in fixed),
                module=origin.module,
                kind=origin.cls,
                owner=origin.weights,
                source=origin.source,
                attributes=_attributes(op),
                inside=_inside(op, origins),
                half=kind == "Convert" and op.get_output_element_type(0).to_string() in _HALVES,
            )

    def forms(self, feed: Feed) -> Mapping[str, TensorForm]:
        """Return the forms that OpenVINO infers from the feed's shapes, without a run."""
        model = read_stateless(self._path)
        shapes = {
            op.output(0): list(self._bind_feed(feed, _tensor_name(op, 0)).shape)
            for op in model.get_parameters()
        }
        try:
            model.reshape(shapes)
        except RuntimeError as error:
            raise openvino_error(error) from error
        return {
            name: TensorForm(
                shape=tuple(port.get_shape()), dtype=str(port.get_element_type().to_dtype())
            )
            for name, port in _ports(model).items()
            if not port.get_partial_shape().is_dynamic
        }

    def tap(self, feed: Feed, tensors: Collection[str]) -> Outputs:
        """Run the whole model with additional results."""
        model = read_stateless(self._path)
        ports = _ports(model)
        names = [name for name in dict.fromkeys(tensors) if name not in self.outputs]
        for name in names:
            model.add_outputs(ports[name])
        arrays = [self._bind_feed(feed, _tensor_name(one, 0)) for one in model.get_parameters()]
        results = self._run(model, arrays)
        found = dict(zip((*self.outputs, *names), results, strict=True))
        return {name: found[name] for name in (*self.outputs, *names)}

    def part(self, given: Feed, wanted: Collection[str]) -> Outputs:
        """Run the nodes between as a model of their own."""
        names = tuple(wanted)
        model, arrays = self._cut(given, names)
        return dict(zip(names, self._run(model, arrays), strict=True))

    def constant(self, name: str) -> Array:
        """Return a constant, or what is computed from constants alone."""
        return self.part({}, [name])[name]

    def range_of(self, node: ProbeNode) -> QuantizedRange | None:
        """Return the range of a FakeQuantize."""
        if node.operator != "FakeQuantize" or not node.inputs or not node.constants[1:]:
            return None
        low, high = (self.constant(name) for name in node.constants[:2])
        steps = int(node.attributes.get("levels", "256")) - 1
        return QuantizedRange(tensor=node.inputs[0], low=low, high=high, scale=(high - low) / steps)

    def extract(self, given: Feed, wanted: Sequence[str], folder: Path) -> str:
        """Write `model.xml` and `model.bin`."""
        import openvino

        feeds = {name: array for name, array in given.items() if name not in wanted}
        model, _ = self._cut(feeds, tuple(wanted))
        openvino.save_model(model, str(folder / "model.xml"), compress_to_fp16=False)
        return "model.xml"

    def _cut(self, given: Feed, wanted: tuple[str, ...]) -> tuple[openvino.Model, list[Array]]:
        """Return the part as a model, and its inputs in order."""
        import openvino
        from openvino import opset8

        model = read_stateless(self._path)
        ports = _ports(model)
        cuts = {name: array for name, array in given.items() if name in ports}
        for name in self.inputs:
            if any(one in given for one in (name, *self._ports[name])):
                cuts[name] = self._bind_feed(given, name)
        results = [opset8.result(ports[name]) for name in wanted]
        ends = {result.get_friendly_name() for result in results}
        parameters, arrays = [], []
        for name, array in cuts.items():
            port = ports[name]
            parameter = opset8.parameter(
                list(array.shape), dtype=port.get_element_type(), name=f"{name}{_PART}"
            )
            parameter.output(0).get_tensor().set_names({name})
            for reader in port.get_target_inputs():
                if reader.get_node().get_friendly_name() not in ends:
                    reader.replace_source_output(parameter.output(0))
            parameters.append(parameter)
            arrays.append(array)
        try:
            part = openvino.Model(results, parameters, "part")
        except RuntimeError as error:
            raise openvino_error(error) from error
        return part, arrays

    def _bind_feed(self, feed: Feed, name: str) -> Array:
        """Return the feed's array for an input of the model, which has several names."""
        for one in (name, *self._ports[name]):
            if one in feed:
                return feed[one]
        raise RunnerError(
            f"the model takes {name!r}, which the signature lacks",
            hint="debug it with the manifest that it was exported with",
        )

    def _run(self, model: openvino.Model, arrays: Sequence[Array]) -> list[Array]:
        import openvino

        self.runs += 1
        try:
            compiled = openvino.Core().compile_model(model, "CPU", self._settings)
            found = compiled(list(arrays))
            return [found[i].copy() for i in range(len(compiled.outputs))]
        except RuntimeError as error:
            raise openvino_error(error) from error


def _ports(model: openvino.Model) -> dict[str, Any]:
    return {
        _tensor_name(op, index): op.output(index)
        for op in model.get_ordered_ops()
        for index in range(op.get_output_size())
        if op.get_type_name() != "Result"
    }


def _tensor_name(op: Any, index: int) -> str:
    """Name a tensor after its layer, whose name is the ONNX node's."""
    name = str(op.get_friendly_name())
    return name if op.get_output_size() == 1 else f"{name}.{index}"


def _source(op: Any, index: int = 0) -> str:
    port = op.input_value(index)
    return _tensor_name(port.get_node(), port.get_index())


def _inherit_origins(
    model: openvino.Model, origins: Mapping[str, NodeOrigin]
) -> dict[str, NodeOrigin]:
    """Return origins by layer; the name of an ONNX node stays with the last of its layers.

    The others belong to their first reader, as the MVN of a LayerNormalization to its addition.
    """
    found: dict[str, NodeOrigin] = {}
    for op in reversed(model.get_ordered_ops()):
        name = str(op.get_friendly_name())
        origin = origins.get(name) or origins.get(name.partition("/")[0])
        readers = [
            reader.get_node().get_friendly_name()
            for index in range(op.get_output_size())
            for reader in op.output(index).get_target_inputs()
        ]
        inherited = [found[one] for one in readers if one in found]
        if origin is not None or inherited:
            found[name] = origin or inherited[-1]
    return found


def _owner(op: Any, reads: Sequence[str], owners: Mapping[str, str]) -> str:
    """Return the module that a weight, or what is computed from it, is named after."""
    if op.get_type_name() == "Constant":
        return str(op.get_friendly_name()).rpartition(".")[0]
    return next((owners[one] for one in reads if owners.get(one)), "")


def _origin_from_names(name: str, owners: Sequence[str]) -> NodeOrigin:
    """Return the origin that the names in an IR give: of a layer's scope, and of its weights."""
    scope = [part for part in name.split("/") if part][:-1] if name.startswith("/") else []
    return NodeOrigin(module=".".join(scope), weights=next(filter(None, owners), ""))


def _inside(op: Any, origins: Mapping[str, NodeOrigin]) -> tuple[str, ...] | None:
    """Return the modules of the layers in a layer's bodies; None if it has no body."""
    bodies = node_bodies(op)
    if not bodies:
        return None
    names = [str(one.get_friendly_name()) for body in bodies for one in body.get_ordered_ops()]
    found = [origins.get(name) or origins.get(name.partition("/")[0]) for name in names]
    modules = dict.fromkeys(origin.module for origin in found if origin is not None)
    return tuple(module for module in modules if module)


def _attributes(op: Any) -> dict[str, str]:
    return {
        str(key): str(value)
        for key, value in op.get_attributes().items()
        if len(str(value)) <= _MAX_TEXT
    }
