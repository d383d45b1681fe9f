"""The operators, types and attributes that TensorRT's ONNX parser supports, and types by GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..onnx_origins import NodeOrigin
from .trt_findings import (
    Model,
    Node,
    NodeFindings,
    TrtFault,
    TrtFinding,
    constant_tensor,
    element_type,
    tensor_shape,
)
from .trt_installation import TrtLibrary

TABLE_VERSION = "10.15"
TABLE_SOURCE = (
    f"onnx-tensorrt docs/operators.md for TensorRT {TABLE_VERSION} (opset 9 to 24); "
    "NVIDIA's ONNX opset guide for 11.x (to opset 25)"
)
LEAST_OPSET, TABLE_OPSET, LAST_OPSET = 9, 24, 25

# Tensor types of TensorRT, by ONNX's names; DOUBLE becomes FLOAT.
SUPPORTED_TYPES = frozenset({
    "BFLOAT16", "BOOL", "DOUBLE", "FLOAT", "FLOAT16", "FLOAT4E2M1", "FLOAT8E4M3FN", "INT32",
    "INT4", "INT64", "INT8", "UINT8",
})  # fmt: skip
_HALVES = frozenset({"FLOAT", "FLOAT16"})
_FLOATS = _HALVES | {"BFLOAT16"}
_NUMBERS = _FLOATS | {"INT32", "INT64"}
_ANY = _NUMBERS | {"BOOL"}
_QUANTIZED = frozenset({"INT8", "INT4", "FLOAT8E4M3FN", "FLOAT4E2M1"})

_TYPE_TABLE: Mapping[frozenset[str], str] = {
    frozenset({"BOOL"}): "And Not Or Xor",
    frozenset({"FLOAT"}): "STFT",
    _HALVES: "BlackmanWindow DeformConv GridSample HammingWindow HannWindow Mish NonMaxSuppression "
    "NonZero RoiAlign",
    _FLOATS: "Acos Acosh Asin Asinh Atan Atanh AveragePool BatchNormalization Ceil Celu Clip Conv "
    "ConvTranspose Cos Cosh CumSum Dropout Einsum Elu Erf Exp Floor GRU Gemm GlobalAveragePool "
    "GlobalLpPool GlobalMaxPool GroupNormalization HardSigmoid HardSwish Hardmax ImageScaler "
    "InstanceNormalization IsInf LRN LSTM LayerNormalization LeakyRelu Log LogSoftmax "
    "LpNormalization LpPool MatMul MaxPool MeanVarianceNormalization PRelu ParametricSoftplus "
    "QuantizeLinear RMSNormalization RNN RandomNormal RandomNormalLike RandomUniform "
    "RandomUniformLike Reciprocal Relu Resize RotaryEmbedding Round ScaledTanh Scan Selu Sigmoid "
    "Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Upsample",
    _FLOATS | {"INT32"}: "TensorScatter",
    _FLOATS | _QUANTIZED: "Attention",
    _NUMBERS: "Abs Add ArgMax ArgMin DepthToSpace Div Equal Greater GreaterOrEqual IsNaN Less "
    "LessOrEqual Max Min Mod Mul Neg Pad Pow Range ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
    "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Scatter "
    "ScatterElements ScatterND Shrink Sign SpaceToDepth Sub Sum TopK",
    _NUMBERS | {"INT8"}: "Gelu",
    _NUMBERS | {"FLOAT8E4M3FN"}: "Mean",
    _ANY: "Concat Expand EyeLike Flatten Gather GatherElements GatherND Identity If Loop OneHot "
    "Reshape ReverseSequence Shape Size Slice Split Squeeze Tile Transpose Trilu Unsqueeze Where",
    _ANY | {"UINT8"}: "Cast CastLike",
    _ANY | {"INT4", "FLOAT8E4M3FN", "FLOAT4E2M1"}: "Constant ConstantOfShape",
    _QUANTIZED: "DequantizeLinear",
}
SUPPORTED: Mapping[str, frozenset[str]] = {
    name: types for types, names in _TYPE_TABLE.items() for name in names.split()
}
# Of the table's operators, those that it says are not supported; others it does not know.
UNSUPPORTED = frozenset({
    "AffineGrid", "Bernoulli", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
    "BitwiseXor", "CenterCropPad", "Col2Im", "Compress", "ConcatFromSequence", "ConvInteger",
    "DFT", "Det", "DynamicQuantizeLinear", "ImageDecoder", "MatMulInteger", "MaxRoiPool",
    "MaxUnpool", "MelWeightMatrix", "Multinomial", "NegativeLogLikelihoodLoss", "Optional",
    "OptionalGetElement", "OptionalHasElement", "QLinearConv", "QLinearMatMul",
    "RegexFullMatch", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
    "SequenceInsert", "SequenceLength", "SequenceMap", "SoftmaxCrossEntropyLoss",
    "SplitToSequence", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer",
    "Unique",
})  # fmt: skip
# Which inputs of an operator are data, where not all are: the others are indices, sizes or flags.
DATA_INPUTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            "ConstantOfShape", "CumSum", "DequantizeLinear", "Dropout", "Expand", "Gather",
            "GatherElements", "GatherND", "Pad", "QuantizeLinear", "Resize", "Reshape",
            "ReverseSequence", "Slice", "Split", "Squeeze", "Tile", "TopK", "Trilu", "Unsqueeze",
            "Upsample", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
            "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Pow",
        ),
        (0,),
    ),
    **dict.fromkeys(("NonMaxSuppression", "RoiAlign"), (0, 1)),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), (0, 1, 2)),
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND", "TensorScatter"), (0,)),
    "Attention": (0, 1, 2),
    "OneHot": (2,),
    "RotaryEmbedding": (0, 1, 2),
    "STFT": (0,),
    "Where": (1, 2),
}  # fmt: skip
# Operators with bodies: they take all types, and the bodies are checked node by node.
BODIES = frozenset({"If", "Loop", "Scan"})
# Operators whose output sizes depend on data.
DATA_DEPENDENT = frozenset({"NonMaxSuppression", "NonZero"})
# Operators that TensorRT implements by plugins of its own, which TensorRT-RTX leaves out: what its
# parser says of them holds for TensorRT-RTX alone. Measured with 1.7.1.
PLUGIN_OPERATORS = frozenset({"DeformConv", "NonMaxSuppression", "NonZero", "RoiAlign"})
# Domains of NVIDIA's own operators, which the parser knows: TRT_FP8QuantizeLinear and the like.
OWN_DOMAINS = frozenset({"trt"})
STANDARD_PLUGIN = "_TRT"  # suffix of the plugins that TensorRT ships, such as EfficientNMS_TRT


IsViolated: TypeAlias = Callable[[Node], bool]
_TOPK_LIMIT = 3840
_IMAGE_RANK = 4  # batch, channels, height, width


@dataclass(frozen=True, kw_only=True)
class Restriction:
    """A restriction of an operator. `sure`: the parser is known to reject a violation."""

    violated: IsViolated
    text: str
    sure: bool = True


def find_violations(node: Node) -> Iterator[Restriction]:
    """Return the restrictions that a node violates."""
    return (one for one in _RESTRICTIONS.get(node.op_type, ()) if one.violated(node))


def _integer(name: str, *, default: int, allowed: tuple[int, ...]) -> IsViolated:
    return lambda node: node.attributes.get_int(name, default) not in allowed


def _text(name: str, *, default: str, allowed: tuple[str, ...]) -> IsViolated:
    return lambda node: node.attributes.get_string(name, default) not in allowed


def _is_not_ones(name: str) -> IsViolated:
    return lambda node: any(size != 1 for size in node.attributes.get_ints(name, ()))


def _is_computed(index: int) -> IsViolated:
    """Check that an input is present and not a constant."""
    return lambda node: _has_input(node, index) and constant_tensor(node.inputs[index]) is None


def _has_input(node: Node, index: int) -> bool:
    return index < len(node.inputs) and node.inputs[index] is not None


def _is_input_present(*indices: int) -> IsViolated:
    return lambda node: any(_has_input(node, index) for index in indices)


def _is_output_present(*indices: int) -> IsViolated:
    """Check for an output that TensorRT does not support."""
    return lambda node: any(
        index < len(node.outputs) and bool(node.outputs[index].name) for index in indices
    )


def _is_rank_outside(allowed: tuple[int, ...]) -> IsViolated:
    """Check the rank of the first input, if it is known."""

    def is_violated(node: Node) -> bool:
        shape = _first_shape(node)
        return shape is not None and len(shape) not in allowed

    return is_violated


def _first_shape(node: Node) -> tuple[int | None, ...] | None:
    return tensor_shape(node.inputs[0]) if _has_input(node, 0) else None


def _is_constant_from(index: int, limit: int) -> IsViolated:
    """Check that an input is a constant with an element of at least `limit`."""

    def is_violated(node: Node) -> bool:
        value = constant_tensor(node.inputs[index]) if _has_input(node, index) else None
        return value is not None and bool((value.numpy() >= limit).any())

    return is_violated


def _has_mixed_activations(node: Node) -> bool:
    """Return whether a bidirectional cell has different activations per direction."""
    names = [name.lower() for name in node.attributes.get_strings("activations", ())]
    if node.attributes.get_string("direction", "forward") != "bidirectional":
        return False
    return names[: len(names) // 2] != names[len(names) // 2 :]


def _has_different_ranks(node: Node) -> bool:
    """Return whether the branches of an If return tensors of different ranks."""
    then, other = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    pairs = zip(then.outputs, other.outputs, strict=False)
    ranks = [(tensor_shape(a), tensor_shape(b)) for a, b in pairs]
    return any(a is not None and b is not None and len(a) != len(b) for a, b in ranks)


def _is_folded(node: Node) -> bool:
    """Return whether a condition depends on constants and sizes alone: the parser may fold it."""
    left, seen = [node.inputs[0]], set[str | None]()
    while left:
        one = left.pop()
        if one is None or one.name in seen or constant_tensor(one) is not None:
            continue
        seen.add(one.name)
        maker = one.producer()
        if maker is None:
            return False
        left.extend(() if maker.op_type in {"Shape", "Size"} else maker.inputs)
    return True


def _reads_missing_condition(node: Node) -> bool:
    """Return whether the body of a Loop reads a condition that the Loop is not given."""
    condition = node.attributes["body"].as_graph().inputs[1]
    return not _has_input(node, 1) and (bool(condition.uses()) or condition.is_graph_output())


def _is_growing(node: Node) -> bool:
    """Return whether a Loop collects outputs over a data-dependent number of iterations."""
    body = node.attributes["body"].as_graph()
    states = max(len(node.inputs) - 2, 0)  # after the trip count and the condition
    collects = len(body.outputs) - 1 > states  # after the body's own condition
    stops = _has_input(node, 1) and constant_tensor(node.inputs[1]) is None
    return collects and (stops or _is_computed(0)(node))


def _rule(violated: IsViolated, text: str) -> Restriction:
    return Restriction(violated=violated, text=text)


def _doubt(violated: IsViolated, text: str) -> Restriction:
    return Restriction(violated=violated, text=text, sure=False)


_DILATED = _rule(_is_not_ones("dilations"), "its dilations are not 1")
_POOL = (_doubt(_is_rank_outside((4, 5)), "only 2D and 3D pooling is listed"), _DILATED)
_AXES = _rule(_is_computed(1), "its axes are computed, not a constant")
_FOLDED = _doubt(_is_computed(1), "its axes are computed; TensorRT must be able to fold them")
_NORM = _rule(_integer("p", default=2, allowed=(1, 2)), "its norm is not L1 or L2")
_CELL = _rule(_has_mixed_activations, "its activations differ between forward and backward")
_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
_RANKS = "its branches return tensors of different ranks"
_NOT_NUMBERS = ("sparse_value", "value_string", "value_strings")
_MODES = ("half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn", "asymmetric", "align_corners")

_RESTRICTIONS: Mapping[str, tuple[Restriction, ...]] = {
    **dict.fromkeys(_REDUCTIONS, (_AXES,)),
    "Attention": (
        _rule(_is_rank_outside((3, _IMAGE_RANK)), "its queries are not 3D or 4D"),
        _rule(_is_input_present(4, 5, 6), "it has past keys, past values or key lengths"),
        _rule(_is_output_present(1, 2, 3), "present keys and values, or the product, are read"),
        _rule(lambda node: node.attributes.get_float("softcap", 0.0) != 0.0, "it has a softcap"),
    ),
    "AveragePool": _POOL,
    "BatchNormalization": (
        _rule(_integer("training_mode", default=0, allowed=(0,)), "it is in training mode"),
        _rule(_is_output_present(1, 2), "its second output is read"),
    ),
    "Constant": (
        _rule(
            lambda node: any(name in node.attributes for name in _NOT_NUMBERS),
            "it holds a sparse tensor or text",
        ),
    ),
    "CumSum": (_doubt(_is_computed(1), "its axis is computed, not a constant"),),
    "Dropout": (_rule(_is_constant_from(2, 1), "it is in training mode"),),
    "EyeLike": (
        _rule(lambda node: None in (_first_shape(node) or ()), "its input has dynamic dims"),
    ),
    "GRU": (_CELL,),
    "GridSample": (_rule(_is_rank_outside((_IMAGE_RANK, 5)), "its input is not 4D or 5D"),),
    "If": (
        _rule(lambda node: _has_different_ranks(node) and not _is_folded(node), _RANKS),
        _doubt(lambda node: _has_different_ranks(node) and _is_folded(node), _RANKS),
    ),
    "LSTM": (
        _CELL,
        _rule(_integer("input_forget", default=0, allowed=(0,)), "its gates are coupled"),
        _rule(_integer("layout", default=0, allowed=(0,)), "its layout is batch first"),
    ),
    "LayerNormalization": (_rule(_is_output_present(1, 2), "its mean or deviation is read"),),
    "Loop": (
        _doubt(_is_growing, "it collects over a data-dependent number of iterations"),
        _rule(_reads_missing_condition, "its body reads a condition that it is not given"),
    ),
    "LpNormalization": (_NORM,),
    "LpPool": (*_POOL, _NORM),
    "MaxPool": (*_POOL, _rule(_is_output_present(1), "its indices are read")),
    "OneHot": (_doubt(_is_computed(1), "its depth is computed, not a constant"),),
    "RNN": (_CELL,),
    "Resize": (
        _doubt(
            _text("mode", default="nearest", allowed=("nearest", "linear")),
            "its mode is not listed: nearest and linear are",
        ),
        _rule(
            _text("coordinate_transformation_mode", default="half_pixel", allowed=_MODES),
            "its coordinate transformation is not supported",
        ),
        _rule(_integer("antialias", default=0, allowed=(0,)), "it is antialiased"),
        _rule(
            _text("keep_aspect_ratio_policy", default="stretch", allowed=("stretch",)),
            "it keeps the aspect ratio",
        ),
    ),
    "STFT": (_rule(_is_computed(1), "its frame step is computed, not a constant"),),
    "ScatterElements": (
        _rule(_text("reduction", default="none", allowed=("none",)), "it reduces what it scatters"),
    ),
    "ScatterND": (
        _rule(_text("reduction", default="none", allowed=("none",)), "it reduces what it scatters"),
    ),
    "Squeeze": (_FOLDED,),
    "TopK": (
        _rule(_is_constant_from(1, _TOPK_LIMIT + 1), f"K is greater than {_TOPK_LIMIT}"),
    ),
    "Unsqueeze": (_FOLDED,),
}  # fmt: skip


# What a GPU computes in, by its compute capability.

# By NVIDIA's support matrix of TensorRT-RTX 1.7 ("Hardware and Precision"); the builder of 1.7.1
# fails on exactly the others, at 7.5, 8.0, 8.6, 8.9 and 12.0 (measured 2026-11-26).
LEAST_BY_TYPE: Mapping[str, str] = {"BFLOAT16": "8.0", "INT4": "8.0", "FLOAT8E4M3FN": "8.9"}
_NAMES = {"BFLOAT16": "BF16", "INT4": "INT4", "FLOAT8E4M3FN": "FP8"}
_PRODUCTS = frozenset({"Gemm", "MatMul"})
LEAST_OF_PRODUCTS = "8.0"  # of float32, for TensorRT-RTX; convolutions run on 7.5


def find_unsupported_types(
    model: Model,
    origins: Mapping[str, NodeOrigin],
    library: TrtLibrary,
    capabilities: Sequence[str],
) -> list[TrtFinding]:
    """Report the types of a model that a GPU does not compute.

    Args:
        model: with known or inferred types.
        origins: the nodes' modules.
        library: what builds the engine.
        capabilities: of the GPUs that the engine is for, as `8.9`; none if they are not known.
    """
    if not capabilities:
        return []
    oldest = min(capabilities, key=_numbers_of)
    findings, known = NodeFindings(origins), set()
    for node in model.graph.all_nodes():
        for what, least in _needs_of(node, library):
            if _numbers_of(oldest) >= _numbers_of(least) or what in known:
                continue
            known.add(what)  # one node is named, not each
            text = f"{what} requires compute capability {least}, and {oldest} is below it"
            findings.add(node, TrtFault.CAPABILITY, text)
    return findings.found


def _needs_of(node: Node, library: TrtLibrary) -> Iterator[tuple[str, str]]:
    """Return what the node computes in and the least capability for it."""
    values = (*node.inputs, *node.outputs)
    for name in {element_type(value) for value in values if value is not None} & set(_NAMES):
        yield _NAMES[name], LEAST_BY_TYPE[name]
    product = node.op_type in _PRODUCTS and element_type(node.inputs[0]) == "FLOAT"
    if product and library is TrtLibrary.RTX:
        yield f"{node.op_type} of float32", LEAST_OF_PRODUCTS


def _numbers_of(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return int(major), int(minor)
