"""Triton's `onnxruntime` backend in Python, so that a repository of ONNX files loads unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
from batched_model import BatchedModel


class TritonPythonModel(BatchedModel):
    """An ONNX file in ONNX Runtime."""

    def open_model(self, path: Path) -> None:
        """Open a session on the CPU."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )

    def run_model(self, feed: dict[str, Any]) -> list[Any]:
        """Run the session."""
        found: list[Any] = self.session.run(self.outputs, feed)
        return found
