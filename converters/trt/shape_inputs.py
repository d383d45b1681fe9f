"""Inputs and outputs that TensorRT takes in another way than ONNX Runtime.

The values of some inputs set shapes, such as the K of TopK: an engine is tuned for a range of them,
as for a range of sizes, and the signature states it. What is float64 in the model is float32 in an
engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ...core.errors import ConversionError, ErrorCode, Hint, Option
from ...core.signature import FLOATS, InputSpec, Signature
from .engine_options import Profile, profile_text
from .trt_findings import Model, domain_of

if TYPE_CHECKING:
    import tensorrt

Values: TypeAlias = tuple[int, int, int]  # the least, the usual and the greatest
# The operands of ONNX operators that hold sizes, positions or counts.
_SHAPE_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,), "Expand": (1,), "OneHot": (1,), "Pad": (1,), "Range": (0, 1, 2),
    "Reshape": (1,), "Resize": (3,), "Slice": (1, 2, 3, 4), "Split": (1,), "Tile": (1,),
    "TopK": (1,), "Upsample": (1,),
}  # fmt: skip
# Operators of integers that TensorRT computes while it infers shapes.
_CARRIERS = frozenset({
    "Add", "Cast", "Concat", "Div", "Gather", "Identity", "Max", "Min", "Mul", "Reshape", "Slice",
    "Squeeze", "Sub", "Unsqueeze",
})  # fmt: skip


def value_ranges(signature: Signature) -> dict[str, Values]:
    """Return the range of each integer input that has one; the usual value is its middle."""
    found: dict[str, Values] = {}
    for spec in signature.inputs:
        if spec.values is not None and spec.dtype not in FLOATS:
            low, high = math.ceil(spec.values.low), math.floor(spec.values.high)
            found[spec.name] = (low, (low + high) // 2, high)
    return found


def find_doubles(path: Path) -> tuple[str, ...]:
    """Return the inputs and outputs of an ONNX file that are float64."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    return tuple(
        one.name
        for one in (*graph.input, *graph.output)
        if one.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    )


def missing_range_error(name: str, form: str) -> ConversionError:
    """Return the error for an input whose values set shapes and have no range.

    Args:
        name: the input.
        form: its name, dtype and dims as `--input` takes them.
    """
    return ConversionError(
        f"the values of input {name!r} set shapes, and a TensorRT engine needs their range",
        hint=Hint("state it: ", Option("input", f'"{form}{{1..10}}"'), ", with your own limits"),
        option="input",
        code=ErrorCode.MISSING_DIMS,
    )


def find_missing_ranges(model: Model, signature: Signature) -> Iterator[ConversionError]:
    """Yield an error for each input of the ONNX that sets shapes and has no range of values."""
    known = value_ranges(signature)
    specs = {spec.name: spec for spec in signature.inputs}
    for name in find_shape_inputs(model):
        if name in specs and name not in known:
            yield missing_range_error(name, _form(specs[name]))


def _form(spec: InputSpec) -> str:
    return f"{spec.name}:{spec.dtype}[{','.join(map(str, spec.dims))}]"


def find_shape_inputs(model: Model) -> tuple[str, ...]:
    """Return the inputs of the main graph that reach a shape operand through integers alone."""
    waiting = [
        node.inputs[index]
        for node in model.graph.all_nodes()
        for index in _SHAPE_OPERANDS.get(node.op_type, ())
        if domain_of(node) == "" and index < len(node.inputs)
    ]
    seen: set[int] = set()
    names: set[str] = set()
    while waiting:
        value = waiting.pop()
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        maker = value.producer()
        if maker is not None and maker.op_type in _CARRIERS:
            waiting += maker.inputs
        elif maker is None and value.name:
            names.add(value.name)
    return tuple(value.name for value in model.graph.inputs if value.name in names)


def add_profiles(
    builder: tensorrt.Builder,
    network: tensorrt.INetworkDefinition,
    config: tensorrt.IBuilderConfig,
    profiles: tuple[Profile, ...],
    values: Mapping[str, Values],
) -> None:
    """Add the profiles if the network needs any: for dynamic dims and for values that set shapes.

    Raises:
        ConversionError: TensorRT rejected a profile, or an input has no range.
    """
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    if any(tensor.is_shape_tensor or min(tensor.shape, default=0) < 0 for tensor in inputs):
        for profile in profiles:
            _add_profile(builder, network, config, profile, values)


def _add_profile(
    builder: tensorrt.Builder,
    network: tensorrt.INetworkDefinition,
    config: tensorrt.IBuilderConfig,
    profile: Profile,
    values: Mapping[str, Values],
) -> None:
    added: tensorrt.IOptimizationProfile = builder.create_optimization_profile()
    given = ", ".join(f"{name} in {low}..{high}" for name, (low, _, high) in values.items())
    rejected = ConversionError(
        f"TensorRT does not accept the profile {profile_text(profile)}"
        f"{f' with the values {given}' if given else ''}",
        hint=Hint("see ", Option("profile"), " and ", Option("input")),
        option="profile",
        code=ErrorCode.RUNTIME_FAILED,
    )
    for index in range(network.num_inputs):
        tensor: tensorrt.ITensor = network.get_input(index)
        try:
            _set_range(added, tensor, profile, values)
        except RuntimeError as error:
            raise rejected from error
    if not added or config.add_optimization_profile(added) < 0:
        raise rejected


def _set_range(
    added: tensorrt.IOptimizationProfile,
    tensor: tensorrt.ITensor,
    profile: Profile,
    values: Mapping[str, Values],
) -> None:
    one = next((one for one in profile if one.name == tensor.name), None)
    if one is None:
        raise ConversionError(
            f"the ONNX has an input {tensor.name!r} that is not in the signature",
            hint=f"the profile is {profile_text(profile)}",
            code=ErrorCode.UNKNOWN_INPUT,
        )
    if not tensor.is_shape_tensor:
        added.set_shape(tensor.name, min=one.low, opt=one.opt, max=one.high)
        return
    if tensor.name not in values:
        dims, dtype = ",".join(map(str, one.opt)), str(tensor.dtype.name).lower()
        raise missing_range_error(tensor.name, f"{tensor.name}:{dtype}[{dims}]")
    count = math.prod(one.opt)  # the dims of such an input do not vary
    low, opt, high = values[tensor.name]
    added.set_shape_input(tensor.name, min=(low,) * count, opt=(opt,) * count, max=(high,) * count)
