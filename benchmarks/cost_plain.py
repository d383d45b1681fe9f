"""The scripts that a user would write instead of modelc: cost_plain.py TARGET CHECKPOINT OUT ARGS.

TARGET is onnx, torchscript or openvino; ARGS the arguments of the sample encoder as JSON. Each
exports with a dynamic batch and sequence and compares one feed with eager, no more.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from modelc.sample_models.encoder import bert


def main(target: str, checkpoint: str, out: str, arguments: str) -> None:
    """Build, load, export, run one feed, compare."""
    model = bert(**json.loads(arguments)).eval()
    model.load_state_dict(load_file(checkpoint))
    ids = torch.randint(0, 1000, (2, 8), generator=torch.Generator().manual_seed(0))
    feed = {"ids": ids, "mask": torch.ones_like(ids)}
    with torch.no_grad():
        wanted = model(**feed)["hidden"].numpy()
        found = _MAKERS[target](model, feed, out)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def _onnx(model: torch.nn.Module, feed: dict[str, torch.Tensor], out: str) -> Any:
    import onnxruntime

    dims = {0: torch.export.Dim("batch", max=4), 1: torch.export.Dim("seq", max=16)}
    torch.onnx.export(
        model, (), out, kwargs=feed, dynamic_shapes=dict.fromkeys(feed, dims), dynamo=True
    )
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    return session.run(None, {name: tensor.numpy() for name, tensor in feed.items()})[0]


def _torchscript(model: torch.nn.Module, feed: dict[str, torch.Tensor], out: str) -> Any:
    traced = torch.jit.trace(model, tuple(feed.values()), strict=False)  # type: ignore[no-untyped-call]  # torch's own
    torch.jit.save(traced, out)
    opened = torch.jit.load(out)  # type: ignore[no-untyped-call]  # torch's own
    return opened(*feed.values())["hidden"].numpy()


def _openvino(model: torch.nn.Module, feed: dict[str, torch.Tensor], out: str) -> Any:
    import openvino

    made = openvino.convert_model(model, example_input=feed)
    openvino.save_model(made, out, compress_to_fp16=False)
    compiled = openvino.Core().compile_model(out, "CPU")
    return compiled([tensor.numpy() for tensor in feed.values()])[0]


_MAKERS = {"onnx": _onnx, "torchscript": _torchscript, "openvino": _openvino}


if __name__ == "__main__":
    main(*sys.argv[1:])
