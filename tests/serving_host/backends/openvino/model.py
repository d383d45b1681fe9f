"""Triton's `openvino` backend in Python, so that a repository of OpenVINO IR loads unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino
from batched_model import BatchedModel


class TritonPythonModel(BatchedModel):
    """An IR in OpenVINO on the CPU."""

    def open_model(self, path: Path) -> None:
        """Compile the model, in float32 where its precision is not half."""
        hints = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
        self.compiled = openvino.Core().compile_model(path, "CPU", hints)

    def run_model(self, feed: dict[str, Any]) -> list[Any]:
        """Run the compiled model."""
        found = self.compiled(feed)
        return [found[name].copy() for name in self.outputs]
