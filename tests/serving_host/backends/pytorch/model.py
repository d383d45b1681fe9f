"""Triton's `pytorch` backend in Python, so that a repository of TorchScript loads unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from batched_model import BatchedModel


class TritonPythonModel(BatchedModel):
    """A TorchScript module, which takes its inputs in the order of the configuration."""

    def open_model(self, path: Path) -> None:
        """Load the module."""
        torch.set_num_threads(1)
        self.module = torch.jit.load(str(path), map_location="cpu").eval()

    def run_model(self, feed: dict[str, Any]) -> list[Any]:
        """Call the module with the inputs by position."""
        with torch.inference_mode():
            found = self.module(*(torch.from_numpy(feed[name]) for name in self.inputs))
        found = found if isinstance(found, (list, tuple)) else (found,)
        return [one.numpy() for one in found]
