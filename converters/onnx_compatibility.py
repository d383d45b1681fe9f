"""Know which ONNX versions each runtime release loads, and lower models to the runtimes given."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ConversionError, ErrorCode, Hint, Option, UsageError, unknown_name_error
from .onnx_topology import load_model, model_graphs, model_nodes

if TYPE_CHECKING:
    import onnx

_SPEC = re.compile(r"(?P<name>[A-Za-z][\w-]*)==(?P<version>\d+(?:\.\d+){0,3})")
_NAME = re.compile(r"[A-Za-z][\w-]*")
_UNPROMISED = {
    "openvino": "it documents no ONNX opset limit and does not check the opset of a model",
}


@dataclass(frozen=True, kw_only=True)
class OnnxLimits:
    """Newest ONNX that a release loads: opset of ai.onnx, IR version, opset of ai.onnx.ml.

    `best` is the opset to write: a release may know an opset and lack kernels for it. 1.15 loads
    opset 19 and cannot run its Reshape; 1.23 loads 23 and cannot run its QuantizeLinear. `ml` is 0
    where the runtime lacks that domain; `contrib` says whether it has com.microsoft.
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
    """A runtime named by the user: its release and the ONNX that it loads."""

    name: str
    version: str
    limits: OnnxLimits

    def __str__(self) -> str:
        return f"{self.name} {self.version} (opset <= {self.limits.opset}, IR <= {self.limits.ir})"


def parse_runtime(text: str) -> RuntimeRelease:
    """Parse one value of `--for`, such as `onnxruntime==1.20`.

    Raises:
        UsageError: the form is wrong, or the runtime or release is unknown.
    """
    match = _SPEC.fullmatch(text.strip())
    name = match["name"] if match else (_NAME.match(text.strip()) or [""])[0]
    if name in _UNPROMISED:
        raise UsageError(
            f"--for {text}: modelc cannot target {name}: {_UNPROMISED[name]}",
            hint=Hint("export its own format instead: ", Option("to", "openvino")),
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
    """Return what a release loads; a patch release loads what its minor release does."""
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
        f"--for: the ONNX limits of {name} {version} are unknown", hint=f"known releases: {known}"
    )


def _version_text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))


@dataclass(frozen=True, kw_only=True)
class AllowedOnnx:
    """ONNX that all the given runtimes load: the least of the limits of each."""

    runtimes: tuple[RuntimeRelease, ...]
    limits: OnnxLimits

    def __str__(self) -> str:
        return ", ".join(map(str, self.runtimes))


def combine_runtimes(texts: Iterable[str]) -> AllowedOnnx | None:
    """Return the ONNX that all runtimes of `--for` load; None if there are none.

    Raises:
        UsageError: a value names no known runtime or release.
    """
    runtimes = tuple(parse_runtime(text) for text in texts)
    if not runtimes:
        return None
    names = [field.name for field in fields(OnnxLimits)]
    least = {name: min(getattr(one.limits, name) for one in runtimes) for name in names}
    return AllowedOnnx(runtimes=runtimes, limits=OnnxLimits(**least))


LOADS_IN = "loads in"  # among an artifact's options
_CORE = ("", "ai.onnx")
_ML, _CONTRIB = "ai.onnx.ml", "com.microsoft"
# the IR version that introduced each type; older readers reject the tensor
_TYPES = {
    "FLOAT8E4M3FN": 9, "FLOAT8E4M3FNUZ": 9, "FLOAT8E5M2": 9, "FLOAT8E5M2FNUZ": 9,
    "UINT4": 10, "INT4": 10, "FLOAT4E2M1": 11, "FLOAT8E8M0": 12, "UINT2": 13, "INT2": 13,
}  # fmt: skip
_FUNCTIONS, _OVERLOADS = 8, 10  # the IR versions that introduced functions and their overloads


def choose_opset(asked: int | None, runtimes: Sequence[str], *, default: int, last: int) -> int:
    """Choose the opset to write.

    Args:
        asked: `--opset`.
        runtimes: `--for`.
        default: the opset if neither is given.
        last: the newest opset that the exporter writes.

    Returns:
        `--opset` if given; else the newest that runs in all runtimes and that the exporter writes.

    Raises:
        UsageError: `--opset` is newer than one of the runtimes loads.
    """
    allowed = combine_runtimes(runtimes)
    if allowed is None:
        return asked or default
    if asked is not None and asked > allowed.limits.opset:
        raise UsageError(
            f"--opset {asked} is newer than --for allows: {allowed}",
            hint=Hint(
                "use ", Option("opset", f"{allowed.limits.opset}"), " or less, or leave it out"
            ),
            option="opset",
            code=ErrorCode.UNSUPPORTED,
        )
    return asked or min(allowed.limits.best, last)


def lower_model(path: Path, runtimes: Sequence[str]) -> dict[str, str]:
    """Lower the IR version of a model file to what the runtimes load, and check the rest.

    External weights are neither read nor changed.

    Returns:
        a note for the artifact's record; empty if no runtime is given.

    Raises:
        ConversionError: the model needs more than one of the runtimes loads.
    """
    allowed = combine_runtimes(runtimes)
    if allowed is None:
        return {}

    model = load_model(path)
    for fault in _compatibility_faults(model, allowed.limits):
        raise ConversionError(
            f"{path.name} would not load in {allowed}: {fault}",
            hint=Hint("name a later release with ", Option("for"), ", or leave it out"),
            option="for",
            code=ErrorCode.UNSUPPORTED,
        )
    if model.ir_version > allowed.limits.ir:
        model.ir_version = allowed.limits.ir
        draft = path.with_name(f"{path.name}.draft")
        draft.write_bytes(model.SerializeToString())
        draft.replace(path)
    return {LOADS_IN: str(allowed), "ir": str(model.ir_version), "opset": str(opset_of(model))}


def explain_incompatibility(path: Path, runtime: str) -> str:
    """Return what a model file needs beyond a release, as `onnxruntime==1.20.1`, and the remedy.

    Empty if the release loads it, or its limits are unknown.
    """
    try:
        release = parse_runtime(runtime)
    except UsageError:
        return ""
    model = load_model(path)
    fault = next(_compatibility_faults(model, release.limits), "")
    if not fault and model.ir_version > release.limits.ir:
        fault = f"its IR version is {model.ir_version}"
    if not fault:
        return ""
    minor = ".".join(release.version.split(".")[:2])
    return f"{fault}, and {release} loads less: export with --for {release.name}=={minor}"


def opset_of(model: onnx.ModelProto) -> int:
    """Return the opset of the default ONNX domain."""
    return max((int(o.version) for o in model.opset_import if o.domain in _CORE), default=1)


def _compatibility_faults(model: onnx.ModelProto, limits: OnnxLimits) -> Iterator[str]:
    """Return everything in a model that exceeds the limits, the most severe first."""
    opset = opset_of(model)
    if opset > limits.opset:
        yield f"its opset is {opset}"
    for entry in model.opset_import:
        if entry.domain == _ML and entry.version > limits.ml:
            yield f"its {_ML} opset is {entry.version}, the limit is {limits.ml or 'none'}"
    yield from _foreign_operators(model, limits)
    yield from _ir_requirements(model, limits.ir)


def _foreign_operators(model: onnx.ModelProto, limits: OnnxLimits) -> Iterator[str]:
    """Find operators of domains that neither the runtimes nor the model define."""
    own = {(function.domain, function.name) for function in model.functions}
    for node in model_nodes(model):
        domain = node.domain
        known = domain in (*_CORE, _ML) or (domain, node.op_type) in own
        if known or (domain == _CONTRIB and limits.contrib):
            continue
        yield f"{node.name or node.op_type} is an operator of {domain}: {node.op_type}"


def _ir_requirements(model: onnx.ModelProto, ir: int) -> Iterator[str]:
    """Find what requires a later IR version than the model's."""
    import onnx

    if model.functions and ir < _FUNCTIONS:
        yield f"it contains functions, which require IR {_FUNCTIONS}"
    if any(function.overload for function in model.functions) and ir < _OVERLOADS:
        yield f"it contains overloaded functions, which require IR {_OVERLOADS}"
    for code in sorted(_tensor_types(model)):
        name = onnx.TensorProto.DataType.Name(code)
        if _TYPES.get(name, 0) > ir:
            yield f"it contains {name.lower()} tensors, which require IR {_TYPES[name]}"


def _tensor_types(model: onnx.ModelProto) -> set[int]:
    """Return the types of all tensors that the model stores, declares or casts to."""
    found: set[int] = set()
    for graph in model_graphs(model):
        values = (*graph.input, *graph.output, *graph.value_info)
        found |= {tensor.data_type for tensor in graph.initializer}
        found |= {value.type.tensor_type.elem_type for value in values}
    for node in model_nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                found.add(attribute.t.data_type)
            elif attribute.name in ("to", "output_dtype", "dtype"):
                found.add(attribute.i)
    return found
