"""A backend with a planted fault: it gives the requests of a batch each other's replies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
from batched_model import BatchedModel


class TritonPythonModel(BatchedModel):
    """An ONNX file whose replies move on by one request."""

    def open_model(self, path: Path) -> None:
        """Open a session on the CPU."""
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run_model(self, feed: dict[str, Any]) -> list[Any]:
        """Run the session."""
        found: list[Any] = self.session.run(self.outputs, feed)
        return found

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request with the reply to the next one."""
        replies = super().execute(requests)
        return [*replies[1:], *replies[:1]]
