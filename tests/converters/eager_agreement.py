"""Convert a module, and compare what its artifact gives with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modelc.converters import onnx_model, openvino_ir
from modelc.core.contract import Feed, Job
from modelc.core.kinds import Capture

JobOf = Callable[..., Job]


class Calls(nn.Module):
    """One output for each call: a net for each would take minutes."""

    def __init__(self, calls: Mapping[str, Callable[[Tensor], Any]]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = {name: call(x) for name, call in self.calls.items()}
        return {
            name: torch.view_as_real(one) if one.is_complex() else one
            for name, one in found.items()
        }


def job_of_calls(
    job_of: JobOf,
    calls: Mapping[str, Callable[[Tensor], Any]],
    spec: str,
    capture: Capture = Capture.EXPORT,
) -> Job:
    """The job of a net that gives every call's result by its name."""
    return job_of(Calls(calls), spec, capture=capture, outputs=tuple(calls))


def assert_agrees(
    job: Job,
    feeds: Iterable[Feed],
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    openvino: bool = False,
    ignore: frozenset[int] = frozenset(),
) -> None:
    """Convert to ONNX, and to OpenVINO if asked, and compare each output on each feed with eager.

    Args:
        job: of a module.
        feeds: named arrays, in the order of the module's parameters.
        rtol: 0 asks for equality, with `atol`.
        atol: what may differ around 0.
        openvino: whether to convert the ONNX to an IR too.
        ignore: the places of outputs that are not compared.
    """
    onnx_model.convert(job)
    opened = [(onnx_model, job.folder / "model.onnx")]
    if openvino:
        folder = job.folder / "ir"
        folder.mkdir()
        openvino_ir.convert(replace(job, parent=opened[0][1], folder=folder, model=None))
        opened.append((openvino_ir, folder / "model.xml"))
    given = list(feeds)
    for target, path in opened:
        with target.open_runner(path, "cpu", job.signature) as runner:
            for number, feed in enumerate(given):
                with torch.no_grad():
                    wanted = job.model.flat(*map(torch.tensor, feed.values()))  # type: ignore[union-attr]  # jobs of modules
                pairs = zip(runner.run(feed).items(), wanted, strict=True)
                for at, ((name, found), eager) in enumerate(pairs):
                    where = f"{target.NAME}: {name} on feed {number}"
                    if target is onnx_model:
                        assert found.dtype == eager.numpy().dtype, where
                    if at not in ignore:
                        np.testing.assert_allclose(
                            found, eager.numpy(), rtol=rtol, atol=atol, err_msg=where
                        )
