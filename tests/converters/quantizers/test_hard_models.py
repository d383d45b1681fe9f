"""Models on which a quantizer once failed, silently or with an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from torch import Tensor, nn

from modelc.converters.onnx_guard import copy_external_weights
from modelc.converters.quantizers.quantizer_registry import find_quantizer
from modelc.core.contract import Feed, QuantizeJob
from modelc.core.errors import ConversionError, ErrorCode

from ...reasons import has_code
from .conftest import FloatModel, float_model_of, sqnr

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own; the pipeline logs them


class Scaled(nn.Module):
    """`x w + beta b`, as torch.addmm computes it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(64, 64))
        self.b = nn.Parameter(torch.randn(64))
        self.head = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(torch.relu(torch.addmm(self.b, x, self.w, beta=20)))
        return found


class TwoReaders(nn.Module):
    """One tensor that a convolution and a product read, along axes of different sizes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.product = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        found: Tensor = self.conv(x) + self.product(x)
        return found


def rows(index: int) -> Feed:
    return {"x": np.random.default_rng(index).standard_normal((1, 64)).astype(np.float32)}


def pictures(index: int) -> Feed:
    return {"x": np.random.default_rng(index).standard_normal((1, 3, 12, 12)).astype(np.float32)}


def silent_first(index: int) -> Feed:
    """The first sample is a thousand millionth of the others."""
    scale = np.float32(1e-9 if index == 0 else 1)
    return {"x": rows(index)["x"] * scale}


def quantized(floats: FloatModel, quantizer: str, consumer: str, folder: Path) -> float:
    folder.mkdir()
    made = find_quantizer(quantizer).quantize(floats.job(folder, consumer))
    return sqnr(made.path, floats)


CASES = {
    "a Gemm with beta": (Scaled, "x:float32[batch=1..32,64]", rows),
    "one Linear": (lambda: nn.Linear(64, 64), "x:float32[batch=1..32,64]", rows),
    "two readers": (TwoReaders, "x:float32[batch=1..8,3,12,12]", pictures),
    "a silent first sample": (Scaled, "x:float32[batch=1..32,64]", silent_first),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("consumer", ["onnx", "tensorrt-onnx"])
def test_the_quantized_model_is_accurate(case: str, consumer: str, tmp_path: Path) -> None:
    make, text, feed = CASES[case]
    module: nn.Module = make()
    given: Callable[[int], Feed] = feed
    floats = float_model_of(tmp_path, "hard", module, (text,), given)
    assert quantized(floats, "onnxruntime", consumer, tmp_path / "made") > 25


def external_model(folder: Path, location: str) -> Path:
    """A model that says that its weights are in `location`."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[n,4] x) => (float[n,4] y)'
        " { y = MatMul(x, w) }"
    )
    tensor = model.graph.initializer.add()
    tensor.name, tensor.data_type, tensor.dims[:] = "w", TensorProto.FLOAT, [4, 4]
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_nothing_is_written_outside_the_work_folder(digits: FloatModel, tmp_path: Path) -> None:
    parent, out = tmp_path / "in", tmp_path / "out" / "work"
    parent.mkdir()
    out.mkdir(parents=True)
    (tmp_path / "data.bin").write_bytes(bytes(64))
    (tmp_path / "out" / "data.bin").write_text("mine")
    path = external_model(parent, "../data.bin")
    job = QuantizeJob(
        parent=path,
        consumer="onnx",
        signature=digits.signature,
        calibration=digits.feeds(),
        folder=out,
    )
    with pytest.raises(ConversionError, check=has_code(ErrorCode.UNSAFE_PATH, naming="data.bin")):
        find_quantizer("onnxruntime").quantize(job)
    assert (tmp_path / "out" / "data.bin").read_text() == "mine"


def test_weights_in_a_subfolder_are_copied_with_it(tmp_path: Path) -> None:
    (tmp_path / "in" / "w").mkdir(parents=True)
    (tmp_path / "in" / "w" / "data.bin").write_bytes(bytes(64))
    path = external_model(tmp_path / "in", "w/data.bin")
    model = onnx.load(str(path), load_external_data=False)
    (tmp_path / "out").mkdir()
    assert copy_external_weights(model, path, tmp_path / "out") == ("w/data.bin",)
    assert (tmp_path / "out" / "w" / "data.bin").is_file()


def test_missing_weights_are_an_error(tmp_path: Path) -> None:
    path = external_model(tmp_path, "gone.bin")
    model = onnx.load(str(path), load_external_data=False)
    with pytest.raises(ConversionError, check=has_code(ErrorCode.NOT_FOUND, naming="gone.bin")):
        copy_external_weights(model, path, tmp_path)
