"""Of what OpenVINO refuses, the operator that the rest follows from is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from modelc.capture.refusals import RefusedError
from modelc.converters.openvino_reader import read_openvino, root_refusal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.needs("openvino"), pytest.mark.needs("onnx")]


STEP, LENGTH = 3, 8
WINDOW = np.hanning(LENGTH + 1)[:-1].astype(np.float32)


def saved(path: Path, *, window: bool = True, half: bool = True) -> Path:
    """An STFT of two signals of any length."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    numbers = {"step": np.array(STEP), "window": WINDOW, "length": np.array(LENGTH)}
    inputs = ["x", "step", "window" if window else "", "length"]
    graph = helper.make_graph(
        [helper.make_node("STFT", inputs, ["y"], onesided=int(half))],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, "n", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, "frames", "bins", 2])],
        [numpy_helper.from_array(value, name) for name, value in numbers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("window", [True, False])
def test_spectra_of_signals_of_any_length_are_read(
    tmp_path: Path, *, window: bool, half: bool
) -> None:
    import openvino

    model = read_openvino(saved(tmp_path / "m.onnx", window=window, half=half))
    config = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(model, "CPU", config)
    for samples in (8, 9, 20, 35):
        x = np.random.default_rng(samples).standard_normal((2, samples, 1)).astype(np.float32)
        starts = range(0, samples - LENGTH + 1, STEP)
        frames = np.stack([x[:, at : at + LENGTH, 0] for at in starts], 1)
        wanted = (np.fft.rfft if half else np.fft.fft)(frames * (WINDOW if window else 1))
        found = compiled([x])[0]
        np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], wanted, atol=1e-5)


def test_the_operator_behind_the_others_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import openvino

    said = """Check failed
-- STFT-17 with a message:
Shape of signal input must be static with the rank equal to 3.
-- ReduceL2-18 with a message:
data rank has to be known
Summary:
- Conversion is failed for: STFT-17"""

    def refuse(*_: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(openvino.Core, "read_model", refuse)
    with pytest.raises(RefusedError) as caught:
        read_openvino(saved(tmp_path / "m.onnx"))
    assert caught.value.message.startswith("OpenVINO rejected the model: STFT: Shape of signal")
    assert "--static" in caught.value.hint


def test_what_names_no_operator_is_told_as_it_is(tmp_path: Path) -> None:
    assert root_refusal("Exception from core.cpp:84:\nno such file") == ""
    with pytest.raises(RefusedError, match="Could not open the file"):
        read_openvino(tmp_path / "none.onnx")
