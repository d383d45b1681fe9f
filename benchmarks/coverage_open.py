"""The artifacts of coverage.py, opened with the runtimes' own calls as their users do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from modelc.benchmarks.coverage_check import Run, name_outputs, nest
from modelc.benchmarks.coverage_feeds import Arrays


def torchscript(path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> Run:
    """`torch.jit.load`; by keyword where the archive has the arguments, else flat in order."""
    load: Callable[..., Any] = torch.jit.load  # typed nowhere
    module = load(str(path), map_location="cpu")
    names = [argument.name for argument in module.forward.schema.arguments[1:]]
    heads = list(dict.fromkeys(name.partition(".")[0] for name in inputs))
    flat = not set(heads) <= set(names)

    def run(feed: Arrays) -> Arrays:
        given = {name: torch.from_numpy(feed[name]) for name in inputs}
        with torch.no_grad():
            value = module(*given.values()) if flat else module(**nest(given))
        return _named(value, inputs, outputs)

    return run


def onnx(path: Path, _inputs: Sequence[str], _outputs: Sequence[str]) -> Run:
    """`onnxruntime.InferenceSession` on the CPU; outputs by their names in the graph."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    takes = [one.name for one in session.get_inputs()]
    gives = [one.name for one in session.get_outputs()]

    def run(feed: Arrays) -> Arrays:
        found = session.run(None, {name: feed[name] for name in takes})
        return dict(zip(gives, found, strict=True))

    return run


def openvino(path: Path, _inputs: Sequence[str], _outputs: Sequence[str]) -> Run:
    """`Core().compile_model` on the CPU, in float32 where the CPU would take bfloat16."""
    import openvino as ov

    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = ov.Core().compile_model(str(path), "CPU", options)
    takes = {name for port in compiled.inputs for name in port.names}

    def run(feed: Arrays) -> Arrays:
        found = compiled({name: array for name, array in feed.items() if name in takes})
        named: Arrays = {}
        for port in compiled.outputs:
            named.update(dict.fromkeys(port.names, found[port]))
        return named

    return run


def pt2(path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> Run:
    """`torch.export.load(...).module()`, flat in the signature's order."""
    module = torch.export.load(str(path)).module()

    def run(feed: Arrays) -> Arrays:
        with torch.no_grad():
            value = module(*(torch.from_numpy(feed[name]) for name in inputs))
        return _named(value, inputs, outputs)

    return run


def _named(value: object, inputs: Sequence[str], outputs: Sequence[str]) -> Arrays:
    """A flat tuple of as many goes by order; what keeps the model's own structure, by its names."""
    found, _ = name_outputs(value, inputs)
    if isinstance(value, Mapping) or len(found) != len(outputs):
        return found
    return dict(zip(outputs, found.values(), strict=True))


OPENERS = {"torchscript": torchscript, "onnx": onnx, "openvino": openvino, "pt2": pt2}
