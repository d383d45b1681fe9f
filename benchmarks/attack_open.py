"""Artifacts opened as their users do: the runtimes' own calls with their own default settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from modelc.benchmarks.coverage_check import array_of, nest

Array = NDArray[Any]
Outputs = dict[str, Array]
Run = Callable[[Mapping[str, Array]], Outputs]


def torchscript(path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> Run:
    """`torch.jit.load`; by keyword where the archive has the arguments, else flat in order."""
    load: Callable[..., Any] = torch.jit.load  # typed nowhere
    module = load(str(path), map_location="cpu")
    names = [argument.name for argument in module.forward.schema.arguments[1:]]
    flat = not {name.partition(".")[0] for name in inputs} <= set(names)

    def run(feed: Mapping[str, Array]) -> Outputs:
        given = {name: torch.from_numpy(feed[name].copy()) for name in inputs}
        with torch.no_grad():
            value = module(*given.values()) if flat else module(**nest(given))
        return _in_order(value, outputs)

    return run


def onnx(path: Path, _inputs: Sequence[str], _outputs: Sequence[str]) -> Run:
    """`onnxruntime.InferenceSession` on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    takes = [one.name for one in session.get_inputs()]
    gives = [one.name for one in session.get_outputs()]

    def run(feed: Mapping[str, Array]) -> Outputs:
        return dict(zip(gives, session.run(None, {n: feed[n] for n in takes}), strict=True))

    return run


def openvino(path: Path, _inputs: Sequence[str], _outputs: Sequence[str]) -> Run:
    """`Core().compile_model` on the CPU as it is."""
    return _openvino(path, {})


def openvino_f32(path: Path, _inputs: Sequence[str], _outputs: Sequence[str]) -> Run:
    """The same, held to float32 where the CPU's default is bfloat16."""
    return _openvino(path, {"INFERENCE_PRECISION_HINT": "f32"})


def _openvino(path: Path, options: Mapping[str, object]) -> Run:
    import openvino as ov

    compiled = ov.Core().compile_model(str(path), "CPU", {"INFERENCE_NUM_THREADS": 1, **options})
    takes = {name for port in compiled.inputs for name in port.names}

    def run(feed: Mapping[str, Array]) -> Outputs:
        found = compiled({name: array for name, array in feed.items() if name in takes})
        named: Outputs = {}
        for port in compiled.outputs:
            named.update(dict.fromkeys(port.names, np.array(found[port])))
        return named

    return run


def pt2(path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> Run:
    """`torch.export.load(...).module()`, flat in the signature's order."""
    module = torch.export.load(str(path)).module()

    def run(feed: Mapping[str, Array]) -> Outputs:
        with torch.no_grad():
            value = module(*(torch.from_numpy(feed[name].copy()) for name in inputs))
        return _in_order(value, outputs)

    return run


def leaves(value: object) -> list[torch.Tensor]:
    """Every tensor in what a module returned, also in objects of classes of its own."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [leaf for part in value.values() for leaf in leaves(part)]
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in leaves(part)]
    if hasattr(value, "__dict__") and not isinstance(value, torch.nn.Module):
        return [leaf for part in vars(value).values() for leaf in leaves(part)]
    return []


def _in_order(value: object, outputs: Sequence[str]) -> Outputs:
    found = [array_of(leaf) for leaf in leaves(value)]
    if len(found) != len(outputs):
        raise RuntimeError(f"{len(found)} outputs where the manifest has {len(outputs)}")
    return dict(zip(outputs, found, strict=True))


OPENERS = {"torchscript": torchscript, "onnx": onnx, "openvino": openvino, "pt2": pt2}
