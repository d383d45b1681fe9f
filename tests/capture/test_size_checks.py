"""Sizes at which resizes by scales round otherwise in float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.capture.size_checks import resize_sizes
from modelc.core.contract import Job

JobOf = Callable[..., Job]
X = "x:float32[1,2,h=8..200,16]"


class Resizes(nn.Module):
    """Strided before it is resized."""

    def __init__(self, scale: float, stride: int = 1) -> None:
        super().__init__()
        self.scale, self.stride = scale, stride

    def forward(self, x: Tensor) -> Tensor:
        return functional.interpolate(x[:, :, :: self.stride], scale_factor=self.scale)


def test_sizes_that_float32_floors_otherwise_are_found(job_of: JobOf) -> None:
    found = {place["h"] for place in resize_sizes(job_of(Resizes(0.7), X))}
    assert found == {90, 180}
    one = torch.tensor(0.7) * 90
    assert int(one) == 63
    assert int(0.7 * 90) == 62


def test_the_size_is_that_of_the_input_and_not_of_what_is_resized(job_of: JobOf) -> None:
    (place, *_) = resize_sizes(job_of(Resizes(0.7, stride=2), X))
    assert (place["h"] + 1) // 2 == 90


def test_a_scale_that_float32_has_asks_for_none(job_of: JobOf) -> None:
    assert resize_sizes(job_of(Resizes(2.0), X)) == ()
