"""Discrete Fourier transforms in OpenVINO: any length, in any axis, static and dynamic."""

from __future__ import annotations

import numpy as np
import pytest

from modelc.converters.openvino_reader import fourier_transform

pytestmark = pytest.mark.needs("openvino")


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_transform_is_as_near_as_that_of_float32(axis: int, dynamic: bool, inverse: bool) -> None:
    import openvino
    from openvino import opset15 as op

    rng = np.random.default_rng(axis)
    for length in (1, 2, 3, 39, 64, 100, 257, 1000, 9001):
        shape = [2, 3, 2]
        shape[axis] = length
        taken = [-1 if dynamic else size for size in shape]
        x = op.parameter([*taken, 2], np.float32, name="x")
        model = openvino.Model([fourier_transform(x.output(0), axis, inverse=inverse)], [x])
        run = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        given = rng.standard_normal((*shape, 2)).astype(np.float32)
        exact = given[..., 0].astype(np.float64) + 1j * given[..., 1]
        wanted = (np.fft.ifft if inverse else np.fft.fft)(exact, axis=axis)
        found = run([given])[0]
        error = np.linalg.norm(found[..., 0] + 1j * found[..., 1] - wanted)
        assert error <= 12 * 2.0**-24 * np.linalg.norm(wanted), length


@pytest.mark.parametrize("length", [46_341, 70_001])
def test_squares_beyond_32_bits_are_right(length: int) -> None:
    import openvino
    from openvino import opset15 as op

    x = op.parameter([-1, 2], np.float32, name="x")
    model = openvino.Model([fourier_transform(x.output(0), 0, inverse=False)], [x])
    run = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    given = np.random.default_rng(0).standard_normal((length, 2)).astype(np.float32)
    wanted, found = np.fft.fft(given[:, 0] + 1j * given[:, 1]), run([given])[0]
    error = np.linalg.norm(found[:, 0] + 1j * found[:, 1] - wanted)
    assert error <= 20 * 2.0**-24 * np.linalg.norm(wanted)
