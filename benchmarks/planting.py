"""Plants a fault in a good conversion: in its weights, its graph, or by exporting an altered net.

A weight is found in the ONNX file by its values, plain or transposed; where the exporter folded it
into another, the altered net is exported anew.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import numpy_helper

from modelc.benchmarks.faults import Fault
from modelc.benchmarks.judge_bed import Bed
from modelc.checkpoints.eager_model import open_eager
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.converters.registry import target_named
from modelc.core.call import parameters_of
from modelc.core.contract import Array, Feed, Job, Outputs
from modelc.core.kinds import Capture, Precision

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Planted:
    """An ONNX file with a fault, and what it computes without roundoff on each drawn feed."""

    path: Path
    exact: tuple[Outputs, ...]
    elsewhere: tuple[Feed, ...]  # feeds of the fault's own
    exact_elsewhere: tuple[Outputs, ...]


def plant(fault: Fault, bed: Bed, clean: Path, folder: Path) -> Planted:
    """Write the ONNX file `clean` with the fault in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    feeds = () if fault.feeding is None else (fault.feeding.feed(bed.subject.signature),)
    if fault.edit is not None:
        model = onnx.load(clean)
        edit = fault.edit(bed.subject.signature.outputs[fault.output])
        edit.change(model)
        onnx.save(model, path)
        truth, more = bed.exact, bed.exactly(bed.module, feeds) if feeds else []
        exact = tuple(map(edit.effect, bed.feeds, truth))
        return Planted(
            path=path,
            exact=exact,
            elsewhere=feeds,
            exact_elsewhere=tuple(map(edit.effect, feeds, more)),
        )
    altered = copy.deepcopy(bed.module)
    for alter in fault.alter:
        alter(altered)
    if not _swap_weights(clean, bed.module, altered, path):
        _export(altered, bed, path)
    return Planted(
        path=path,
        exact=tuple(bed.exactly(altered)),
        elsewhere=feeds,
        exact_elsewhere=tuple(bed.exactly(altered, feeds)) if feeds else (),
    )


def _swap_weights(clean: Path, module: nn.Module, altered: nn.Module, path: Path) -> bool:
    """Write the clean file with the changed weights in it; False where one is not found."""
    changed = list(_change(module, altered))
    if not changed:
        return False
    model = onnx.load(clean)
    known = {
        tensor.name: (tensor, numpy_helper.to_array(tensor)) for tensor in model.graph.initializer
    }
    for before, after in changed:
        places = [
            (
                tensor,
                after if found.shape == before.shape and np.array_equal(found, before) else after.T,
            )
            for tensor, found in known.values()
            if _same(found, before)
        ]
        if len(places) != 1:  # folded into another, or as good as another
            return False
        tensor, value = places[0]
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), tensor.name))
    onnx.save(model, path)
    return True


def _change(module: nn.Module, altered: nn.Module) -> Iterator[tuple[Array, Array]]:
    for (_, one), (_, other) in zip(
        module.named_parameters(), altered.named_parameters(), strict=True
    ):
        before, after = one.detach().numpy(), other.detach().numpy()
        if not np.array_equal(before, after):
            yield before, after


def _same(found: Array, wanted: Array) -> bool:
    if found.shape == wanted.shape and np.array_equal(found, wanted):
        return True
    return wanted.ndim == 2 and found.shape == wanted.T.shape and np.array_equal(found, wanted.T)  # noqa: PLR2004


def _export(altered: nn.Module, bed: Bed, path: Path) -> None:
    signature = bed.subject.signature
    eager = open_eager(
        LoadedModule(kind="module", module=altered, takes=parameters_of(altered.forward)), signature
    )
    work = path.parent / "work"
    work.mkdir(exist_ok=True)
    job = Job(
        signature=signature,
        precision=Precision.FP32,
        folder=work,
        stem="model",
        example=bed.subject.example,
        model=eager,
        capture=Capture.EXPORT,
        feeds=tuple(bed.feeds),
    )
    with bed.stage.step("plant", log="plant"):
        converted = target_named("onnx").convert(job)
    for name, _ in converted.files:
        (work / name).replace(path.parent / name)
    shutil.rmtree(work)
