"""The layers of an engine, read from the JSON of TensorRT's engine inspector.

The inspector's form is documented only by examples: tests/converters/trt/inspector has outputs of
TensorRT 8.2 to 10.12. What is not understood is unknown; it is never taken for another dtype.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from ...core.contract import TensorInfo
from ...core.errors import ConversionError, ErrorCode
from ...core.records import UNKNOWN_DTYPE, Coverage
from ..onnx_topology import load_model

Json: TypeAlias = Mapping[str, object]
Operators: TypeAlias = Mapping[str, str]  # ONNX node -> its operator
INSPECTOR_SOURCE = "TensorRT engine inspector"
NO_OPERATORS: Operators = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class EngineLayer:
    """One layer of an engine. `dtype` is its compute dtype: fp32, tf32, fp16, bf16, int8...

    `computes` is true for convolutions and matrix products, which do most of the work, and for
    kernels that unpack 4-bit weights.
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


def read_layers(text: str, operators: Operators = NO_OPERATORS) -> EngineLayers:
    """Read the JSON of `get_engine_information`, or of trtexec's `--exportLayerInfo`.

    Args:
        text: the JSON.
        operators: the operators of the ONNX nodes that the layers name.

    Raises:
        ConversionError: the text has neither form.
    """
    try:
        document = json.loads(text)
        rows = document["Layers"]
        layers = _without_epilogues([_parse_layer(row, operators) for row in rows], operators)
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


def parse_layers(text: str, operators: Operators = NO_OPERATORS) -> tuple[EngineLayers, str]:
    """Return the layers and, if unreadable, the reason: the engine is good without them."""
    if not text:
        return EngineLayers(), "TensorRT's engine inspector returned no layers"
    try:
        return read_layers(text, operators), ""
    except ConversionError as error:
        return EngineLayers(), error.message


def read_operators(path: Path) -> Operators:
    """Return the operator of each named node of an ONNX file; empty if it cannot be read."""
    try:
        model = load_model(path)
    except ConversionError:
        return NO_OPERATORS  # the layers are then known by the names of their nodes
    return {node.name: node.op_type for node in model.graph.node if node.name}


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


_NODES = re.compile(r"\[ONNX Layer: ([^\]\x1e\x1f]+)\]")


def _parse_layer(row: object, operators: Operators) -> EngineLayer:
    """Parse one entry, a bare name if the engine was built without details."""
    if isinstance(row, str):
        work = not _COPY.match(row) and (_is_region(row) or _names_product(row))
        return EngineLayer(name=row, kind="", dtype=UNKNOWN_DTYPE, computes=work)
    if not isinstance(row, Mapping):
        raise TypeError(f"a layer is {row!r}")
    name, kind = str(row.get("Name", "")), str(row.get("LayerType", ""))
    tactic = str(row.get("TacticName", ""))
    nodes = tuple(_NODES.findall(str(row.get("Metadata", ""))))
    multiplies = any(_is_product(node, operators) for node in nodes)
    if kind == _REGION or _is_region(name):
        dtype, computes = _kernel_type(tactic), multiplies or not nodes
    else:
        dtype, computes = _layer_dtype(row, tactic), _is_compute_layer(row, multiplies)
        computes = computes or dtype == "int4"
    return EngineLayer(
        name=name, kind=kind, dtype=dtype, computes=computes, tactic=tactic, nodes=nodes
    )


def _is_product(node: str, operators: Operators) -> bool:
    return operators[node] in _PRODUCTS if node in operators else _names_product(node)


def _without_epilogues(
    layers: Sequence[EngineLayer], operators: Operators
) -> tuple[EngineLayer, ...]:
    """Return the layers, with those that only scale what another layer multiplied not computing.

    A kernel that Myelin made also names the ONNX node of the product before it.
    """
    others = {node for one in layers if one.computes and not _is_made(one) for node in one.nodes}
    return tuple(
        replace(one, computes=False)
        if one.computes
        and _is_made(one)
        and one.dtype != "int4"
        and others.issuperset(node for node in one.nodes if _is_product(node, operators))
        else one
        for one in layers
    )


def _is_made(layer: EngineLayer) -> bool:
    """Return whether Myelin made the kernel, and its name has no product."""
    made = _MYELIN.match(layer.tactic) or _MYELIN.match(layer.name)
    return made is not None and _MYELIN_PRODUCTS.isdisjoint(_myelin_operators(made))


def _myelin_operators(made: re.Match[str]) -> list[str]:
    return re.findall(r"[A-Z][a-z0-9]*", made.group(1))


_PRODUCTS = frozenset({
    "Attention", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm",
    "LSTM", "MatMul", "MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN",
})  # fmt: skip
_COMPUTE = re.compile(
    r"conv(?!er)|gemm|matmul|matrix|fully|attention|mha|lstm|gru|rnn|einsum|correlation",
    re.IGNORECASE,
)
_MOVES = re.compile(r"reformat|constant|shape|noop|no-op|identity|copy|signal|wait", re.IGNORECASE)
_COPY = re.compile(r"Reformatting CopyNode|\[trainStation")
_NO_PRODUCT = re.compile(r"weight|bias|quantiz", re.IGNORECASE)
_REGION = "Myelin"  # a part of the graph that Myelin compiled, shown as one layer
# The operators of a kernel that Myelin made, as in `__myl_FcMulCastErf_0x8a1b...`.
_MYELIN = re.compile(r"__myl_([A-Za-z0-9]+)")
_MYELIN_PRODUCTS = frozenset({"Fc", "Gemm", "Conv", "Mat", "Matmul", "Dot", "Mha"})
_MYELIN_MOVES = (
    "Bcast", "Cas", "Conc", "Deq", "Dequ", "Exp", "Gat", "Move", "Pad", "Qua", "Rep", "Res",
    "Sli", "Spl", "Tra", "Uns",
)  # fmt: skip


def _is_region(name: str) -> bool:
    return name.startswith("{ForeignNode[")


def _names_product(name: str) -> bool:
    """Return whether a part of a layer's or node's name is that of a convolution or product."""
    last = (part.rsplit("/", 1)[-1] for part in name.split(" + "))
    return any(_COMPUTE.search(part) and not _NO_PRODUCT.search(part) for part in last)


def _is_compute_layer(row: Json, multiplies: bool) -> bool:
    """Return whether a layer computes a product; `multiplies` if one of its ONNX nodes does.

    A kernel that Myelin made may name the node of a product and only move its operands.
    """
    kind, tactic = str(row.get("LayerType", "")), str(row.get("TacticName", ""))
    if _MOVES.search(kind):
        return False
    made = _MYELIN.match(tactic) or _MYELIN.match(str(row.get("Name", "")))
    if made is not None and not _kernel_name(tactic):
        operators = _myelin_operators(made)
        only_moves = all(one.startswith(_MYELIN_MOVES) for one in operators)
        return not _MYELIN_PRODUCTS.isdisjoint(operators) or (multiplies and not only_moves)
    fields = (kind, tactic, str(row.get("ParameterType", "")), str(row.get("PluginType", "")))
    return multiplies or any(_COMPUTE.search(text) for text in fields)


_OPERAND = "(?:i8|u8|s8|i4|f4|f8|e4m3|e5m2|e2m1|bf16|tf32|f16|f32)"
# `xmma_gemm_i8f16_i8i32_f32_`: input and output, then operand and accumulator of the product.
_XMMA = re.compile(rf"(?<![a-z0-9]){_OPERAND}{{2}}_({_OPERAND})(?:i32|s32|{_OPERAND})?_")
_XMMA_INTEGER = re.compile(rf"(?<![a-z0-9])i8i32_({_OPERAND})(?:i32)_")
# `cutlass3x_sm100_tensorop_s256x256x32gemm_f8_f8_f32_`: the operands, then the accumulator.
_CUTLASS = re.compile(rf"(?:gemm|fprop)_({_OPERAND})(?![a-z0-9])")
_OPERANDS = {
    **dict.fromkeys(("i8", "u8", "s8"), "int8"),
    **dict.fromkeys(("e4m3", "e5m2", "f8"), "fp8"),
    **dict.fromkeys(("e2m1", "f4"), "fp4"),
    "i4": "int4",
    "bf16": "bf16",
    "tf32": "tf32",
    "f16": "fp16",
    "f32": "fp32",
}
# Parts of the names of older kernels, as in `turing_fp16_i8816cudnn_int8_128x128_`.
_KERNEL_PARTS = {
    "int8": re.compile(
        r"(?<![a-z0-9])(i8i8|i8i32|i8f32|i8f16|s8s8|s8_s8|int8x4|imma|i8816|i16832|igemm|icudnn)"
    ),
    "fp8": re.compile(r"e4m3|e5m2|qmma"),
    "bf16": re.compile(r"bf16bf16|(?<![a-z0-9])bf16_"),
    "tf32": re.compile(r"tf32"),
    "fp16": re.compile(r"f16f16|h884|h1688|h16816|s16816|fp16_s1688|hgemm|hcudnn|hmma"),
    "fp32": re.compile(r"f32f32|(?<![a-z0-9])sgemm|ffma|scudnn"),
}
_HASH = re.compile(r"0x[0-9a-f]+")


def _kernel_name(tactic: str) -> str:
    """Return the name of a kernel of a library; empty for one that Myelin made."""
    return "" if tactic.startswith("__myl_") else _HASH.sub("", tactic.lower())


def _kernel_type(tactic: str) -> str:
    """Return the dtype that a kernel's name says it multiplies in, else `unknown`."""
    kernel = _kernel_name(tactic)
    for form in (_XMMA, _XMMA_INTEGER, _CUTLASS):
        found = form.search(kernel)
        if found is not None:
            return _OPERANDS[found.group(1)]
    matches = (dtype for dtype, part in _KERNEL_PARTS.items() if part.search(kernel))
    return next(matches, UNKNOWN_DTYPE)


# Names of a tensor's type: short without an execution context, a sentence with one.
_TYPES = {
    "fp8": re.compile(r"fp8|float8|e4m3|e5m2", re.IGNORECASE),
    "bf16": re.compile(r"bf16|bfloat16", re.IGNORECASE),
    "fp16": re.compile(r"fp16|half|float16", re.IGNORECASE),
    "fp4": re.compile(r"fp4|float4|e2m1", re.IGNORECASE),
    "int8": re.compile(r"(?<!u)int8", re.IGNORECASE),
    "int4": re.compile(r"int4", re.IGNORECASE),
    "fp32": re.compile(r"fp32|float32|float", re.IGNORECASE),
    "int64": re.compile(r"int64", re.IGNORECASE),
    "int32": re.compile(r"int32", re.IGNORECASE),
    "uint8": re.compile(r"uint8", re.IGNORECASE),
    "bool": re.compile(r"bool", re.IGNORECASE),
}
_INDICES = frozenset({"int64", "int32", "uint8", "bool", UNKNOWN_DTYPE})  # shapes, masks, indices
_QUANTIZED = frozenset({"int8", "int4", "fp8", "fp4"})
_TENSOR_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def _layer_dtype(row: Json, tactic: str) -> str:
    """Return the dtype in the kernel's name, else that of the weights, else of the tensors.

    Constants of 4 bits are weights, which no kernel's name tells.
    """
    if any(_tensor_type(one) == "int4" for one in _as_objects(row.get("Constants"))):
        return "int4"
    weights = row.get("Weights")
    stored = _type_in(str(weights.get("Type", ""))) if isinstance(weights, Mapping) else ""
    for dtype in (_kernel_type(tactic), stored):
        if dtype not in ("", UNKNOWN_DTYPE):
            return dtype
    inputs = [_tensor_type(one) for one in _as_objects(row.get("Inputs")) if not _is_scale(one)]
    outputs = [_tensor_type(one) for one in _as_objects(row.get("Outputs"))]
    data = [dtype for dtype in inputs if dtype not in _INDICES]
    if len(set(data)) > 1 and not _QUANTIZED.isdisjoint(data):
        return UNKNOWN_DTYPE  # quantized weights are also multiplied in floating point
    if not data and any(dtype == UNKNOWN_DTYPE for dtype in inputs):
        return UNKNOWN_DTYPE
    return next(
        iter((*data, *(dtype for dtype in outputs if dtype not in _INDICES))), UNKNOWN_DTYPE
    )


def _is_scale(tensor: Json) -> bool:
    """Return whether a tensor has at most one element, as a scale has."""
    sizes = tensor.get("Dimensions")
    return isinstance(sizes, list) and all(size == 1 for size in sizes)


def _tensor_type(tensor: Json) -> str:
    """Return the type of a tensor from whichever field holds it, else `unknown`."""
    for key in ("DataType", "Datatype", "Format/Datatype", "Format/DataType", "Format"):
        found = _type_in(str(tensor.get(key, "")))
        if found != UNKNOWN_DTYPE:
            return found
    return UNKNOWN_DTYPE


def _type_in(text: str) -> str:
    return next((one for one, name in _TYPES.items() if name.search(text)), UNKNOWN_DTYPE)


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
