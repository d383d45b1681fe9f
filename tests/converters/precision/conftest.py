"""ONNX models written as text, and what is made of them in half precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from modelc.converters import onnx_model
from modelc.converters.onnx_half_ranges import HalfOverflow, find_overflows, read_with_names
from modelc.converters.onnx_mask_fills import clamp_masks
from modelc.core.contract import Array, Converted, Feed, Job, Outputs
from modelc.core.kinds import Precision
from modelc.core.signature import Signature

if TYPE_CHECKING:
    import onnx

OnnxFile = Callable[..., Path]  # the fixture of the folder above
JobFor = Callable[..., Job]
NOTHING = Signature(inputs=())  # ONNX Runtime asks the model itself what it takes


def run(path: Path, feed: Feed) -> Outputs:
    """What our runner gives for a feed on the CPU."""
    with onnx_model.open_runner(path, "cpu", NOTHING) as runner:
        return runner.run(feed)


def sqnr(wanted: Array, found: Array) -> float:
    """dB; inf where they are equal, -inf where anything is not finite."""
    if not np.isfinite(found).all():
        return -math.inf
    noise = float(np.square(wanted.astype(np.float64) - found).sum())
    return (
        10 * math.log10(float(np.square(wanted, dtype=np.float64).sum()) / noise)
        if noise
        else math.inf
    )


def load(path: Path) -> onnx.ModelProto:
    import onnx

    return onnx.load(str(path))


def nodes_of(path: Path) -> dict[str, onnx.NodeProto]:
    return {node.name: node for node in load(path).graph.node}


def dtype_of(path: Path, tensor: str) -> str:
    """The element type of a tensor of the main graph, as ONNX infers it."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(load(path)).graph
    values = (*graph.value_info, *graph.input, *graph.output)
    code = next(value.type.tensor_type.elem_type for value in values if value.name == tensor)
    return str(onnx.TensorProto.DataType.Name(code))


def forecast(path: Path, feeds: Sequence[Feed], low: Precision) -> tuple[HalfOverflow, ...]:
    """What the forecast finds in a model whose mask fills are clamped."""
    model = read_with_names(path)
    clamp_masks(model, path.parent, feeds, low)
    return find_overflows(model, path, feeds, low)


@pytest.fixture
def job_for(tmp_path: Path) -> JobFor:
    """`job_for(path, precision, feed, ...)`: what the pipeline would hand the target."""

    def make(parent: Path, precision: Precision, *feeds: Feed, **changes: object) -> Job:
        folder = tmp_path / f"job{len(list(tmp_path.glob('job*')))}"
        folder.mkdir()
        job = Job(
            signature=NOTHING,
            precision=precision,
            folder=folder,
            stem=f"model.{precision}",
            example=feeds[0],
            feeds=feeds,
            parent=parent,
            metadata={"precision": str(precision)},
        )
        return replace(job, **changes)  # type: ignore[arg-type]  # fields of Job, as tests name them

    return make


@pytest.fixture
def made(job_for: JobFor) -> Callable[..., tuple[Path, Converted]]:
    """`made(path, precision, feed, ...)`: the ONNX of that job, and what its conversion says."""

    def make(
        parent: Path, precision: Precision, *feeds: Feed, **changes: object
    ) -> tuple[Path, Converted]:
        job = job_for(parent, precision, *feeds, **changes)
        converted = onnx_model.convert(job)
        return job.folder / converted.files[0][0], converted

    return make
