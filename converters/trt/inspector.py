"""Reads what TensorRT's engine inspector says: layers, their types, their tactics.

Both forms of its JSON: of 10.x (`Bindings` is a list of names, `Format/Datatype` is one text) and
of 11.x (`I/O Tensors` is a list of objects, format and data type are two fields).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ...core.contract import TensorInfo
from ...core.errors import ConversionError
from ...core.records import Coverage

Json: TypeAlias = Mapping[str, object]
INSPECTOR_SOURCE = "TensorRT engine inspector"
UNKNOWN = "unknown"
_COMPUTE = re.compile(
    r"conv(?!er)|gemm|matmul|matrix|matrix_multiply|fully|attention|mha|fmha|lstm|gru|rnn|einsum|correlation",
    re.IGNORECASE,
)
_MOVES = re.compile(r"reformat|constant|shape|noop|no-op|identity|copy|signal|wait", re.IGNORECASE)
# What the kernel's own name says that it multiplies, as in `sm80_xmma_fprop_implicit_gemm_i8i8_`.
_KERNEL = {
    "int8": re.compile(r"(?<![a-z0-9])(i8i8|s8s8|int8x4|imma)|_i8i8_|i8816|i16832"),
    "fp8": re.compile(r"e4m3|e5m2|qmma"),
    "bf16": re.compile(r"bf16bf16|(?<![a-z0-9])bf16_"),
    "tf32": re.compile(r"tf32tf32|s1688tf32|tf32"),
    "fp16": re.compile(r"f16f16|h884|h1688|h16816|s16816|s1688f16|(?<![a-z0-9])hgemm|hmma"),
    "fp32": re.compile(r"f32f32|(?<![a-z0-9])sgemm|ffma|scudnn"),
}
# What a tensor's type is called: short without an execution context, a sentence with one.
_TYPES = {
    "fp8": re.compile(r"fp8|e4m3|e5m2", re.IGNORECASE),
    "bf16": re.compile(r"bf16|bfloat16", re.IGNORECASE),
    "fp16": re.compile(r"fp16|half|float16", re.IGNORECASE),
    "fp4": re.compile(r"fp4|e2m1", re.IGNORECASE),
    "int8": re.compile(r"(?<!u)int8", re.IGNORECASE),
    "int4": re.compile(r"int4", re.IGNORECASE),
    "fp32": re.compile(r"fp32|float32|float", re.IGNORECASE),
    "int64": re.compile(r"int64", re.IGNORECASE),
    "int32": re.compile(r"int32", re.IGNORECASE),
    "uint8": re.compile(r"uint8", re.IGNORECASE),
    "bool": re.compile(r"bool", re.IGNORECASE),
}
_NODES = re.compile(r"\[ONNX Layer: ([^\]\x1e]+)\]")
_TENSOR_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True, kw_only=True)
class EngineLayer:
    """One layer of an engine. `dtype` is what it computes in: fp32, tf32, fp16, bf16, int8...

    `computes` tells convolutions and matrix products, in which the work is, from the rest.
    `nodes` are the ONNX nodes that were fused into it.
    """

    name: str
    kind: str
    dtype: str
    computes: bool
    tactic: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EngineLayers:
    """An engine as its inspector tells it; 10.x gives only the names of inputs and outputs."""

    layers: tuple[EngineLayer, ...]
    tensors: tuple[str, ...]
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()


def read_layers(text: str) -> EngineLayers:
    """Read the JSON of `get_engine_information`, or of trtexec's `--exportLayerInfo`.

    Raises:
        ConversionError: it is neither of the two forms.
    """
    try:
        document = json.loads(text)
        rows = document["Layers"]
        layers = tuple(_parse_layer(row) for row in rows)
    except (ValueError, KeyError, TypeError) as error:
        raise ConversionError(
            f"TensorRT's inspector gave what modelc cannot read: {error!r}",
            hint="please report the log with the versions of TensorRT and modelc",
        ) from error
    tensors = _as_objects(document.get("I/O Tensors"))
    names = [str(one.get("Name", "")) for one in tensors] or list(document.get("Bindings") or ())
    return EngineLayers(
        layers=layers,
        tensors=tuple(map(str, names)),
        inputs=tuple(_parse_tensor(one) for one in tensors if _has_mode(one, "input")),
        outputs=tuple(_parse_tensor(one) for one in tensors if _has_mode(one, "output")),
    )


def parse_layers(text: str) -> tuple[EngineLayers, str]:
    """The layers, and why there are none: an engine is not lost because its inspector is odd."""
    nothing = EngineLayers(layers=(), tensors=())
    if not text:
        return nothing, "TensorRT told nothing of the engine's layers"
    try:
        return read_layers(text), ""
    except ConversionError as error:
        return nothing, error.message


def engine_coverage(
    layers: Iterable[EngineLayer], times: Mapping[str, float] | None = None
) -> Coverage:
    """What an engine computes in: by layers, or by time where `times` has one for each layer.

    Args:
        layers: the engine's.
        times: milliseconds by layer name, from a profiler.
    """
    work = [layer for layer in layers if layer.computes]
    weights = {layer.name: 1.0 for layer in work}
    timed = bool(work) and times is not None and all(layer.name in times for layer in work)
    if timed and times is not None:
        weights = {layer.name: times[layer.name] for layer in work}
    counts = Counter(layer.dtype for layer in work)
    total = sum(weights.values())
    share = dict.fromkeys(counts, 0.0)
    for layer in work:
        share[layer.dtype] += weights[layer.name] / total if total else 0.0
    return Coverage(
        layers=dict(counts),
        share={dtype: round(part, 6) for dtype, part in share.items()},
        work="time" if timed else "layers",
        source=INSPECTOR_SOURCE,
    )


def _parse_layer(row: object) -> EngineLayer:
    """One entry; a bare name where the engine was built without details."""
    if isinstance(row, str):
        work = _COMPUTE.search(row) and not _MOVES.search(row)
        return EngineLayer(name=row, kind="", dtype=UNKNOWN, computes=bool(work))
    if not isinstance(row, Mapping):
        raise TypeError(f"a layer is {row!r}")
    kind = str(row.get("LayerType", ""))
    tactic = str(row.get("TacticName", ""))
    return EngineLayer(
        name=str(row.get("Name", "")),
        kind=kind,
        dtype=_layer_dtype(row, tactic),
        computes=_is_compute_layer(row, kind, tactic),
        tactic=tactic,
        nodes=tuple(_NODES.findall(str(row.get("Metadata", "")))),
    )


def _is_compute_layer(row: Json, kind: str, tactic: str) -> bool:
    """By its type, by its parameters' type, by its kernel; a layer that only moves data never."""
    if _MOVES.search(kind):
        return False
    return any(_COMPUTE.search(text) for text in (kind, str(row.get("ParameterType", "")), tactic))


def _layer_dtype(row: Json, tactic: str) -> str:
    """From the kernel's name where it says so, else from the layer's first input."""
    for dtype, pattern in _KERNEL.items():
        if pattern.search(tactic.lower()):
            return dtype
    for tensor in (*_as_objects(row.get("Inputs")), *_as_objects(row.get("Outputs"))):
        found = _tensor_type(tensor)
        if found != UNKNOWN:
            return found
    return UNKNOWN


def _tensor_type(tensor: Json) -> str:
    """The type that a tensor says, whatever its field is called; unknown where it says none."""
    for key in ("DataType", "Datatype", "Format/Datatype", "Format/DataType", "Format"):
        text = str(tensor.get(key, ""))
        for dtype, pattern in _TYPES.items():
            if pattern.search(text):
                return dtype
    return UNKNOWN


def _as_objects(value: object) -> list[Json]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _has_mode(tensor: Json, mode: str) -> bool:
    return str(tensor.get("IOMode", "")).lower() == mode


def _parse_tensor(tensor: Json) -> TensorInfo:
    found = _tensor_type(tensor)
    sizes = tensor.get("Dimensions")
    dims = sizes if isinstance(sizes, list) else []
    return TensorInfo(
        name=str(tensor.get("Name", "")),
        dtype=_TENSOR_DTYPES.get(found, found),
        dims=tuple("?" if size == -1 else str(size) for size in dims),
    )
