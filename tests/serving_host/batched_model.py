"""What the Python-based backends of the test server share: they join requests and split replies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class BatchedModel:
    """A model of the repository; a backend adds `open_model` and `run_model`."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the model file of this version."""
        self.config = json.loads(args["model_config"])
        folder = Path(args["model_repository"]) / args["model_version"]
        usual = {"openvino": "model.xml", "pytorch": "model.pt"}
        name = usual.get(self.config["backend"], "model.onnx")
        name = self.config["default_model_filename"] or name
        self.inputs = [one["name"] for one in self.config["input"]]
        self.outputs = [one["name"] for one in self.config["output"]]
        self.open_model(folder / name)

    def open_model(self, path: Path) -> None:
        """Open the file."""
        raise NotImplementedError

    def run_model(self, feed: dict[str, Any]) -> list[Any]:
        """Return the outputs in the order of the configuration."""
        raise NotImplementedError

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer the requests of a batch together if they fit, each alone otherwise."""
        feeds = [
            {name: pb_utils.get_input_tensor_by_name(one, name).as_numpy() for name in self.inputs}
            for one in requests
        ]
        shapes = {tuple(array.shape[1:] for array in feed.values()) for feed in feeds}
        if len(feeds) > 1 and self.config["max_batch_size"] and len(shapes) == 1:
            joined = {name: np.concatenate([feed[name] for feed in feeds]) for name in self.inputs}
            ends = np.cumsum([len(next(iter(feed.values()))) for feed in feeds])[:-1]
            whole = [np.split(output, ends) for output in self.run_model(joined)]
            return [self.reply(list(parts)) for parts in zip(*whole, strict=True)]
        return [self.answer(feed) for feed in feeds]

    def answer(self, feed: dict[str, Any]) -> Any:
        """Answer one request; the model's error is the reply's."""
        try:
            return self.reply(self.run_model(feed))
        except Exception as error:  # noqa: BLE001 - whatever the runtime raises
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))

    def reply(self, outputs: list[Any]) -> Any:
        """Return a response with the outputs in the configuration's dtypes and shapes."""
        tensors = [
            pb_utils.Tensor(name, np.ascontiguousarray(array))
            for name, array in zip(self.outputs, outputs, strict=True)
        ]
        return pb_utils.InferenceResponse(output_tensors=tensors)
