"""The pre-flight beside NVIDIA's parser: python -m modelc.benchmarks.tensorrt_parser --write PAGE.

Each model has one operator. It is looked at by the pre-flight's table, then parsed and built by
TensorRT-RTX in a child process. A false blocker is a model that the table rejects and the builder
builds; a miss is one that the table accepts without a warning and the parser or the builder
rejects. Operators for which TensorRT-RTX lacks a plugin are listed apart. Exits 1 where there is a
false blocker.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_TYPES = {
    "f": TensorProto.FLOAT, "h": TensorProto.FLOAT16, "g": TensorProto.BFLOAT16,
    "d": TensorProto.DOUBLE, "i": TensorProto.INT32, "l": TensorProto.INT64,
    "b": TensorProto.BOOL, "u": TensorProto.UINT8, "s": TensorProto.INT8, "w": TensorProto.INT16,
}  # fmt: skip
_IR_VERSION = 10


@dataclass(frozen=True, kw_only=True)
class OneOperator:
    """A model of one operator. An input is `f2x3` for a tensor, or an array for a constant."""

    name: str
    operator: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]
    outputs: str = "f"
    opset: int = 20

    def make(self) -> onnx.ModelProto:
        """Make the model; outputs have no shape."""
        ends, constants, names = [], [], []
        for index, one in enumerate(self.inputs):
            name = f"x{index}"
            if one is None:
                names.append("")
                continue
            names.append(name)
            if isinstance(one, str):
                sizes = [int(size) for size in one[1:].split("x") if size]
                ends.append(helper.make_tensor_value_info(name, _TYPES[one[0]], sizes))
            else:
                constants.append(numpy_helper.from_array(np.asarray(one), name))
        made = [f"y{index}" for index in range(len(self.outputs))]
        node = helper.make_node(self.operator, names, made, name="node", **self.attributes)
        results = [
            helper.make_tensor_value_info(name, _TYPES[letter], None)
            for name, letter in zip(made, self.outputs, strict=True)
        ]
        graph = helper.make_graph([node], self.name, ends, results, constants)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def one(name: str, *inputs: Any, out: str = "f", opset: int = 20, **attributes: Any) -> OneOperator:
    """Make an entry; `name` is the operator, then a colon and what is special about it."""
    return OneOperator(
        name=name, operator=name.partition(":")[0], inputs=inputs, attributes=attributes,
        outputs=out, opset=opset,
    )  # fmt: skip


_L = np.int64
_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid "
    "HardSwish Identity LeakyRelu Log LogSoftmax Mish Neg Reciprocal Relu Round Selu Shrink "
    "Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Hardmax "
    "GlobalAveragePool GlobalMaxPool LpNormalization"
)
_BINARY = "Add Sub Mul Div Pow Max Min Mod"
_COMPARED = "Equal Greater GreaterOrEqual Less LessOrEqual"
_REDUCED = (
    "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceSumSquare"
)
# For these TensorRT has a plugin of its own, which the wheels of TensorRT-RTX leave out.
_PLUGINS = ("DeformConv", "NonMaxSuppression", "NonZero", "RoiAlign")
_IMAGE, _KERNEL = "f1x4x8x8", np.ones((6, 4, 3, 3), np.float32)


def operators() -> Iterator[OneOperator]:
    """Yield every model."""
    yield from (one(name, "f1x4x8x8") for name in _UNARY.split())
    yield from (one(f"{name}:half", "h1x4", out="h") for name in ("Gelu", "Erf", "Softmax", "Mish"))
    yield from (one(f"{name}:bf16", "g1x4", out="g") for name in ("Gelu", "Softmax", "Sin", "Mish"))
    yield from (one(f"{name}:int32", "i2x4", out="i") for name in ("Abs", "Neg", "Sign", "Relu"))
    yield from (one(f"{name}:int64", "l2x4", out="l") for name in ("Abs", "Neg", "Sign"))
    for name in _BINARY.split():
        float_mod: dict[str, Any] = {"fmod": 1} if name == "Mod" else {}
        yield one(name, "f2x4", "f2x4", **float_mod)
        yield one(f"{name}:int64", "l2x4", "l2x4", out="l")
    yield one("PRelu", "f2x4", np.float32(0.5))
    yield from (one(f"{name}:bool", "b2", "b2", out="b") for name in ("And", "Or", "Xor"))
    for name in _COMPARED.split():
        yield one(name, "f2x4", "f2x4", out="b")
        yield one(f"{name}:int64", "l2x4", "l2x4", out="b")
    yield one("Equal:bool", "b2x4", "b2x4", out="b")
    yield from (one(name, "f2x4", np.array([1], _L)) for name in _REDUCED.split())
    yield from (one(f"{name}:computed axes", "f2x4", "l1") for name in _REDUCED.split()[:2])
    yield one("ReduceMax:bool", "b2x4", np.array([1], _L), out="b")
    yield one("ReduceMax:int64", "l2x4", np.array([1], _L), out="l")
    for group in (_matrix, _convolutions, _images, _indices, _shapes, _others):
        yield from group()


def _matrix() -> Iterator[OneOperator]:
    yield from (one(f"MatMul:{t}", f"{t}2x3", f"{t}3x4", out=t) for t in "fhgil")
    yield from (one(f"Gemm:{t}", f"{t}2x3", f"{t}3x4", f"{t}4", out=t) for t in "fhg")
    yield one("Einsum", "f2x3", "f3x4", equation="ij,jk->ik")
    yield one("Einsum:ellipsis", "f5x2x3", "f5x3x4", equation="...ij,...jk->...ik")
    yield one("Attention:4D", *["f1x2x8x16"] * 3, opset=23)
    yield one("Attention:4D half", *["h1x2x8x16"] * 3, out="h", opset=23)
    yield one("Attention:3D", *["f1x8x32"] * 3, q_num_heads=2, kv_num_heads=2, opset=23)
    yield one("Attention:softcap", *["h1x2x8x16"] * 3, out="h", softcap=5.0, opset=23)
    yield one("RMSNormalization", "f2x4", np.ones(4, np.float32), opset=23)
    yield one("Swish", "f2x4", opset=24)
    yield one("LayerNormalization", "f2x4", np.ones(4, np.float32), np.ones(4, np.float32))
    yield one("LayerNormalization:mean", "f2x4", np.ones(4, np.float32), out="ff")
    halves = np.ones(8, np.float32)
    yield one("GroupNormalization", "f1x8x4x4", halves, halves, num_groups=2, opset=21)
    yield one("InstanceNormalization", "f1x8x4x4", halves, halves)
    yield one("BatchNormalization", "f1x8x4x4", *[halves] * 4)
    yield one("BatchNormalization:training", "f1x8x4x4", *[halves] * 4, out="fff", training_mode=1)
    yield one("MeanVarianceNormalization", _IMAGE)
    yield one("LRN", _IMAGE, size=3)
    yield one("Trilu", "f4x4")
    yield one("Trilu:int64", "l4x4", out="l")
    yield one("CumSum", "f2x4", np.array(1, _L))
    yield one("CumSum:computed axis", "f2x4", "l")
    yield one("Det", "f4x4")


def _convolutions() -> Iterator[OneOperator]:
    yield from (one(f"Conv:{t}", f"{t}1x4x8x8", f"{t}6x4x3x3", out=t) for t in "fhg")
    yield one("Conv:1D", "f1x4x8", np.ones((6, 4, 3), np.float32))
    yield one("Conv:3D", "f1x4x8x8x8", np.ones((6, 4, 3, 3, 3), np.float32))
    yield one("Conv:groups", _IMAGE, np.ones((4, 1, 3, 3), np.float32), group=4)
    yield one("Conv:computed weight", _IMAGE, "f6x4x3x3")
    yield one("ConvTranspose", _IMAGE, np.ones((4, 6, 3, 3), np.float32), strides=[2, 2])
    yield one("ConvTranspose:1D", "f1x4x8", np.ones((4, 6, 3), np.float32))
    yield one("ConvInteger", "s1x4x8x8", np.ones((6, 4, 3, 3), np.int8), out="i")
    yield one("MaxPool", _IMAGE, kernel_shape=[2, 2])
    yield one("MaxPool:1D", "f1x4x8", kernel_shape=[2])
    yield one("MaxPool:3D", "f1x4x8x8x8", kernel_shape=[2, 2, 2])
    yield one("MaxPool:dilated", _IMAGE, kernel_shape=[2, 2], dilations=[2, 2])
    yield one("MaxPool:indices", _IMAGE, kernel_shape=[2, 2], out="fl")
    yield one("MaxPool:ceil", _IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    yield one("AveragePool", _IMAGE, kernel_shape=[2, 2])
    yield one("AveragePool:dilated", _IMAGE, kernel_shape=[2, 2], dilations=[2, 2])
    yield one("AveragePool:count pad", _IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1],
              count_include_pad=1)  # fmt: skip
    yield one("LpPool", _IMAGE, kernel_shape=[2, 2])


def _images() -> Iterator[OneOperator]:
    scales = np.array([1, 1, 2, 2], np.float32)
    for mode in ("nearest", "linear", "cubic"):
        yield one(f"Resize:{mode}", _IMAGE, None, scales, mode=mode)
    for how in ("align_corners", "asymmetric", "pytorch_half_pixel", "tf_crop_and_resize",
                "half_pixel_symmetric"):  # fmt: skip
        yield one(f"Resize:{how}", _IMAGE, np.zeros(8, np.float32), scales, mode="linear",
                  coordinate_transformation_mode=how)  # fmt: skip
    yield one("Resize:antialias", _IMAGE, None, scales / 2, mode="linear", antialias=1)
    yield one("Resize:aspect ratio", _IMAGE, None, None, np.array([4, 4], _L), axes=[2, 3],
              keep_aspect_ratio_policy="not_larger")  # fmt: skip
    yield one("GridSample", _IMAGE, "f1x5x5x2")
    yield one("GridSample:cubic", _IMAGE, "f1x5x5x2", mode="cubic")
    yield one("GridSample:5D", "f1x4x8x8x8", "f1x5x5x5x3")
    yield one("AffineGrid", "f1x2x3", np.array([1, 4, 8, 8], _L))
    yield one("DepthToSpace", _IMAGE, blocksize=2)
    yield one("SpaceToDepth", _IMAGE, blocksize=2)
    yield one("Upsample", _IMAGE, scales, opset=9)
    yield one("Pad", _IMAGE, np.array([0, 0, 1, 1, 0, 0, 1, 1], _L))
    for mode in ("reflect", "edge", "wrap"):
        yield one(f"Pad:{mode}", _IMAGE, np.array([0, 0, 1, 1, 0, 0, 1, 1], _L), mode=mode)
    yield one("DeformConv", _IMAGE, _KERNEL, "f1x18x6x6")
    yield one("RoiAlign", _IMAGE, "f3x4", "l3")
    yield one("NonMaxSuppression", "f1x6x4", "f1x2x6", np.array([3], _L), out="l")
    yield one("MaxUnpool", "f1x4x4x4", "l1x4x4x4", kernel_shape=[2, 2], strides=[2, 2])
    yield one("Col2Im", "f1x36x36", np.array([8, 8], _L), np.array([3, 3], _L))


def _indices() -> Iterator[OneOperator]:
    yield from (one(f"Gather:{t}", f"{t}5x4", "l2", out=t) for t in "fhglib")
    yield one("Gather:uint8", "u5x4", "l2", out="u")
    yield one("GatherElements", "f5x4", "l5x2", axis=1)
    yield one("GatherND", "f5x4", "l3x1")
    yield one("GatherND:batch", "f5x4", "l5x1", batch_dims=1)
    for name in ("ScatterElements", "ScatterND"):
        shapes = ("l5x2", "f5x2") if name == "ScatterElements" else ("l3x1", "f3x4")
        for reduction in ("none", "add", "mul", "max"):
            yield one(f"{name}:{reduction}", "f5x4", *shapes, reduction=reduction)
    yield one("OneHot", "l5", np.array(7, _L), np.array([0, 1], np.float32))
    yield one("OneHot:computed depth", "l5", "l", np.array([0, 1], np.float32))
    for count in (3, 3840, 3841):
        yield one(f"TopK:{count}", "f2x5000", np.array([count], _L), out="fl")
    yield one("TopK:unsorted", "f2x50", np.array([5], _L), out="fl", sorted=0)
    yield one("TopK:computed", "f2x50", "l1", out="fl")
    yield one("TopK:int64", "l2x50", np.array([5], _L), out="ll")
    yield one("ArgMax", "f2x5", out="l")
    yield one("ArgMax:last", "f2x5", out="l", select_last_index=1)
    yield one("ArgMin:int64", "l2x5", out="l")
    yield one("NonZero", "f2x5", out="l")
    yield one("Unique", "f5")
    yield one("Compress", "f5x4", "b5", axis=0)
    yield one("Where", "b2x4", "f2x4", "f2x4")
    yield one("Where:bool", "b2x4", "b2x4", "b2x4", out="b")
    yield one("ReverseSequence", "f4x3x2", "l3")
    yield one("TensorScatter", "f1x2x8x4", "f1x2x2x4", "l1", opset=24)


def _shapes() -> Iterator[OneOperator]:
    yield one("Reshape", "f2x6", np.array([3, 4], _L))
    yield one("Reshape:computed", "f1x1", "l2")
    yield one("Expand", "f1x6", np.array([3, 6], _L))
    yield one("Expand:computed", "f1x1", "l2")
    yield one("Tile", "f2x3", np.array([2, 2], _L))
    yield one("Flatten", "f2x3x4")
    yield one("Squeeze", "f1x3", np.array([0], _L))
    yield one("Squeeze:computed", "f1x3", "l1")
    yield one("Unsqueeze", "f3", np.array([0], _L))
    yield one("Transpose", "f2x3", perm=[1, 0])
    yield one("Transpose:bool", "b2x3", out="b", perm=[1, 0])
    yield one("Concat", "f2x3", "f2x3", axis=0)
    yield one("Split", "f6x3", np.array([2, 4], _L), out="ff")
    yield one("Split:num_outputs", "f7x3", out="ff", num_outputs=2)
    yield one("Slice", "f6x3", np.array([1], _L), np.array([4], _L), np.array([0], _L))
    yield one("Slice:negative step", "f6x3", np.array([-1], _L), np.array([-7], _L),
              np.array([0], _L), np.array([-1], _L))  # fmt: skip
    yield one("Slice:computed", "f6x3", "l1", np.array([5], _L), np.array([0], _L))
    yield one("Shape", "f2x3", out="l")
    yield one("Shape:part", "f2x3", out="l", start=1)
    yield one("Size", "f2x3", out="l")
    yield one("ConstantOfShape", np.array([2, 3], _L))
    yield one("ConstantOfShape:computed", "l2")
    yield one("EyeLike", "f3x3")
    yield one("Range", np.array(0, _L), "l", np.array(1, _L), out="l")
    yield one("RandomNormalLike", "f2x3")
    yield one("RandomUniform", shape=[2, 3])
    yield one("Bernoulli", "f2x3")
    yield one("Dropout", "f2x3")


def _others() -> Iterator[OneOperator]:
    for source, target in ("fh", "fl", "lf", "fb", "bf", "fu", "uf", "fd", "fg", "gf", "lw"):
        yield one(f"Cast:{source} to {target}", f"{source}2x3", out=target, to=_TYPES[target])
    yield one("CastLike", "f2x3", "h1", out="h")
    yield one("Clip", "f2x3", np.float32(0), np.float32(1))
    yield one("Clip:int64", "l2x3", np.int64(0), np.int64(5), out="l")
    yield one("IsNaN", "f2x3", out="b")
    yield one("IsInf", "f2x3", out="b")
    yield one("Not", "b2", out="b")
    yield one("Sum", "f2x3", "f2x3", "f2x3")
    yield one("Mean", "f2x3", "f2x3")
    for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield one(name, "l2x3", "l2x3", out="l")
    yield one("BitShift", "u2x3", "u2x3", out="u", direction="LEFT")
    for name, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        weights = np.ones((1, gates * 5, 3), np.float32), np.ones((1, gates * 5, 5), np.float32)
        yield one(name, "f7x2x3", *weights, hidden_size=5)
        both = tuple(np.concatenate([part, part]) for part in weights)
        yield one(f"{name}:both ways", "f7x2x3", *both, hidden_size=5, direction="bidirectional")
    yield one("HannWindow", np.array(16, _L))
    yield one("DFT", "f1x16x1", np.array(16, _L))
    yield one("STFT", "f1x64x1", np.array(16, _L), np.ones(16, np.float32))
    yield one("QuantizeLinear", "f2x3", np.float32(0.1), np.int8(0), out="s")
    yield one("QuantizeLinear:uint8", "f2x3", np.float32(0.1), np.uint8(3), out="u")
    yield one("DynamicQuantizeLinear", "f2x3", out="ufu")
    yield one("DequantizeLinear:int8", "s2x3", np.float32(0.1), np.int8(0))
    yield one("MatMulInteger", "s2x3", np.ones((3, 4), np.int8), out="i")
    yield one("Multinomial", "f2x3", out="i", sample_size=4)


@dataclass(frozen=True, kw_only=True)
class ParserCase:
    """A model: what the table says of it, and the errors of the parser or the builder."""

    name: str
    blockers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    built: bool = False
    error: str = ""

    @property
    def finding(self) -> str:
        """How table and builder agree."""
        if self.built:
            return "false blocker" if self.blockers else "right"
        if self.name.partition(":")[0] in _PLUGINS:
            return "plugin"
        return "right" if self.blockers else "warned" if self.warnings else "miss"


def measure(model: OneOperator, timeout: float = 120.0) -> ParserCase:
    """Look at one model by the table, then by the parser and the builder, in a child process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.make().SerializeToString())
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "modelc.benchmarks.tensorrt_parser", "--look",
             str(path)],
            capture_output=True, text=True, check=False, timeout=timeout,
        )  # fmt: skip
    if ran.returncode != 0:
        last = (ran.stderr.splitlines() or [""])[-1]
        return ParserCase(name=model.name, error=f"exit code {ran.returncode}: {last}")
    return ParserCase(name=model.name, **json.loads(ran.stdout.splitlines()[-1]))


def look(path: Path) -> dict[str, Any]:
    """Return what the table, and the real parser and builder, say of a file."""
    import tensorrt_rtx as trt

    from modelc.converters.trt.trt_callbacks import make_error_log
    from modelc.converters.trt.trt_preflight import look_up_table

    log = make_error_log(trt)
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    built, error = False, ""
    if parser.parse_from_file(str(path)):
        config, profile = builder.create_builder_config(), builder.create_optimization_profile()
        for tensor in map(network.get_input, range(network.num_inputs)):
            if tensor.is_shape_tensor:
                count = max(1, *tensor.shape) if len(tensor.shape) else 1
                profile.set_shape_input(tensor.name, *[[1] * count] * 3)
        config.add_optimization_profile(profile)
        built = builder.build_serialized_network(network, config) is not None
        error = "" if built else log.reason
    else:
        error = "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors))
    blockers, warnings = look_up_table(path)
    return {"blockers": blockers, "warnings": warnings, "built": built, "error": error}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every model and write the table; 1 where there is a false blocker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--look", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", default="*", help="names, as 'Resize*'")
    parser.add_argument("--write", type=Path, help="the table to write")
    args = parser.parse_args(argv)
    if args.look is not None:
        print(json.dumps(look(args.look)))
        return 0
    found = [measure(model) for model in operators() if fnmatch(model.name, args.only)]
    text = make_page(found)
    print(text)
    if args.write is not None:
        args.write.write_text(text)
    return int(any(one.finding == "false blocker" for one in found))


def make_page(found: Sequence[ParserCase]) -> str:
    """Return the counts, and every model on which table and builder do not agree."""
    counts = Counter(one.finding for one in found)
    lines = [f"{len(found)} models: " + ", ".join(f"{n} {name}" for name, n in counts.items()), ""]
    for one in found:
        if one.finding != "right":
            said = "; ".join(one.blockers) or one.error
            lines.append(f"- {one.finding}: {one.name}: {' '.join(said.split())[:160]}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
