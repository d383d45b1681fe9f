"""Records of an engine: build request and result, layers, and the sidecar."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ...core.atomic_write import atomic_write
from ...core.contract import TensorInfo
from ...core.errors import ConversionError, ErrorCode, RunnerError
from ...core.records import Coverage, FileRecord, sha256_of
from .engine_options import EngineOptions, Profile
from .trt_installation import TrtLibrary


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One engine to build.

    `engine` is written atomically. `timing_cache` is a file, empty for none. `values` are the
    least, the usual and the greatest value of integer inputs, which may set shapes.
    """

    onnx: str
    engine: str
    profiles: tuple[Profile, ...]
    options: EngineOptions
    timing_cache: str = ""
    library: TrtLibrary = TrtLibrary.TENSORRT
    values: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """A finished build. `layers` is the JSON of TensorRT's inspector."""

    tensorrt: str
    layers: str = ""
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    notes: tuple[str, ...] = ()


SIDECAR_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class EngineSidecar:
    """The record of one engine.

    `capability` is the GPU's compute capability, `memory` its bytes, `cuda` the newest CUDA that
    its driver runs; an engine of TensorRT-RTX is for several GPUs and names capabilities alone.
    `onnx` is the source model, which holds the weights of a stripped engine. `options` are those
    that differ from the defaults, as text. `origin` is the metadata of the job. `doubles` are the
    inputs and outputs that are float64 in the model and float32 in the engine.
    """

    engine: FileRecord
    onnx: FileRecord
    gpu: str
    capability: str
    memory: int
    cuda: str
    tensorrt: str
    builder: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    profiles: tuple[str, ...]
    layers: tuple[EngineLayer, ...] = ()
    plugins: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    stripped: bool = False
    origin: Mapping[str, str] = field(default_factory=dict)
    library: TrtLibrary = TrtLibrary.TENSORRT
    doubles: tuple[str, ...] = ()
    schema_version: int = SIDECAR_VERSION


def engine_sidecar_path(engine: Path) -> Path:
    """Return `model.fp16.engine.json` for `model.fp16.engine`."""
    return engine.with_name(f"{engine.name}.json")


def write_sidecar(sidecar: EngineSidecar, engine: Path) -> Path:
    """Write the sidecar beside the engine; return its path."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(sidecar), indent=1) + b"\n"
    return atomic_write(engine_sidecar_path(engine), text)


def read_sidecar(engine: Path) -> EngineSidecar:
    """Read the sidecar of an engine and check the engine's digest.

    Raises:
        RunnerError: the sidecar is missing, unreadable or of another engine.
    """
    import msgspec

    path = engine_sidecar_path(engine)
    try:
        sidecar = msgspec.json.decode(path.read_bytes(), type=EngineSidecar)
    except FileNotFoundError as error:
        raise RunnerError(
            f"{engine.name} has no {path.name}, and inspection does not load an engine: it is code",
            hint="keep the two files together, or build the engine again",
            code=ErrorCode.NOT_FOUND,
        ) from error
    except (OSError, ValueError) as error:
        raise RunnerError(
            f"{path.name} cannot be read: {error}",
            hint="build the engine again",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    if sidecar.engine.sha256 != sha256_of(engine):
        raise RunnerError(
            f"{path.name} describes another engine than {engine.name}",
            hint="keep the two files together, or build the engine again",
            code=ErrorCode.FILE_CHANGED,
        )
    return sidecar


Json: TypeAlias = Mapping[str, object]
INSPECTOR_SOURCE = "TensorRT engine inspector"
UNKNOWN = "unknown"
_COMPUTE = re.compile(
    r"conv(?!er)|gemm|matmul|matrix|matrix_multiply|fully|attention|mha|fmha|lstm|gru|rnn|einsum|correlation",
    re.IGNORECASE,
)
_MOVES = re.compile(r"reformat|constant|shape|noop|no-op|identity|copy|signal|wait", re.IGNORECASE)
# Operand types in a kernel's name, as in `sm80_xmma_fprop_implicit_gemm_i8i8_`.
_KERNEL = {
    "int8": re.compile(r"(?<![a-z0-9])(i8i8|s8s8|int8x4|imma)|_i8i8_|i8816|i16832"),
    "fp8": re.compile(r"e4m3|e5m2|qmma"),
    "bf16": re.compile(r"bf16bf16|(?<![a-z0-9])bf16_"),
    "tf32": re.compile(r"tf32tf32|s1688tf32|tf32"),
    "fp16": re.compile(r"f16f16|h884|h1688|h16816|s16816|s1688f16|(?<![a-z0-9])hgemm|hmma"),
    "fp32": re.compile(r"f32f32|(?<![a-z0-9])sgemm|ffma|scudnn"),
}
# Names of a tensor's type: short without an execution context, a sentence with one.
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
    """One layer of an engine. `dtype` is its compute dtype: fp32, tf32, fp16, bf16, int8...

    `computes` is true for convolutions and matrix products, which do most of the work.
    `nodes` are the ONNX nodes fused into the layer.
    """

    name: str
    kind: str
    dtype: str
    computes: bool
    tactic: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EngineLayers:
    """The inspector's view of an engine; TensorRT 10 describes no inputs and outputs."""

    layers: tuple[EngineLayer, ...] = ()
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()


def read_layers(text: str) -> EngineLayers:
    """Read the JSON of `get_engine_information`, or of trtexec's `--exportLayerInfo`.

    Raises:
        ConversionError: the text has neither form.
    """
    try:
        document = json.loads(text)
        rows = document["Layers"]
        layers = tuple(_parse_layer(row) for row in rows)
    except (ValueError, KeyError, TypeError) as error:
        raise ConversionError(
            f"modelc cannot read the output of TensorRT's engine inspector: {error!r}",
            hint="please report the log with the versions of TensorRT and modelc",
            code=ErrorCode.CORRUPT_FILE,
        ) from error
    tensors = _as_objects(document.get("I/O Tensors"))
    return EngineLayers(
        layers=layers,
        inputs=tuple(_parse_tensor(one) for one in tensors if _has_mode(one, "input")),
        outputs=tuple(_parse_tensor(one) for one in tensors if _has_mode(one, "output")),
    )


def parse_layers(text: str) -> tuple[EngineLayers, str]:
    """Return the layers and, if unreadable, the reason: the engine is good without them."""
    if not text:
        return EngineLayers(), "TensorRT's engine inspector returned no layers"
    try:
        return read_layers(text), ""
    except ConversionError as error:
        return EngineLayers(), error.message


def engine_coverage(
    layers: Iterable[EngineLayer], times: Mapping[str, float] | None = None
) -> Coverage:
    """Return the compute dtypes by layers, or by time if `times` covers each layer.

    `times` are milliseconds by layer name, from a profiler.
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
    """Parse one entry, a bare name if the engine was built without details."""
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
    """Return whether type, parameter type or kernel name a product, and not a data movement."""
    if _MOVES.search(kind):
        return False
    return any(_COMPUTE.search(text) for text in (kind, str(row.get("ParameterType", "")), tactic))


def _layer_dtype(row: Json, tactic: str) -> str:
    """Return the dtype in the kernel's name, else that of the first tensor."""
    for dtype, pattern in _KERNEL.items():
        if pattern.search(tactic.lower()):
            return dtype
    for tensor in (*_as_objects(row.get("Inputs")), *_as_objects(row.get("Outputs"))):
        found = _tensor_type(tensor)
        if found != UNKNOWN:
            return found
    return UNKNOWN


def _tensor_type(tensor: Json) -> str:
    """Return the type of a tensor from whichever field holds it, else `unknown`."""
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
