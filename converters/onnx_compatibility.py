"""Which ONNX each runtime release loads, and lowering of models to named runtimes."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..capture.framework_errors import call_framework
from ..core.errors import ConversionError, Hint, Option, UsageError, unknown_name_error

if TYPE_CHECKING:
    import onnx

_SPEC = re.compile(r"(?P<name>[A-Za-z][\w-]*)==(?P<version>\d+(?:\.\d+){0,3})")
_NAME = re.compile(r"[A-Za-z][\w-]*")
_UNPROMISED = {
    "openvino": "it documents no ONNX opset limit, and reads what is newer as what it knows",
}


@dataclass(frozen=True, kw_only=True)
class OnnxLimits:
    """The newest ONNX that loads: opset of ai.onnx, version of the IR, opset of ai.onnx.ml.

    `best` is the opset to write. A release may know an opset and lack kernels for it: 1.15 loads
    opset 19 and cannot run its Reshape, 1.23 loads 23 and cannot run its QuantizeLinear. `ml` 0 is
    a runtime without those operators, `contrib` one with those of com.microsoft.
    """

    opset: int
    ir: int
    best: int
    ml: int = 0
    contrib: bool = False


def _ort_limits(opset: int, ir: int, ml: int, *, best: int) -> OnnxLimits:
    return OnnxLimits(opset=opset, ir=ir, best=best, ml=ml, contrib=True)


# `best` of ONNX Runtime: what `benchmarks/runtimes.py` saw run in 1.15 (but for LayerNormalization
# in FP16, which it cannot), 1.17 and 1.20, and so in what came after each; 18 is the least that
# torch writes. Of TensorRT: ours.
_RELEASES: Mapping[str, Mapping[tuple[int, int], OnnxLimits]] = {
    "onnxruntime": {
        (1, 14): _ort_limits(18, 8, 3, best=18),
        (1, 15): _ort_limits(19, 8, 3, best=18),
        (1, 16): _ort_limits(19, 9, 3, best=18),
        (1, 17): _ort_limits(20, 9, 4, best=20),
        (1, 18): _ort_limits(21, 10, 4, best=20),
        (1, 19): _ort_limits(21, 10, 4, best=20),
        (1, 20): _ort_limits(21, 10, 4, best=21),
        (1, 21): _ort_limits(22, 10, 5, best=21),
        (1, 22): _ort_limits(22, 10, 5, best=21),
        (1, 23): _ort_limits(23, 11, 5, best=21),
        (1, 24): _ort_limits(25, 13, 5, best=21),
    },
    "tensorrt": {
        (10, 6): OnnxLimits(opset=22, ir=10, best=20),
        (10, 15): OnnxLimits(opset=24, ir=12, best=20),
        (11, 0): OnnxLimits(opset=24, ir=12, best=20),
        (11, 5): OnnxLimits(opset=25, ir=13, best=20),
    },
}
_CONTINUED = ("tensorrt",)  # a release that is not listed has at least what the one before it has


@dataclass(frozen=True, kw_only=True)
class RuntimeRelease:
    """One runtime that was named: its release, and what that loads."""

    name: str
    version: str
    limits: OnnxLimits

    def __str__(self) -> str:
        return f"{self.name} {self.version} (opset <= {self.limits.opset}, IR <= {self.limits.ir})"


def parse_runtime(text: str) -> RuntimeRelease:
    """Read one `--for`, as `onnxruntime==1.20`.

    Raises:
        UsageError: it is not of this form, or nothing is known of that runtime or release.
    """
    match = _SPEC.fullmatch(text.strip())
    name = match["name"] if match else (_NAME.match(text.strip()) or [""])[0]
    if name in _UNPROMISED:
        raise UsageError(
            f"--for {text}: nothing can be promised for {name}: {_UNPROMISED[name]}",
            hint=Hint("make its own format instead: ", Option("to", "openvino")),
            option="for",
        )
    if name not in _RELEASES:
        raise unknown_name_error("runtime in --for:", name or text, list(_RELEASES))
    table = _RELEASES[name]
    if match is None:
        raise UsageError(
            f"--for {text!r} is not RUNTIME==VERSION",
            hint=Hint("for example ", Option("for", f"{name}=={_version_text(max(table))}")),
            option="for",
        )
    return RuntimeRelease(
        name=name, version=match["version"], limits=_release_limits(name, match["version"])
    )


def _release_limits(name: str, version: str) -> OnnxLimits:
    """What a release loads; patch releases are as their minor one."""
    table = _RELEASES[name]
    parts = [int(part) for part in version.split(".")]
    first = min((one for one in table if one[0] == parts[0]), default=(parts[0], 0))
    release = (parts[0], parts[1]) if len(parts) > 1 else first
    if release in table:
        return table[release]
    earlier = sorted(table)[: bisect_right(sorted(table), release)]
    continued = name in _CONTINUED and release <= max(table)
    if continued and earlier and earlier[-1][0] == release[0]:
        return table[earlier[-1]]
    known = ", ".join(map(_version_text, table))
    raise UsageError(
        f"what {name} {version} loads is not known here", hint=f"known releases: {known}"
    )


def _version_text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))


@dataclass(frozen=True, kw_only=True)
class AllowedOnnx:
    """What several runtimes all load."""

    runtimes: tuple[RuntimeRelease, ...]

    @property
    def opset(self) -> int:
        """The newest opset that all of them load."""
        return min(runtime.limits.opset for runtime in self.runtimes)

    @property
    def best(self) -> int:
        """The newest opset that is known to run in all of them."""
        return min(runtime.limits.best for runtime in self.runtimes)

    @property
    def ir(self) -> int:
        """The newest version of the IR that all of them load."""
        return min(runtime.limits.ir for runtime in self.runtimes)

    @property
    def ml(self) -> int:
        """The newest opset of ai.onnx.ml; 0 where one of them has none."""
        return min(runtime.limits.ml for runtime in self.runtimes)

    @property
    def contrib(self) -> bool:
        """Whether all of them have operators of com.microsoft."""
        return all(runtime.limits.contrib for runtime in self.runtimes)

    def __str__(self) -> str:
        return ", ".join(map(str, self.runtimes))


def combine_runtimes(texts: Iterable[str]) -> AllowedOnnx | None:
    """What all the runtimes of an order's `--for` load; None where none was named.

    Raises:
        UsageError: a text names no runtime or no release that is known.
    """
    runtimes = tuple(parse_runtime(text) for text in texts)
    return AllowedOnnx(runtimes=runtimes) if runtimes else None


LOADS_IN = "loads in"  # among an artifact's options
_CORE = ("", "ai.onnx")
_ML, _CONTRIB = "ai.onnx.ml", "com.microsoft"
# The IR version that brought each type; an older reader knows no such tensor.
_TYPES = {
    "FLOAT8E4M3FN": 9, "FLOAT8E4M3FNUZ": 9, "FLOAT8E5M2": 9, "FLOAT8E5M2FNUZ": 9,
    "UINT4": 10, "INT4": 10, "FLOAT4E2M1": 11, "FLOAT8E8M0": 12, "UINT2": 13, "INT2": 13,
}  # fmt: skip
_FUNCTIONS, _OVERLOADS = 8, 10  # the IR versions that brought functions, and overloads of them


def choose_opset(asked: int | None, runtimes: Sequence[str], *, default: int, last: int) -> int:
    """The opset to write.

    Args:
        asked: `--opset`.
        runtimes: `--for`.
        default: without either.
        last: the newest that the exporter writes.

    Returns:
        what was asked for; else the newest that runs in all the runtimes and the exporter writes.

    Raises:
        UsageError: what was asked for is newer than one of the runtimes loads.
    """
    allowed = combine_runtimes(runtimes)
    if allowed is None:
        return asked or default
    if asked is not None and asked > allowed.opset:
        raise UsageError(
            f"--opset {asked} is beyond what --for allows: {allowed}",
            hint=Hint("use ", Option("opset", f"{allowed.opset}"), " or less, or leave it out"),
            option="opset",
        )
    return asked or min(allowed.best, last)


def lower_model(path: Path, runtimes: Sequence[str]) -> dict[str, str]:
    """Hold a model file to the runtimes, with its IR version lowered where that is needed.

    External weights are not read, and stay as they are.

    Returns:
        what an artifact's record says of it; nothing where no runtime was named.

    Raises:
        ConversionError: it needs more than one of the runtimes has.
    """
    allowed = combine_runtimes(runtimes)
    if allowed is None:
        return {}

    import onnx

    model = call_framework("onnx", lambda: onnx.load(str(path), load_external_data=False))
    for fault in _compatibility_faults(model, allowed):
        raise ConversionError(
            f"{path.name} would not load in {allowed}: {fault}",
            hint=Hint("name a later release with ", Option("for"), ", or leave it out"),
            option="for",
        )
    if model.ir_version > allowed.ir:
        model.ir_version = allowed.ir
        draft = path.with_name(f"{path.name}.draft")
        draft.write_bytes(model.SerializeToString())
        draft.replace(path)
    return {LOADS_IN: str(allowed), "ir": str(model.ir_version), "opset": str(opset_of(model))}


def opset_of(model: onnx.ModelProto) -> int:
    """The opset of ONNX's own operators."""
    return max((int(o.version) for o in model.opset_import if o.domain in _CORE), default=1)


def _compatibility_faults(model: onnx.ModelProto, allowed: AllowedOnnx) -> Iterator[str]:
    """Everything in a model that is beyond the limits, the gravest first."""
    opset = opset_of(model)
    if opset > allowed.opset:
        yield f"its opset is {opset}"
    for entry in model.opset_import:
        if entry.domain == _ML and entry.version > allowed.ml:
            yield f"its opset of {_ML} is {entry.version}, and {allowed.ml or 'none'} is known"
    yield from _foreign_operators(model, allowed)
    yield from _ir_requirements(model, allowed.ir)


def _foreign_operators(model: onnx.ModelProto, allowed: AllowedOnnx) -> Iterator[str]:
    """Operators of domains that the runtimes do not have and the model does not define."""
    own = {(function.domain, function.name) for function in model.functions}
    for node in _model_nodes(model):
        domain = node.domain
        known = domain in (*_CORE, _ML) or (domain, node.op_type) in own
        if known or (domain == _CONTRIB and allowed.contrib):
            continue
        yield f"{node.name or node.op_type} is an operator of {domain}: {node.op_type}"


def _ir_requirements(model: onnx.ModelProto, ir: int) -> Iterator[str]:
    """What is in the model that its IR version must be later for."""
    import onnx

    if model.functions and ir < _FUNCTIONS:
        yield f"it holds functions, which need IR {_FUNCTIONS}"
    if any(function.overload for function in model.functions) and ir < _OVERLOADS:
        yield f"it holds overloaded functions, which need IR {_OVERLOADS}"
    for code in sorted(_tensor_types(model)):
        name = onnx.TensorProto.DataType.Name(code)
        if _TYPES.get(name, 0) > ir:
            yield f"it holds {name.lower()} tensors, which need IR {_TYPES[name]}"


def _tensor_types(model: onnx.ModelProto) -> set[int]:
    """The types of all tensors that the model holds, declares or casts to."""
    found: set[int] = set()
    for graph in _all_graphs(model):
        values = (*graph.input, *graph.output, *graph.value_info)
        found |= {tensor.data_type for tensor in graph.initializer}
        found |= {value.type.tensor_type.elem_type for value in values}
    for node in _model_nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                found.add(attribute.t.data_type)
            elif attribute.name in ("to", "output_dtype", "dtype"):
                found.add(attribute.i)
    return found


def _all_graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The model's graph and those inside nodes, its functions' too."""
    waiting = [model.graph, *(body for one in model.functions for body in _node_bodies(one.node))]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting += _node_bodies(graph.node)


def _node_bodies(nodes: Sequence[onnx.NodeProto]) -> list[onnx.GraphProto]:
    return [
        attribute.g for node in nodes for attribute in node.attribute if attribute.HasField("g")
    ]


def _model_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for graph in _all_graphs(model):
        yield from graph.node
    for function in model.functions:
        yield from function.node
