"""The script a user would write instead of `modelc build-trt --int8`; build_trt.py measures it.

python benchmarks/plain_modelopt.py MODEL.onnx CALIB_FOLDER OUT.onnx.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from modelopt.onnx.quantization import quantize


def main(model: str, calib: str, out: str) -> None:
    """Load every .npz at once, as the library's own command does, and quantize with entropy."""
    samples = [np.load(path) for path in sorted(Path(calib).glob("*.npz"))]
    data = {name: np.concatenate([one[name] for one in samples]) for name in samples[0].files}
    quantize(
        model,
        calibration_data=data,
        calibration_method="entropy",
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=out,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
