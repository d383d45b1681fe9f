"""Padding that follows from sizes: as the model pads, at sizes that were not captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from modelc.capture.evidence import Symptom, evidence_of
from modelc.capture.rewrite_table import apply_rewrites, suggest_rewrites
from modelc.capture.transformer_rewrites import COMPUTED_PADDING as PADDING

from .conftest import Opened
from .test_rewrites import agree, trace

Open = Callable[..., Opened]
SPEC = "pixel_values:float32[batch=1..4,3,height=32..72,width=32..64]"
FIXED = evidence_of(Symptom.SIZE_BRANCH)
pytest.importorskip("transformers")


def images(height: int, width: int) -> torch.Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet-v1", "mobilenet-v2", "focalnet"])
def test_padding_follows_from_the_size(opened: Open, name: str) -> None:
    from modelc.tests.nets.cases import build

    eager, signature = opened(build(name), SPEC)
    with pytest.raises((RuntimeError, AssertionError)):
        agree(trace(eager, signature), eager, signature)
    assert ("computed-padding",) in suggest_rewrites(eager, FIXED)

    with apply_rewrites(eager, ("computed-padding",)) as copied:
        made = trace(copied, signature)

    agree(made, eager, signature)


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_the_amounts_are_those_of_the_library(kernel: int, stride: int, dilation: int) -> None:
    from transformers.models.mobilenet_v2 import modeling_mobilenet_v2 as library

    layer = nn.Conv2d(3, 2, kernel, stride=stride, dilation=dilation)
    net = library.MobileNetV2ConvLayer.__new__(library.MobileNetV2ConvLayer)
    nn.Module.__init__(net)
    usual = {size: library.apply_tf_padding(images(size, 20 - size), layer) for size in range(1, 9)}
    with PADDING.during(net):
        for size, padded in usual.items():
            assert torch.equal(library.apply_tf_padding(images(size, 20 - size), layer), padded)
    assert library.apply_tf_padding.__module__ == library.__name__


def test_it_suits_models_that_pad_so_alone() -> None:
    assert not PADDING.may_help(nn.Linear(2, 2), FIXED)
