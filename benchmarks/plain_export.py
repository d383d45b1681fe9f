"""The script a user would write instead of `modelc export`; export.py measures against it.

python benchmarks/plain_export.py CHECKPOINT OUT.onnx.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime as ort
import torch
from safetensors.torch import load_file

from modelc.sample_models.resnet import resnet50


def main(checkpoint: str, out: str) -> None:
    """Build, load, export with a dynamic batch, run one feed in onnxruntime, compare with eager."""
    model = resnet50().eval()
    model.load_state_dict(load_file(checkpoint))
    image = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    batch = torch.export.Dim("batch", min=1, max=4)
    torch.onnx.export(
        model, (image,), out, input_names=["image"], dynamic_shapes=({0: batch},), dynamo=True
    )
    session = ort.InferenceSession(out, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"image": image.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, model(image).numpy(), rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    main(*sys.argv[1:])
