"""Corrupt one weight of an ONNX model by 1 %, to see what `modelc validate` and `debug` say.

    python -m sample_models.corrupt GOOD.onnx WRONG.onnx

The debug sidecar is copied with it.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import onnx
from onnx import numpy_helper


def main() -> None:
    """Read the command line, write the wrong model."""
    parser = argparse.ArgumentParser(prog="python -m sample_models.corrupt")
    parser.add_argument("good", type=Path)
    parser.add_argument("wrong", type=Path)
    args = parser.parse_args()
    print(f"{corrupt(args.good, args.wrong)} is off by 1 % in {args.wrong}")


def corrupt(good: Path, wrong: Path) -> str:
    """Write `wrong`, with one element of the first weight of several dims changed; its name."""
    model = onnx.load(good)
    tensor = next(one for one in model.graph.initializer if len(one.dims) > 1)
    values = numpy_helper.to_array(tensor).copy()
    values.flat[abs(values).argmax()] *= 1.01
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(model, wrong)
    sidecar = good.with_suffix(".debug.json")
    if sidecar.exists():
        shutil.copyfile(sidecar, wrong.with_suffix(".debug.json"))
    return str(tensor.name)


if __name__ == "__main__":
    main()
