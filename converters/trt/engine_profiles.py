"""Optimization profiles of a signature, and the inputs whose values set a size.

TensorRT reads inputs such as TopK's K or the end of a Range on the host, and requires the range of
their values in each profile. Its Python package says which they are; for trtexec and the pre-flight
they are found in the ONNX.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from ...capture.framework_errors import call_framework
from ...core.errors import ConversionError, ErrorCode, Hint, Option, UsageError
from ...core.signature import Dim, InputSpec, Signature
from .engine_options import HardwareLevel, Profile, ShapeRange, parse_options, profile_text
from .trt_findings import Model, TrtFault, TrtFinding, TrtSeverity, Value, domain_of

# Operator -> the operands whose values set a size.
_SIZE_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "CumSum": (1,),  # the axis, which TensorRT reads as a size
    "Expand": (1,),
    "Loop": (0,),
    "MaxUnpool": (2,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
}
_SIZE_READERS = frozenset({"Shape", "Size"})  # they need no values of their operand
_INTEGERS = frozenset({"INT32", "INT64"})


def read_size_inputs(path: Path) -> tuple[str, ...]:
    """Return the inputs of an ONNX file that set a size.

    Raises:
        ConversionError: the file cannot be read.
    """
    import onnx_ir

    return find_size_inputs(call_framework("onnx_ir", lambda: onnx_ir.load(path)))


def find_size_inputs(model: Model) -> tuple[str, ...]:
    """Return the integer inputs from which an operand that sets a size is computed, in order."""
    pending: list[Value | None] = []
    for node in model.graph.all_nodes():
        if domain_of(node) == "":
            operands = _SIZE_OPERANDS.get(node.op_type, ())
            pending.extend(node.inputs[i] for i in operands if i < len(node.inputs))
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        maker = value.producer()
        if maker is not None and maker.op_type not in _SIZE_READERS:
            pending.extend(maker.inputs)
    return tuple(
        value.name or "" for value in model.graph.inputs if id(value) in seen and _may_set(value)
    )


def _may_set(value: Value) -> bool:
    """Return whether TensorRT takes values of this type and rank for sizes."""
    rank = 0 if value.shape is None else len(value.shape)
    return value.dtype is not None and value.dtype.name in _INTEGERS and rank <= 1


def range_error(name: str, dtype: str, shape: Sequence[int]) -> ConversionError:
    """Return the error for an input that sets a size and has no stated range of values."""
    dims = ",".join(map(str, shape))
    return ConversionError(
        f"input {name!r} sets a size, and TensorRT requires the range of its values",
        hint=Hint(
            "state the range, for example ", Option("input", f'"{name}:{dtype}[{dims}]{{1..10}}"')
        ),
        option="input",
        code=ErrorCode.MISSING_DIMS,
    )


def size_findings(model: Model, profile: Profile) -> Iterator[TrtFinding]:
    """Inputs that set a size need a range of values. A warning: only the parser is sure of them."""
    ranges = {one.name: one for one in profile}
    for name in find_size_inputs(model):
        one = ranges.get(name)
        if one is not None and one.values is None:
            error = range_error(name, "int64", one.opt)
            what = f"{error.message}: {error.hint}"
            yield TrtFinding(TrtFault.UNSTATED_RANGE, TrtSeverity.WARNING, what)


def profiles_for(signature: Signature, extra: Sequence[Profile]) -> tuple[Profile, ...]:
    """Return the signature's profile, then each of `extra`, completed from it.

    Raises:
        UsageError: an extra profile names an unknown input, has another rank, or varies a fixed
            dim.
    """
    own = {spec.name: _spec_range(spec) for spec in signature.inputs}
    return (tuple(own.values()), *(_complete_profile(profile, own, signature) for profile in extra))


def _spec_range(spec: InputSpec) -> ShapeRange:
    return ShapeRange(
        name=spec.name,
        low=tuple(dim.low for dim in spec.dims),
        opt=tuple(dim.opt for dim in spec.dims),
        high=tuple(dim.high for dim in spec.dims),
        values=_integer_range(spec),
    )


def _integer_range(spec: InputSpec) -> tuple[int, int, int] | None:
    """Return the least, a middle and the greatest value of an integer input; None if not stated."""
    if spec.values is None or not spec.dtype.startswith("int"):
        return None
    low, high = int(spec.values.low), int(spec.values.high)
    return low, (low + high) // 2, high


_Sizes: TypeAlias = tuple[int, int, int]  # min, opt, max


def _complete_profile(
    profile: Profile, own: Mapping[str, ShapeRange], signature: Signature
) -> Profile:
    """Add the inputs that a profile leaves out, with the sizes that it gives to their dims."""
    specs = {spec.name: spec for spec in signature.inputs}
    given = {one.name: one for one in profile}
    sizes: dict[str, _Sizes] = {}
    for name, one in given.items():
        if name not in specs:
            raise UsageError(
                f"--profile {profile_text(profile)} names {name!r}, which is not an input",
                hint=f"the inputs are {', '.join(specs)}",
                option="profile",
            )
        _check_range(one, specs[name], profile)
        _add_sizes(one, specs[name], profile, sizes)
    for name in own.keys() - given.keys():
        ranges = [_find_sizes(dim, sizes, signature.free_dims) for dim in specs[name].dims]
        low, opt, high = (tuple(one[place] for one in ranges) for place in range(3))
        given[name] = ShapeRange(name=name, low=low, opt=opt, high=high)
    return tuple(replace(given[name], values=known.values) for name, known in own.items())


def _add_sizes(
    one: ShapeRange, spec: InputSpec, profile: Profile, sizes: dict[str, _Sizes]
) -> None:
    """Add the sizes of named dims, which are the same in all inputs."""
    for dim, low, opt, high in zip(spec.dims, one.low, one.opt, one.high, strict=True):
        known = sizes.setdefault(dim.name, (low, opt, high)) if dim.name else (low, opt, high)
        if known != (low, opt, high):
            raise UsageError(
                f"--profile {profile_text(profile)}: {dim.name} is {low}:{opt}:{high} in "
                f"{spec.name} and {':'.join(map(str, known))} in another input",
                hint=f"give {dim.name} the same sizes in all inputs",
                option="profile",
            )


def _find_sizes(dim: Dim, sizes: Mapping[str, _Sizes], free: Mapping[str, Dim]) -> _Sizes:
    """Return min, opt and max of a dim: those that a profile gives to its name, or its own."""
    relation = dim.relation
    if relation is None or not sizes.keys() & {*relation.bases}:
        return sizes.get(dim.name or "", (dim.low, dim.opt, dim.high))
    own = {name: (one.low, one.opt, one.high) for name, one in free.items()} | dict(sizes)
    ends = ({name: own[name][place] for name in relation.bases} for place in range(3))
    low, opt, high = map(relation.size_at, ends)
    return low, opt, high


def _check_range(one: ShapeRange, spec: InputSpec, profile: Profile) -> None:
    if len(one.low) != len(spec.dims):
        raise UsageError(
            f"--profile {profile_text(profile)}: "
            f"{spec.name} has {len(spec.dims)} dims, not {len(one.low)}",
            hint=f"its form is {spec}",
            option="profile",
        )
    for dim, low, high in zip(spec.dims, one.low, one.high, strict=True):
        if not dim.dynamic and (low, high) != (dim.opt, dim.opt):
            raise UsageError(
                f"--profile {profile_text(profile)}: a dim of {spec.name} is always {dim.opt}",
                hint=Hint(
                    f"its form is {spec}; a dim that varies needs a name in ", Option("input")
                ),
                option="profile",
            )


def find_unbounded(signature: Signature, given: Sequence[Profile]) -> tuple[UsageError, ...]:
    """Return an error for each dynamic dim without bounds, which a profile needs.

    The inputs that the profiles in `given` name count as bounded.
    """
    profiled = {one.name for profile in given for one in profile}
    owners: dict[str, str] = {}
    for spec in signature.inputs:
        for dim in spec.dims:
            if not dim.bounded and dim.name is not None and spec.name not in profiled:
                owners.setdefault(dim.name, spec.name)
    return tuple(
        UsageError(
            f"dim {name!r} of {owner} has no bounds, which an optimization profile needs",
            hint=f"give {name}=min..max in --input, or --profile",
            option="profile",
            code=ErrorCode.MISSING_DIMS,
        )
        for name, owner in owners.items()
    )


def check_part_settings(name: str, signature: Signature, settings: Mapping[str, str]) -> None:
    """Check the settings of the target of this name, whose engines are parts of a model.

    Raises:
        UsageError: a dim has no bounds, or only GPUs of the same compute capability were asked for.
    """
    options = parse_options(settings)
    if options.hardware_compatible is HardwareLevel.SAME_COMPUTE_CAPABILITY:
        raise UsageError(
            f"{name} does not have --hardware-compatible {options.hardware_compatible}",
            hint="give none or ampere-plus",
            option="hardware-compatible",
            code=ErrorCode.UNSUPPORTED,
        )
    for error in find_unbounded(signature, ()):
        raise error


def select_profile(
    profiles: Sequence[Profile],
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> int | None:
    """Return the first profile that contains every shape, and the values of size inputs."""
    for index, profile in enumerate(profiles):
        if all(one.contains(shapes[one.name], values.get(one.name, ())) for one in profile):
            return index
    return None
