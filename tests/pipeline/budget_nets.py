"""Models with layers that 8 bits ruin, planted where one knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from numpy.typing import NDArray

OUTLIERS = 1000.0  # times the other channels
PIXELS = 200.0  # the size of box coordinates, beside scores in 0..1


class Outliers(nn.Module):
    """Eight convolutions; the first channel between the fifth and the sixth is 1000 times the rest.

    One scale for that tensor leaves the other channels nothing; the sixth takes it back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1) for _ in range(8)])
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        for block in self.blocks:
            x = block(x).relu()
        out: Tensor = self.head(x)
        return out


class Classifier(Outliers):
    """The first, its head's four channels at one place as the scores of four classes."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = super().forward(x)[:, :, 8, 8]
        return scores


class Detector(nn.Module):
    """As YOLOX: boxes in pixels and scores in 0..1, joined in one tensor and cut apart again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.body = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1) for _ in range(4)])
        self.box = nn.Conv2d(16, 4, 1)
        self.score = nn.Conv2d(16, 6, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.stem(x).relu()
        for conv in self.body:
            x = conv(x).relu()
        both = torch.cat([self.box(x), self.score(x).sigmoid()], 1)
        return {"boxes": both[:, :4], "scores": both[:, 4:]}


def outliers() -> nn.Module:
    """The first, its weights planted."""
    return _planted(Outliers())


def classifier() -> nn.Module:
    """The same with classes."""
    return _planted(Classifier())


def labelled() -> Iterator[tuple[NDArray[np.float32], int]]:
    """A hundred images of noise, labelled by the classifier itself: eager is always right."""
    model = classifier()
    draw = np.random.default_rng(1)
    for _ in range(100):
        image = draw.standard_normal((3, 16, 16)).astype(np.float32)
        with torch.no_grad():
            yield image, int(model(torch.tensor(image[None])).argmax())


def _planted(drawn: Outliers) -> nn.Module:
    model = _drawn(drawn)
    assert isinstance(model, Outliers)
    before, behind = model.blocks[4], model.blocks[5]
    assert isinstance(before, nn.Conv2d)
    assert isinstance(behind, nn.Conv2d)
    with torch.no_grad():
        before.weight[0] *= OUTLIERS
        behind.weight[:, 0] /= OUTLIERS
    return model


def detector() -> nn.Module:
    """The second, its boxes in pixels."""
    model = _drawn(Detector())
    assert isinstance(model, Detector)
    with torch.no_grad():
        model.box.weight *= PIXELS
    return model


def _drawn(model: nn.Module) -> nn.Module:
    """Weights that keep the scale of activations, the same each time; no biases."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, generator=draw)
                assert module.bias is not None
                module.bias.zero_()
    return model.eval()
