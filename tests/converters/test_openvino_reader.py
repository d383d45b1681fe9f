"""Reading models into OpenVINO: Fourier transforms of any length, and the reason of an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from modelc.capture.refusals import RefusedError
from modelc.converters.openvino_reader import fourier_transform, read_openvino, root_refusal

from .conftest import OnnxFile, run_openvino

if TYPE_CHECKING:
    from pathlib import Path

    from modelc.core.contract import Array

pytestmark = [pytest.mark.needs("openvino"), pytest.mark.needs("onnx")]
STEP, LENGTH = 3, 8
WINDOW = np.hanning(LENGTH + 1)[:-1].astype(np.float32)


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("window", [True, False])
def test_an_stft_of_signals_of_any_length_is_read(
    onnx_file: OnnxFile, *, window: bool, half: bool
) -> None:
    name = "window" if window else '""'
    text = f"""g (float[2,n,1] x) => (float[2,frames,bins,2] y) {{
        y = STFT<onesided={int(half)}>(x, step, {name}, length)
    }}"""
    numbers = {"step": np.array(STEP), "window": WINDOW, "length": np.array(LENGTH)}
    model = read_openvino(onnx_file(text, opset=18, **numbers))
    for samples in (8, 9, 20, 35):
        x = np.random.default_rng(samples).standard_normal((2, samples, 1)).astype(np.float32)
        starts = range(0, samples - LENGTH + 1, STEP)
        frames = np.stack([x[:, at : at + LENGTH, 0] for at in starts], 1)
        wanted = (np.fft.rfft if half else np.fft.fft)(frames * (WINDOW if window else 1))
        (found,) = run_openvino(model, x)
        np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], wanted, atol=1e-5)


SAID = """Check failed
-- STFT-17 with a message:
Shape of signal input must be static with the rank equal to 3.
-- ReduceL2-18 with a message:
data rank has to be known
Summary:
- Conversion is failed for: STFT-17"""


def test_the_operator_that_others_depend_on_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import openvino

    def fail(*_: object) -> None:
        raise RuntimeError(SAID)

    assert root_refusal(SAID).partition(":")[0] == "STFT"
    monkeypatch.setattr(openvino.Core, "read_model", fail)
    with pytest.raises(RefusedError) as caught:
        read_openvino(tmp_path / "m.onnx")
    assert root_refusal(SAID) in caught.value.message
    assert "--static" in caught.value.hint


def test_an_error_without_an_operator_is_passed_on(tmp_path: Path) -> None:
    unknown = "Exception from core.cpp:84:\nno such file"
    assert root_refusal(unknown) == ""
    with pytest.raises(RefusedError, match=r"none\.onnx"):
        read_openvino(tmp_path / "none.onnx")


def transform_error(given: Array, shape: list[int], axis: int, *, inverse: bool = False) -> float:
    """The error of a transform in units of float32's roundoff, relative to the exact one."""
    import openvino
    from openvino import opset15 as op

    x = op.parameter([*shape, 2], np.float32, name="x")
    model = openvino.Model([fourier_transform(x.output(0), axis, inverse=inverse)], [x])
    exact = given[..., 0].astype(np.float64) + 1j * given[..., 1]
    wanted = (np.fft.ifft if inverse else np.fft.fft)(exact, axis=axis)
    (found,) = run_openvino(model, given)
    error = np.linalg.norm(found[..., 0] + 1j * found[..., 1] - wanted)
    return float(error / np.linalg.norm(wanted) * 2.0**24)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dynamic", [False, True])
def test_transforms_are_as_exact_as_float32(axis: int, dynamic: bool, inverse: bool) -> None:
    rng = np.random.default_rng(axis)
    for length in (1, 2, 3, 39, 64, 100, 257, 1000, 9001):
        shape = [2, 3, 2]
        shape[axis] = length
        given = rng.standard_normal((*shape, 2)).astype(np.float32)
        declared = [-1] * len(shape) if dynamic else shape
        assert transform_error(given, declared, axis, inverse=inverse) <= 12, length


@pytest.mark.parametrize("length", [46_341, 70_001])
def test_transforms_whose_squares_exceed_32_bits_are_exact(length: int) -> None:
    given = np.random.default_rng(0).standard_normal((length, 2)).astype(np.float32)
    assert transform_error(given, [-1], 0) <= 20
