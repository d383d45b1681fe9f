"""An ONNX graph evaluated node by node with numpy and torch: in float64, or with sequential sums.

ONNX's own evaluator computes in the dtype that it is given, but windows and resizes element by
element in Python; these are torch's and numpy's here. What it cannot compute exactly is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.contract import Array, Feed, Outputs
from ..core.errors import RunnerError, first_line
from .onnx_guard import all_tensors
from .onnx_ordered_sums import ORDERED_SUMS
from .onnx_topology import model_graphs, model_nodes

if TYPE_CHECKING:
    import onnx

_FLOAT, _DOUBLE, _HALVES = 1, 11, (10, 16)  # TensorProto.DataType
_MAX_BYTES = 1 << 30  # of weights in float32: a copy in float64 takes twice as much
_ROUNDING = {
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul",
    "ConvInteger", "MatMulInteger",
}  # fmt: skip
_RANDOM = {
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial",
    "Bernoulli",
}  # fmt: skip
# Operators that ONNX's evaluator computes in float32 or element by element in Python.
_UNSUITED = {
    "GridSample", "AffineGrid", "MelWeightMatrix", "RoiAlign", "MaxRoiPool", "DeformConv", "LpPool",
    "MaxUnpool", "Upsample", "DFT", "STFT", "TfIdfVectorizer",
}  # fmt: skip


class GraphEvaluator:
    """Evaluates a model; `double` computes in float64, otherwise sums and means are sequential.

    Raises:
        RunnerError: the model has an operator, a type or a size that it does not compute.
    """

    def __init__(self, path: Path, *, double: bool) -> None:
        import onnx
        from onnx.reference import ReferenceEvaluator

        self._double = double
        try:
            model = onnx.load(str(path))
            _check_exact(model)
            if double:
                _to_double(model)
            self._outputs = [value.name for value in model.graph.output]
            self._evaluator = ReferenceEvaluator(model, new_ops=_make_operators(summing=not double))
        except RunnerError:
            raise
        except Exception as error:
            raise _make_error(error) from error

    def run(self, feed: Feed) -> Outputs:
        """Run one feed.

        Raises:
            RunnerError: an operator does not run, or a float output is not of the dtype.
        """
        import numpy as np

        given = {
            name: array.astype(np.float64) if self._double and array.dtype.kind == "f" else array
            for name, array in feed.items()
        }
        try:
            with np.errstate(all="ignore"):
                found = self._evaluator.run(self._outputs, given)
        except Exception as error:
            raise _make_error(error) from error
        outputs = {
            name: np.asarray(value) for name, value in zip(self._outputs, found, strict=True)
        }
        for name, array in outputs.items():
            if self._double and array.dtype.kind == "f" and array.dtype != np.float64:
                raise RunnerError(f"output {name!r} is {array.dtype}", hint=_HINT)
        return outputs


_HINT = "the limits of the precision apply in place of the noise floor"


def _make_error(error: Exception) -> RunnerError:
    return RunnerError(f"ONNX's evaluator: {first_line(error)}", hint=_HINT)


def _check_exact(model: onnx.ModelProto) -> None:
    """Check that float64 removes the roundoff of the model, and that it is small enough.

    Raises:
        RunnerError: it rounds on purpose, or is unsuited.
    """
    domains = sorted({node.domain for node in model_nodes(model)} - {"", "ai.onnx", "ai.onnx.ml"})
    known = {function.domain for function in model.functions}
    kinds = {node.op_type for node in model_nodes(model)}
    types = {tensor.data_type for tensor in all_tensors(model)}
    casts = {
        one.i for n in model_nodes(model) for one in n.attribute if one.name in ("to", "dtype")
    }
    size = sum(tensor.ByteSize() for tensor in all_tensors(model))
    fault = ""
    if others := [domain for domain in domains if domain not in known]:
        fault = f"it has operators of {', '.join(others)}"
    elif kinds & _ROUNDING:
        fault = "it is quantized"
    elif kinds & _RANDOM:
        fault = "it draws random numbers"
    elif found := sorted(kinds & _UNSUITED):
        fault = f"{', '.join(found)} has no float64 reference"
    elif types & {*_HALVES} or casts & {*_HALVES}:
        fault = "it rounds to half precision"
    elif size > _MAX_BYTES:
        fault = f"its weights have {size >> 20} MiB"
    if fault:
        raise RunnerError(fault, hint=_HINT)


def _to_double(model: onnx.ModelProto) -> None:
    """Make every float32 tensor, cast and declared type of the model float64."""
    from onnx import numpy_helper

    for tensor in all_tensors(model):
        if tensor.data_type == _FLOAT:
            values = numpy_helper.to_array(tensor).astype("float64")
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for graph in model_graphs(model):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == _FLOAT:
                value.type.tensor_type.elem_type = _DOUBLE
    for node in model_nodes(model):
        for attribute in node.attribute:
            _set_double_attribute(node.op_type, attribute)


def _set_double_attribute(kind: str, attribute: onnx.AttributeProto) -> None:
    """Make a dtype or a constant in an attribute float64."""
    import numpy as np
    from onnx import helper, numpy_helper

    if attribute.name in ("to", "dtype") and attribute.i == _FLOAT:
        attribute.i = _DOUBLE
    elif kind == "Constant" and attribute.name in ("value_float", "value_floats"):
        single = attribute.name == "value_float"
        values = np.array(attribute.f if single else list(attribute.floats), np.float64)
        attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(values)))


# Operators in place of those of ONNX's evaluator.


def _make_operators(*, summing: bool) -> list[type]:
    """Return the operators as ONNX's evaluator takes them: classes named after their type."""
    from onnx.reference.op_run import OpRun

    found = {**_OPERATORS, **(ORDERED_SUMS if summing else {})}
    return [type(name, (OpRun,), {"op_domain": "", "_run": run}) for name, run in found.items()]


def _pad_window(x: Array, kernel: Sequence[int], given: Mapping[str, Any], fill: float) -> Any:
    """Return the tensor padded as a window of this size asks, its strides and its dilations."""
    import torch

    n = x.ndim - 2
    strides = list(given.get("strides") or [1] * n)
    dilations = list(given.get("dilations") or [1] * n)
    pads = list(given.get("pads") or [0] * (2 * n))
    auto = given.get("auto_pad") or "NOTSET"
    if auto.startswith("SAME"):
        for axis in range(n):
            size, span = x.shape[2 + axis], dilations[axis] * (kernel[axis] - 1) + 1
            total = max((-(-size // strides[axis]) - 1) * strides[axis] + span - size, 0)
            half = total // 2
            ends = (half, total - half) if auto == "SAME_UPPER" else (total - half, half)
            pads[axis], pads[axis + n] = ends
    flat = [pads[axis + end] for axis in reversed(range(n)) for end in (0, n)]
    tensor = torch.from_numpy(x.copy())
    if any(flat):
        tensor = torch.nn.functional.pad(tensor, flat, value=fill)
    return tensor, strides, dilations


def _convolve(self: Any, x: Array, w: Array, b: Array | None = None, **given: Any) -> tuple[Array]:  # noqa: ARG001 - an operator's method
    import torch

    tensor, strides, dilations = _pad_window(x, w.shape[2:], given, 0.0)
    call = getattr(torch.nn.functional, f"conv{x.ndim - 2}d")
    bias = None if b is None else torch.from_numpy(b.copy())
    weight, groups = torch.from_numpy(w.copy()), given.get("group") or 1
    return (call(tensor, weight, bias, strides, 0, dilations, groups).numpy(),)


def _convolve_transposed(
    self: Any,  # noqa: ARG001 - an operator's method
    x: Array,
    w: Array,
    b: Array | None = None,
    **given: Any,
) -> tuple[Array]:
    import torch

    n = x.ndim - 2
    if given.get("output_shape") or (given.get("auto_pad") or "NOTSET") != "NOTSET":
        raise NotImplementedError("ConvTranspose with output_shape or auto_pad")
    strides, dilations = given.get("strides") or [1] * n, given.get("dilations") or [1] * n
    pads, more = given.get("pads") or [0] * (2 * n), given.get("output_padding") or [0] * n
    call = getattr(torch.nn.functional, f"conv_transpose{n}d")
    tensors = [torch.from_numpy(array.copy()) for array in (x, w)]
    # Without padding torch gives the whole sum, and the pads are cut from its ends.
    whole = call(*tensors, None, strides, 0, 0, given.get("group") or 1, dilations)
    whole = torch.nn.functional.pad(
        whole, [e for axis in reversed(range(n)) for e in (0, more[axis])]
    )
    for axis in range(n):
        length = whole.shape[2 + axis] - pads[axis] - pads[axis + n]
        whole = whole.narrow(2 + axis, pads[axis], length)
    found = whole.numpy()
    return (found if b is None else found + b.reshape(-1, *[1] * n),)


def _pool_largest(self: Any, x: Array, **given: Any) -> tuple[Array]:
    import torch

    if given.get("ceil_mode") or len(self.onnx_node.output) > 1:
        raise NotImplementedError("MaxPool with ceil_mode or indices")
    kernel = given["kernel_shape"]
    if x.dtype.kind != "f":
        raise NotImplementedError("MaxPool of integers")
    tensor, strides, dilations = _pad_window(x, kernel, given, -float("inf"))
    call = getattr(torch.nn.functional, f"max_pool{x.ndim - 2}d")
    return (call(tensor, kernel, strides, 0, dilations).numpy(),)


def _pool_average(self: Any, x: Array, **given: Any) -> tuple[Array]:  # noqa: ARG001 - an operator's method
    import numpy as np
    import torch

    kernel = given["kernel_shape"]
    if given.get("ceil_mode") or any(one != 1 for one in given.get("dilations") or ()):
        raise NotImplementedError("AveragePool with ceil_mode or dilations")
    ones = np.ones((1, 1, *x.shape[2:]), x.dtype)
    tensor, strides, _ = _pad_window(x, kernel, given, 0.0)
    counted, _, _ = _pad_window(ones, kernel, given, float(bool(given.get("count_include_pad"))))
    n = x.ndim - 2
    if n == 1:
        tensor, counted = tensor.unsqueeze(-1), counted.unsqueeze(-1)
        kernel, strides = [*kernel, 1], [*strides, 1]
    call = torch.nn.functional.avg_pool3d if n == 3 else torch.nn.functional.avg_pool2d  # noqa: PLR2004 - dims
    found = call(tensor, kernel, strides) / call(counted, kernel, strides)
    return (found.squeeze(-1).numpy() if n == 1 else found.numpy(),)


def _compute_erf(self: Any, x: Array) -> tuple[Array]:  # noqa: ARG001 - an operator's method
    import torch

    return (torch.erf(torch.from_numpy(x.copy())).numpy(),)


def _resize(
    self: Any,  # noqa: ARG001 - an operator's method
    x: Array,
    roi: Array | None = None,  # noqa: ARG001 - of a mode without support
    scales: Array | None = None,
    sizes: Array | None = None,
    **given: Any,
) -> tuple[Array]:
    import numpy as np

    mode = given.get("mode") or "nearest"
    policy = given.get("keep_aspect_ratio_policy") or "stretch"
    if mode not in ("nearest", "linear") or given.get("antialias") or policy != "stretch":
        raise NotImplementedError(f"Resize {mode} with these attributes")
    axes = given.get("axes") or range(x.ndim)
    for place, axis in enumerate(axes):
        size = x.shape[axis]
        if sizes is not None and len(sizes):
            wanted = int(sizes[place])
            scale = wanted / size
        elif scales is not None:
            scale = float(scales[place])
            wanted = int(np.floor(size * scale))
        else:
            raise NotImplementedError("Resize without sizes and scales")
        if wanted == size and scale == 1:
            continue
        weights = _resize_weights(size, wanted, scale, given, linear=mode == "linear")
        x = np.moveaxis(np.tensordot(weights.astype(x.dtype), x, (1, axis)), 0, axis)
    return (np.ascontiguousarray(x),)


def _resize_weights(
    size: int, wanted: int, scale: float, given: Mapping[str, Any], *, linear: bool
) -> Array:
    """Return the matrix that resizes one axis; formulas as in ONNX's documentation of Resize."""
    import numpy as np

    how = given.get("coordinate_transformation_mode") or "half_pixel"
    at = np.arange(wanted, dtype=np.float64)
    if how == "align_corners":
        places = at * (size - 1) / (wanted - 1) if wanted > 1 else at * 0
    elif how == "asymmetric":
        places = at / scale
    elif how == "pytorch_half_pixel" and wanted == 1:
        places = at * 0
    elif how in ("half_pixel", "pytorch_half_pixel"):
        places = (at + 0.5) / scale - 0.5
    else:
        raise NotImplementedError(f"Resize with {how}")
    found = np.zeros((wanted, size))
    rows = np.arange(wanted)
    if linear:
        low = np.floor(places)
        share = places - low
        np.add.at(found, (rows, np.clip(low, 0, size - 1).astype(int)), 1 - share)
        np.add.at(found, (rows, np.clip(low + 1, 0, size - 1).astype(int)), share)
        return found
    rounding: dict[str, Callable[[Array], Array]] = {
        "round_prefer_floor": lambda p: np.ceil(p - 0.5), "floor": np.floor, "ceil": np.ceil,
        "round_prefer_ceil": lambda p: np.floor(p + 0.5),
    }  # fmt: skip
    nearest = rounding[given.get("nearest_mode") or "round_prefer_floor"]
    found[rows, np.clip(nearest(places), 0, size - 1).astype(int)] = 1
    return found


_OPERATORS = {
    "Conv": _convolve, "ConvTranspose": _convolve_transposed, "MaxPool": _pool_largest,
    "AveragePool": _pool_average, "Erf": _compute_erf, "Resize": _resize,
}  # fmt: skip
