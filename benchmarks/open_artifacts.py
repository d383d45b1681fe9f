"""Artifacts opened with the runtimes' own calls, as their users do; modelc takes no part.

Each opener returns a function that maps one feed to the outputs by name. Where a format has no
names of its own, `Collect` names the values that the module returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from modelc.benchmarks.coverage_check import array_of, name_outputs, nest

Array: TypeAlias = NDArray[Any]
Outputs: TypeAlias = dict[str, Array]
Run: TypeAlias = Callable[[Mapping[str, Array]], Outputs]
Names: TypeAlias = Sequence[str]
Collect: TypeAlias = Callable[[object, Names, Names], Outputs]


def leaves(value: object) -> list[torch.Tensor]:
    """Return every tensor in a module's outputs, attributes of its own classes included."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [leaf for part in value.values() for leaf in leaves(part)]
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in leaves(part)]
    if hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module):
        return [leaf for part in vars(value).values() for leaf in leaves(part)]
    return []


def collect_in_order(value: object, _inputs: Names, outputs: Names) -> Outputs:
    """Name the tensors by their order."""
    found = [array_of(leaf) for leaf in leaves(value)]
    if len(found) != len(outputs):
        raise RuntimeError(f"{len(found)} outputs where the manifest has {len(outputs)}")
    return dict(zip(outputs, found, strict=True))


def collect_by_structure(value: object, inputs: Names, outputs: Names) -> Outputs:
    """Name a flat tuple of the right length by order, and any other structure by its own names."""
    found, _ = name_outputs(value, inputs)
    if isinstance(value, Mapping) or len(found) != len(outputs):
        return found
    return dict(zip(outputs, found.values(), strict=True))


def torchscript(
    path: Path, inputs: Names, outputs: Names, collect: Collect = collect_in_order
) -> Run:
    """Call `torch.jit.load`; by keyword where the archive has the arguments, else in order."""
    load: Callable[..., Any] = torch.jit.load  # typed nowhere
    module = load(str(path), map_location="cpu")
    names = [argument.name for argument in module.forward.schema.arguments[1:]]
    flat = not {name.partition(".")[0] for name in inputs} <= set(names)

    def run(feed: Mapping[str, Array]) -> Outputs:
        tensors = {name: torch.from_numpy(feed[name].copy()) for name in inputs}
        with torch.no_grad():
            value = module(*tensors.values()) if flat else module(**nest(tensors))
        return collect(value, inputs, outputs)

    return run


def pt2(path: Path, inputs: Names, outputs: Names, collect: Collect = collect_in_order) -> Run:
    """Call `torch.export.load(...).module()`, with the inputs in the signature's order."""
    module = torch.export.load(str(path)).module()

    def run(feed: Mapping[str, Array]) -> Outputs:
        with torch.no_grad():
            value = module(*(torch.from_numpy(feed[name].copy()) for name in inputs))
        return collect(value, inputs, outputs)

    return run


def onnx(path: Path, _inputs: Names, _outputs: Names) -> Run:
    """Create an `onnxruntime.InferenceSession` on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = [one.name for one in session.get_inputs()]
    outputs = [one.name for one in session.get_outputs()]

    def run(feed: Mapping[str, Array]) -> Outputs:
        return dict(zip(outputs, session.run(None, {n: feed[n] for n in inputs}), strict=True))

    return run


def openvino(path: Path, _inputs: Names, _outputs: Names) -> Run:
    """Call `Core().compile_model` on the CPU with its default precision, which may be bfloat16."""
    return _compile_openvino(path, {})


def openvino_f32(path: Path, _inputs: Names, _outputs: Names) -> Run:
    """Call `Core().compile_model` on the CPU in float32."""
    return _compile_openvino(path, {"INFERENCE_PRECISION_HINT": "f32"})


def _compile_openvino(path: Path, options: Mapping[str, object]) -> Run:
    import openvino as ov

    compiled = ov.Core().compile_model(str(path), "CPU", {"INFERENCE_NUM_THREADS": 1, **options})
    inputs = {name for port in compiled.inputs for name in port.names}

    def run(feed: Mapping[str, Array]) -> Outputs:
        found = compiled({name: array for name, array in feed.items() if name in inputs})
        outputs: Outputs = {}
        for port in compiled.outputs:
            outputs.update(dict.fromkeys(port.names, np.array(found[port])))
        return outputs

    return run


OPENERS: dict[str, Callable[[Path, Names, Names], Run]] = {
    "torchscript": torchscript,
    "onnx": onnx,
    "openvino": openvino,
    "pt2": pt2,
}


def open_by_structure(target: str, path: Path, inputs: Names, outputs: Names) -> Run:
    """Open in float32 and name the outputs by the model's own structure."""
    if target == "torchscript":
        return torchscript(path, inputs, outputs, collect_by_structure)
    if target == "pt2":
        return pt2(path, inputs, outputs, collect_by_structure)
    return {"onnx": onnx, "openvino": openvino_f32}[target](path, inputs, outputs)
