"""The operators and types that TensorRT's ONNX parser takes, as its own table says.

Taken from `docs/operators.md` of onnx-tensorrt for TensorRT 10.15 (opset 9 to 24); that opset 25
is the last of 11.x, from NVIDIA's ONNX opset guide:
https://docs.nvidia.com/deeplearning/tensorrt/latest/reference/onnx-opset-guide.html
The table lists types as tested, not as enforced: an operator that is not in it is refused, a type
that is not listed may still pass.
"""

from __future__ import annotations

from collections.abc import Mapping

TABLE_VERSION = "10.15"
TABLE_SOURCE = (
    f"onnx-tensorrt docs/operators.md for TensorRT {TABLE_VERSION} (opset 9 to 24); "
    "NVIDIA's ONNX opset guide for 11.x (to opset 25)"
)
LEAST_OPSET, TABLE_OPSET, LAST_OPSET = 9, 24, 25

# Types of tensors that TensorRT has at all, by ONNX's names; DOUBLE becomes FLOAT.
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
    "RandomUniformLike Reciprocal Resize RotaryEmbedding Round ScaledTanh Scan Selu Sigmoid Sin "
    "Sinh Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Upsample",
    _FLOATS | {"INT32"}: "TensorScatter",
    _FLOATS | _QUANTIZED: "Attention",
    _NUMBERS: "Abs Add ArgMax ArgMin DepthToSpace Div Equal Greater GreaterOrEqual IsNaN Less "
    "LessOrEqual Max Min Mod Mul Neg Pad Pow Range ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
    "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Scatter "
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
REFUSED = frozenset({
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
# What has bodies: all types go in, and the bodies are looked at by themselves.
BODIES = frozenset({"If", "Loop", "Scan"})
# The size of what they make depends on the data that they get.
DATA_DEPENDENT = frozenset({"NonMaxSuppression", "NonZero"})
# Domains of NVIDIA's own operators, which the parser knows: TRT_FP8QuantizeLinear and the like.
OWN_DOMAINS = frozenset({"trt"})
_STANDARD_PLUGIN = "_TRT"


def is_standard_plugin(name: str) -> bool:
    """Whether an operator is one of the plugins that TensorRT ships, as EfficientNMS_TRT."""
    return name.endswith(_STANDARD_PLUGIN)
