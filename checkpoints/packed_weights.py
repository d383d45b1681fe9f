"""Integers of weights as GPTQ, AWQ, compressed-tensors and ModelOpt pack them into tensors.

A layer is several tensors of one prefix. Nothing here trusts a file: dtypes and shapes of all parts
must fit each other, and what cannot be kept exactly is an error that names the method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.contract import Array
from ..core.errors import CheckpointError, ErrorCode
from ..core.weights import QuantizedMatrix

GPTQ, AWQ, COMPRESSED, MODELOPT = "gptq", "awq", "compressed-tensors", "modelopt"
_BITS = (4, 8)
_WORD = 32  # bits
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a word AWQ stores each of eight columns
_MATRIX = 2  # dims
_GROUP = "group_size"  # inputs that share a scale, as a config names it; -1 for all
_FLOAT_HINT = (
    "give the folder of its float weights with --int4 or --int8-weights, or quantize its weights "
    "alone to integers of 4 or 8 bits, without act-order"
)


@dataclass(frozen=True, kw_only=True)
class PackedFormat:
    """How a folder's layers are packed.

    `parts` are the suffixes of a layer's tensors, the integers first; a layer has those of `given`.
    `unpack` reads them. `bits` are the widths that the folder's config names.
    """

    method: str
    bits: tuple[int, ...]
    parts: tuple[str, ...]
    unpack: Callable[[PackedLayer], QuantizedMatrix]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PackedLayer:
    """The tensors of one layer as arrays, by suffix."""

    name: str
    packing: PackedFormat
    tensors: Mapping[str, Array]

    def read(self, suffix: str, kinds: str, dims: int = _MATRIX) -> Array:
        """Return a tensor whose dtype is of these numpy kinds.

        Raises:
            CheckpointError: it is missing or has another form.
        """
        array = self.tensors.get(suffix)
        if array is None or array.ndim != dims or array.dtype.kind not in kinds or not array.size:
            form = "missing" if array is None else f"{array.dtype.name}{list(array.shape)}"
            raise self.error(f"{suffix} is {form}")
        return array

    def read_words(self, suffix: str) -> Array:
        """Return a matrix of 32-bit words.

        Raises:
            CheckpointError: it is missing or has another form.
        """
        array = self.read(suffix, "iu")
        if array.dtype.itemsize * 8 != _WORD:
            raise self.error(f"{suffix} is {array.dtype.name}")
        return array

    def make(
        self, integers: Array, scales: Array, zeros: Array | None, bits: int
    ) -> QuantizedMatrix:
        """Return the matrix of signed integers (outputs, inputs), scales (outputs, blocks).

        Raises:
            CheckpointError: the shapes do not fit each other.
        """
        import numpy as np

        scales = np.ascontiguousarray(scales, np.float32)
        zeros = np.zeros(scales.shape, np.int8) if zeros is None else zeros
        if integers.dtype != np.int8 or not np.array_equal(zeros, zeros.astype(np.int8)):
            found = f"{integers.dtype.name}, zero points {zeros.min()} to {zeros.max()}"
            raise self.error(f"its integers are {found}, which do not fit 8 bits")
        rows, columns = integers.shape
        shapes = f"{list(integers.shape)}, {list(scales.shape)} and {list(zeros.shape)}"
        if scales.shape != zeros.shape or scales.shape[0] != rows or columns % scales.shape[1]:
            raise self.error(f"integers, scales and zero points of {shapes} do not fit each other")
        group = self.packing.options.get(_GROUP)
        if group is not None and scales.shape[1] != (-(-columns // group) if group > 0 else 1):
            found = f"its scales are of groups of {columns // scales.shape[1]} inputs"
            raise self.error(f"{found}, and the config has groups of {group}")
        if not np.isfinite(scales).all():
            raise self.error("a scale is NaN or Inf")
        return QuantizedMatrix(
            integers=np.ascontiguousarray(integers), scales=scales,
            zeros=zeros.astype(np.int8), bits=bits, source=self.packing.method,
        )  # fmt: skip

    def find_bits(self, packed: int, columns: int) -> int:
        """Return the width of integers of which `columns` fill so many words.

        Raises:
            CheckpointError: none or several of the config's do.
        """
        fitting = [one for one in self.packing.bits if -(-columns * one // _WORD) == packed]
        if len(fitting) != 1:
            widths = " or ".join(map(str, self.packing.bits))
            raise self.error(f"{packed} words do not hold {columns} integers of {widths} bits")
        return fitting[0]

    def check_order(self, suffix: str, columns: int, blocks: int) -> None:
        """Check that the inputs of a block are neighbours.

        Raises:
            CheckpointError: act-order put them elsewhere.
        """
        import numpy as np

        if suffix not in self.tensors:
            return
        order = self.read(suffix, "iu", 1)
        if columns % blocks or not np.array_equal(order, np.arange(columns) // (columns // blocks)):
            raise self.error("its inputs are not in the order of their groups (act-order)")

    def error(self, problem: str) -> CheckpointError:
        """Return the error for this layer."""
        return CheckpointError(
            f"{self.name} of {self.packing.method} cannot be read: {problem}",
            hint=_FLOAT_HINT,
            code=ErrorCode.UNSUPPORTED,
        )


def _unpack_words(words: Array, bits: int) -> Array:
    """Return the unsigned integers of 32-bit words along the last axis, the lowest bits first."""
    import numpy as np

    held = np.ascontiguousarray(words).view(np.uint32)
    shifts = np.arange(0, _WORD, bits, dtype=np.uint32)
    parts = (held[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return parts.astype(np.uint8).reshape(*words.shape[:-1], -1)


def _to_signed(unsigned: Array, bits: int) -> Array:
    import numpy as np

    found: Array = (unsigned.astype(np.int16) - (1 << (bits - 1))).astype(np.int8)
    return found


def _unpack_gptq(layer: PackedLayer) -> QuantizedMatrix:
    """Read (inputs / n, outputs) words of integers, and (groups, outputs / n) of zero points.

    The first format stores a zero point less one.
    """
    import numpy as np

    (bits,) = layer.packing.bits
    words, scales = layer.read_words("qweight"), layer.read("scales", "f")
    integers = _unpack_words(words.T, bits)  # (outputs, inputs)
    rows, columns = integers.shape
    zeros = _unpack_words(layer.read_words("qzeros"), bits)[:, :rows].astype(np.int16)
    zeros += layer.packing.options["offset"]
    if zeros.max() >= 1 << bits:
        raise layer.error("a zero point is beyond the integers, which readers of GPTQ disagree on")
    layer.check_order("g_idx", columns, scales.shape[0])
    return layer.make(_to_signed(integers, bits), scales.T, (zeros - (1 << (bits - 1))).T, bits)


def _unpack_awq(layer: PackedLayer) -> QuantizedMatrix:
    """Read (inputs, outputs / 8) words of integers, and (groups, outputs / 8) of zero points."""
    bits = 4
    scales = layer.read("scales", "f")
    integers, zeros = (
        _unpack_words(layer.read_words(suffix), bits)
        .reshape(-1, scales.shape[1] // 8, 8)[:, :, list(_AWQ_ORDER)]
        .reshape(-1, scales.shape[1])
        if layer.read_words(suffix).shape[1] * 8 == scales.shape[1]
        else None
        for suffix in ("qweight", "qzeros")
    )
    if integers is None or zeros is None:
        raise layer.error(f"its words do not hold {scales.shape[1]} outputs")
    return layer.make(_to_signed(integers.T, bits), scales.T, _to_signed(zeros.T, bits), bits)


def _unpack_compressed(layer: PackedLayer) -> QuantizedMatrix:
    """Read words of (outputs, inputs), or plain bytes; zero points are packed along outputs."""
    scales = layer.read("weight_scale", "f")
    zeros: Array | None = None
    if "weight_packed" not in layer.tensors:
        integers, bits = layer.read("weight", "i"), 8
        if "weight_zero_point" in layer.tensors:
            zeros = layer.read("weight_zero_point", "i")
        layer.check_order("weight_g_idx", integers.shape[1], scales.shape[1])
        return layer.make(integers, scales, zeros, bits)
    words = layer.read_words("weight_packed")
    rows, columns = map(int, layer.read("weight_shape", "i", 1)[:2])
    if words.shape[0] != rows or columns < 1:
        raise layer.error(
            f"its words of {list(words.shape)} do not hold {[rows, columns]} integers"
        )
    bits = layer.find_bits(words.shape[1], columns)
    integers = _to_signed(_unpack_words(words, bits)[:, :columns], bits)
    if "weight_zero_point" in layer.tensors:
        packed = layer.read_words("weight_zero_point")
        zeros = _to_signed(_unpack_words(packed.T, bits)[:, :rows], bits).T
    layer.check_order("weight_g_idx", columns, scales.shape[1])
    return layer.make(integers, scales, zeros, bits)


def _unpack_modelopt(layer: PackedLayer) -> QuantizedMatrix:
    """Read bytes of two outputs each, the even one in the lower half, or one byte a weight."""
    import numpy as np

    scales = np.asarray(layer.tensors.get("weight_scale"))
    scales = scales[:, None] if scales.ndim == 1 else layer.read("weight_scale", "f")
    (bits,) = layer.packing.bits
    if bits == max(_BITS):
        return layer.make(layer.read("weight", "i"), scales, None, bits)
    packed = layer.read("weight", "u")
    halves = np.stack([packed & 0x0F, packed >> 4], axis=1).reshape(-1, packed.shape[1])
    signed = ((halves ^ 8).astype(np.int8) - 8).astype(np.int8)  # two's complement
    return layer.make(signed, scales, None, bits)


def find_format(settings: Mapping[str, Any], called: str) -> PackedFormat:
    """Return how the layers of a `quantization_config` are packed.

    Args:
        settings: of config.json.
        called: the folder, in messages.

    Raises:
        CheckpointError: modelc does not keep such integers.
    """
    method = str(settings.get("quant_method", "an unknown method"))
    reader = _FORMATS.get(method)
    problem = "which modelc does not read" if reader is None else ""
    found = None
    if reader is not None:
        try:
            found, problem = reader(settings)
        except (AttributeError, TypeError, ValueError):
            problem = "with settings of another form than that method writes"
    if found is None or problem:
        raise CheckpointError(
            f"{called} is quantized by {method}, {problem}",
            hint=_FLOAT_HINT,
            code=ErrorCode.UNSUPPORTED,
        )
    return found


_Found = tuple[PackedFormat | None, str]  # a format, or why there is none


def _gptq_format(settings: Mapping[str, Any]) -> _Found:
    bits, version = int(settings.get("bits", 0)), str(settings.get("checkpoint_format", GPTQ))
    if bits not in _BITS or version not in (GPTQ, "gptq_v2") or settings.get("dynamic"):
        return None, f"with {bits} bits in the format {version}: only 4 and 8 in {GPTQ} are kept"
    return PackedFormat(
        method=GPTQ, bits=(bits,), parts=("qweight", "qzeros", "scales", "g_idx"),
        unpack=_unpack_gptq, options={"offset": int(version == GPTQ), **_read_group(settings)},
    ), ""  # fmt: skip


def _awq_format(settings: Mapping[str, Any]) -> _Found:
    bits = int(settings.get("bits", settings.get("w_bit", 0)))
    version = str(settings.get("version", settings.get("format", "gemm"))).lower()
    if bits != min(_BITS) or version != "gemm":
        return None, f"with {bits} bits in the format {version}: only 4 in gemm are kept"
    parts = ("qweight", "qzeros", "scales")
    return PackedFormat(
        method=AWQ, bits=(bits,), parts=parts, unpack=_unpack_awq, options=_read_group(settings)
    ), ""


def _read_group(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return the size of groups, if the config has it; raises ValueError if it is none."""
    stated = settings.get(_GROUP, settings.get("q_group_size"))
    size = None if stated is None else int(stated)
    if size is not None and size < 1 and size != -1:
        raise ValueError(f"groups of {size}")
    return {} if size is None else {_GROUP: size}


def _find_compressed(settings: Mapping[str, Any]) -> _Found:
    kind, bits = str(settings.get("format", "")), set()
    for name in ("kv_cache_scheme", "transform_config", "sparsity_config"):
        if settings.get(name):
            return None, f"with a {name}, which is not kept"
    for group in settings.get("config_groups", {}).values():
        weights = group.get("weights") or {}
        if group.get("input_activations") or group.get("output_activations"):
            return None, "with activations of integers or 8-bit floats, which are not kept"
        if weights.get("type", "int") != "int" or weights.get("num_bits") not in _BITS:
            text = f"{weights.get('num_bits')} bits of {weights.get('type')}"
            return None, f"with weights of {text}: only integers of 4 and 8 bits are kept"
        kind = str(group.get("format") or kind)
        bits.add(int(weights["num_bits"]))
    if kind not in ("pack-quantized", "int-quantized", "naive-quantized") or not bits:
        return None, f"in the format {kind}: only pack-quantized and int-quantized are kept"
    parts = ("weight_packed", "weight", "weight_scale", "weight_zero_point", "weight_shape",
             "weight_g_idx")  # fmt: skip
    return PackedFormat(
        method=COMPRESSED, bits=tuple(sorted(bits)), parts=parts, unpack=_unpack_compressed
    ), ""


def _modelopt_format(settings: Mapping[str, Any]) -> _Found:
    algorithm = str(settings.get("quant_algo"))
    bits = {"W4A16_AWQ": 4, "W8A16": 8}.get(algorithm)
    if bits is None or settings.get("kv_cache_quant_algo") or settings.get("kv_cache_scheme"):
        return (
            None,
            f"with {algorithm}: only W4A16_AWQ and W8A16 without a quantized cache are kept",
        )
    parts = ("weight", "weight_scale", "pre_quant_scale")
    return PackedFormat(method=MODELOPT, bits=(bits,), parts=parts, unpack=_unpack_modelopt), ""


_FORMATS: Mapping[str, Callable[[Mapping[str, Any]], _Found]] = {
    GPTQ: _gptq_format,
    AWQ: _awq_format,
    COMPRESSED: _find_compressed,
    MODELOPT: _modelopt_format,
}
