"""Measure the cost of each quantized layer: a float model with a switch wherever 8 bits are read.

One session serves all layers: `Where(switch, rounded, exact)` precedes every reader, and the
switches are inputs of the model. To measure a layer, switch on its sites only; nothing is rebuilt.
Each run dequantizes the weights, so memory stays that of the float model and its 8-bit copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...capture.framework_errors import call_framework
from ...core.contract import Feed, Outputs, QuantizeJob
from ..onnx_origins import read_origins
from ..onnx_sessions import limit_threads
from ..onnx_topology import DEQUANTIZE, QUANTIZE, GraphWiring, all_nodes
from .quantized_layers import QuantizedLayer, QuantizedSite, QuantizedSites, find_sites
from .quantizer_workspace import create_workspace

if TYPE_CHECKING:
    import onnx
    import onnxruntime

_NAME, _DATA = "switched.onnx", "switched.data"
_OURS = "switched::"  # prefix of each added name


def can_switch(path: Path) -> bool:
    """Return whether switches can use a quantizer's result."""
    return path.suffix == ".onnx"


class Switchboard:
    """The opened model: `run(feed, {0, 3})` computes layers 0 and 3 in 8 bits, the rest in floats.

    `unknown` are nodes that read 8 bits and cannot be switched.
    """

    def __init__(self, session: onnxruntime.InferenceSession, sites: QuantizedSites) -> None:
        self._session = session
        self._sites = sites
        self.layers: tuple[QuantizedLayer, ...] = sites.layers
        self.unknown = sites.unknown
        self._inputs = {
            value.name for value in session.get_inputs() if not value.name.startswith(_OURS)
        }
        self._outputs = [value.name for value in session.get_outputs()]

    def run(self, feed: Feed, layers: Collection[int]) -> Outputs:
        """Return the outputs with these layers, by index, in 8 bits.

        Raises:
            ConversionError: ONNX Runtime cannot run the feed.
        """
        import numpy as np

        on = {site for layer in layers for site in self._sites.of_layer[layer]}
        switches = {
            _switch_name(index): np.array(index in on) for index in range(len(self._sites.sites))
        }
        inputs = {name: array for name, array in feed.items() if name in self._inputs} | switches
        found = call_framework("ONNX Runtime", lambda: self._session.run(self._outputs, inputs))
        return dict(zip(self._outputs, found, strict=True))


def open_switchboard(job: QuantizeJob, quantized: Path) -> Switchboard:
    """Create the switched model in the job's empty folder and open it.

    `job` is the job of the Q/DQ model `quantized`: its parent is the float model.

    Raises:
        ConversionError: a model cannot be read, or ONNX Runtime cannot open the result.
    """
    import onnx

    rounded = call_framework("onnx", lambda: onnx.load(str(quantized)))
    opset = max(o.version for o in rounded.opset_import if o.domain in {"", "ai.onnx"})
    place = create_workspace(job, opset=opset)
    model = place.load()
    sites = find_sites(model.graph, rounded.graph, read_origins(job.parent))
    _SwitchBuilder(model, rounded).apply(sites.sites)
    del rounded
    path = job.folder / _NAME
    call_framework(
        "the ONNX writer",
        lambda: onnx.save(model, str(path), save_as_external_data=True, location=_DATA),
    )
    place.clear()
    return Switchboard(_open_unoptimized(path), sites)


def _open_unoptimized(path: Path) -> onnxruntime.InferenceSession:
    """Open without optimization, which would fold weights and fuse what is to be switched."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    limit_threads(options)
    options.log_severity_level = 3  # errors only
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return call_framework(
        "ONNX Runtime",
        lambda: onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        ),
    )


def _switch_name(index: int) -> str:
    return f"{_OURS}{index}"


class _SwitchBuilder:
    """Changes the float model: each site reads the quantized model's value while it is on."""

    def __init__(self, model: onnx.ModelProto, quantized: onnx.ModelProto) -> None:
        self._model = model
        self._graph = model.graph
        self._wiring = GraphWiring(quantized.graph)
        self._domains = {o.domain: o.version for o in quantized.opset_import}
        self._made: dict[tuple[str, str], str] = {}
        self._brought: set[str] = set()

    def apply(self, sites: Collection[QuantizedSite]) -> None:
        """Add a switch at each site, in the order of the sites."""
        import onnx

        given = {site.tensor: self._raw(site.tensor) for site in sites if not site.node}
        by_node: dict[str, list[tuple[int, QuantizedSite]]] = {}
        for index, site in enumerate(sites):
            by_node.setdefault(site.node, []).append((index, site))
            self._graph.input.append(
                onnx.helper.make_tensor_value_info(_switch_name(index), onnx.TensorProto.BOOL, [])
            )
        nodes: list[onnx.NodeProto] = []
        for node in self._graph.node:
            for index, site in by_node.get(node.name, ()):
                nodes.extend(self._switch_site(index, site, given.get(site.tensor, site.tensor)))
                node.input[site.index] = nodes[-1].output[0]
            nodes.append(node)
        for index, site in by_node.get("", ()):
            nodes.extend(self._switch_site(index, site, given[site.tensor]))
            nodes[-1].output[0] = site.tensor
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del self._graph.node[:]
        self._graph.node.extend(copies)

    def _raw(self, name: str) -> str:
        """Rename the producer and readers of a graph output, so that a switch can follow."""
        raw = f"{_OURS}raw::{name}"
        for node in all_nodes(self._graph):
            for names in (node.input, node.output):
                for index, other in enumerate(names):
                    if other == name:
                        names[index] = raw
        return raw

    def _switch_site(
        self, index: int, site: QuantizedSite, tensor: str
    ) -> Iterator[onnx.NodeProto]:
        """Return the nodes of the site's value, the switch last."""
        from onnx import helper

        rounded = self._made.get((tensor, site.source))
        if rounded is None:
            *nodes, rounded = self._round_tensor(site, tensor)
            self._made[tensor, site.source] = rounded
            yield from nodes
        name = f"{_OURS}{index}::value"
        yield helper.make_node("Where", [_switch_name(index), rounded, tensor], [name], name=name)

    def _round_tensor(
        self, site: QuantizedSite, tensor: str
    ) -> tuple[*tuple[onnx.NodeProto, ...], str]:
        """Return the nodes of the quantized model's value of a float tensor, and its name."""
        dequantize = self._wiring.producer_if(site.source, DEQUANTIZE)
        if dequantize is None:
            return (self._bring(site.source),)
        given = self._wiring.producer_if(dequantize.input[0], QUANTIZE)
        number = len(self._made)
        if given is None:
            start = self._bring(dequantize.input[0])
            return (last := self._clone(dequantize, start, f"{number}::dq"), last.output[0])
        first = self._clone(given, tensor, f"{number}::q")
        last = self._clone(dequantize, first.output[0], f"{number}::dq")
        return (first, last, last.output[0])

    def _clone(self, node: onnx.NodeProto, start: str, name: str) -> onnx.NodeProto:
        """Copy a Q or DQ with its scale to another tensor."""
        import onnx

        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{_OURS}{name}"
        copy.input[0] = start
        for index, constant in enumerate(copy.input[1:], start=1):
            copy.input[index] = self._bring(constant)
        copy.output[0] = copy.name
        if copy.domain and copy.domain not in {o.domain for o in self._model.opset_import}:
            self._model.opset_import.add(domain=copy.domain, version=self._domains[copy.domain])
        return copy

    def _bring(self, name: str) -> str:
        """Copy a constant of the quantized model under a name of ours."""
        ours = f"{_OURS}constant::{name}"
        if ours not in self._brought:
            self._brought.add(ours)
            self._graph.initializer.add().CopyFrom(self._wiring.constants[name])
            self._graph.initializer[-1].name = ours
        return ours
