"""Options of ONNX Runtime's TensorRT provider: of a build, and to open what was built.

Names and values are text, as the provider takes them. The provider needs the sizes of every dynamic
input of an engine; an engine of a part of a model reads tensors from within the model, whose sizes
are measured on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ...capture.framework_errors import call_framework
from ...core.contract import Array, Job
from ...core.errors import ErrorCode, UsageError
from ..onnx_coverage import run_shapes
from ..onnx_topology import load_model
from .engine_options import DEFAULT_LEVEL, EngineOptions, HardwareLevel, Shape
from .engine_profiles import profiles_for
from .trt_findings import Model, Value, element_type, tensor_shape

PROVIDER = "TensorrtExecutionProvider"
_ON = "1"
_INTEGERS = frozenset({"INT32", "INT64"})
_CONTAINERS = frozenset({
    "Optional", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
    "SequenceMap", "SplitToSequence",
})  # fmt: skip  # their results are no tensors, though onnx_ir may say so
_APART = ",:"  # characters that separate the entries of a profile
_ENDS = ("min", "opt", "max")

Ranges = Mapping[str, tuple[Shape, Shape, Shape]]


def build_options(options: EngineOptions, model: Model, ranges: Ranges) -> dict[str, str]:
    """Return the options that decide what is built: without the places of files.

    Args:
        options: of the engines.
        model: its types decide which precisions TensorRT may compute in.
        ranges: least, typical and greatest shape of each dynamic tensor.

    Raises:
        UsageError: the provider cannot name one of these tensors.
    """
    types = {element_type(value) for value in _tensors(model)}
    ampere = options.hardware_compatible is HardwareLevel.AMPERE_PLUS
    return {
        "trt_min_subgraph_size": str(options.min_block_size),
        **({"trt_max_workspace_size": str(options.workspace)} if options.workspace else {}),
        **_when(options.optimization_level != DEFAULT_LEVEL, "trt_builder_optimization_level",
                str(options.optimization_level)),
        **_when("FLOAT16" in types, "trt_fp16_enable"),
        **_when("INT8" in types, "trt_int8_enable"),
        **_when(ampere, "trt_engine_hw_compatible"),
        **_profile_options(ranges),
    }  # fmt: skip


def _when(asked: bool, name: str, value: str = _ON) -> dict[str, str]:
    return {name: value} if asked else {}


def _tensors(model: Model) -> Iterable[Value]:
    yield from model.graph.inputs
    yield from model.graph.initializers.values()
    for node in model.graph.all_nodes():
        yield from node.outputs


def _profile_options(ranges: Ranges) -> dict[str, str]:
    for name in ranges:
        if set(_APART) & set(name):
            raise UsageError(
                f"ONNX Runtime's TensorRT provider cannot read the name {name!r} in a profile",
                hint="rename the input",
                option="input",
                code=ErrorCode.UNSUPPORTED,
            )
    found = {}
    for place, end in enumerate(_ENDS):
        shapes = (f"{name}:{'x'.join(map(str, one[place]))}" for name, one in ranges.items())
        found[f"trt_profile_{end}_shapes"] = ",".join(shapes)
    return found if ranges else {}


def cache_options(prefix: str, folder: Path | None = None) -> dict[str, str]:
    """Return the options for files with engines, whose names start with the prefix.

    Args:
        prefix: of the names.
        folder: holds the files; None where a context model is written, which they are beside.
    """
    place = {} if folder is None else {"trt_engine_cache_path": str(folder)}
    return {"trt_engine_cache_enable": _ON, "trt_engine_cache_prefix": prefix, **place}


def context_options(path: Path) -> dict[str, str]:
    """Return the options that write a context model, with its engine beside it."""
    return {
        "trt_dump_ep_context_model": _ON,
        "trt_ep_context_file_path": str(path),
        "trt_ep_context_embed_mode": "0",  # an engine may be larger than an ONNX file can be
    }


def keep_timings(folder: Path | None) -> dict[str, str]:
    """Return the options to keep the timings of kernels in a folder; none without one."""
    if folder is None:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    return {"trt_timing_cache_enable": _ON, "trt_timing_cache_path": str(folder)}


def input_ranges(job: Job) -> Ranges:
    """Return the ranges of the inputs with dynamic dims; values for those that set a size."""
    specs = {spec.name: spec for spec in job.signature.inputs}
    return {
        one.name: one.shapes
        for one in profiles_for(job.signature, ())[0]
        if any(dim.dynamic for dim in specs[one.name].dims)
    }


def measure_ranges(job: Job, path: Path, model: Model) -> Ranges:
    """Return the ranges of the dynamic tensors of the outer graph, as ONNX Runtime runs them.

    Integers of rank 0 or 1 are left out: TensorRT may want their values and not their sizes.

    Raises:
        ConversionError: ONNX Runtime cannot run the model at these sizes.
    """
    nodes = [node for node in model.graph if node.op_type not in _CONTAINERS]
    names = [value.name or "" for node in nodes for value in node.outputs if _is_open(value)]
    graph = load_model(path)
    measured = [
        call_framework(
            "ONNX Runtime",
            lambda feed=feed: run_shapes(graph, path.parent, feed, names),  # type: ignore[misc]
        )
        for feed in _end_feeds(job)
    ]
    found: dict[str, tuple[Shape, Shape, Shape]] = {}
    for name in names:
        low, typical, high = (one[name] for one in measured)
        if 0 < len(low) == len(typical) == len(high):
            found[name] = _sort_sizes(low, typical, high)
    return found


def _is_open(value: Value) -> bool:
    """Return whether a tensor has dynamic dims, or unknown ones."""
    shape = tensor_shape(value)
    small = element_type(value) in _INTEGERS and shape is not None and len(shape) <= 1
    return bool(value.name) and not small and (shape is None or None in shape)


def _end_feeds(job: Job) -> list[dict[str, Array]]:
    """Return the example at the least, typical and greatest sizes, with repeated values."""
    import numpy as np

    return [
        {
            spec.name: np.resize(job.example[spec.name], [getattr(dim, end) for dim in spec.dims])
            for spec in job.signature.inputs
        }
        for end in ("low", "opt", "high")
    ]


def _sort_sizes(*shapes: Shape) -> tuple[Shape, Shape, Shape]:
    """Return three shapes whose sizes rise: a size may fall where another one rises."""
    low, middle, high = zip(*(sorted(sizes) for sizes in zip(*shapes, strict=True)), strict=True)
    return low, middle, high
