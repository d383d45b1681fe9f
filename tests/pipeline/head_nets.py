"""A head like YOLO's: boxes in pixels and ten scores in 0..1 of one tensor; seeded weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BOXES, CLASSES, PIXELS = 4, 10, 640.0


class Head(nn.Module):
    """`[N, 3, 16, 16] -> [N, 4 + 10, 8, 8]`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)
        )
        self.boxes = nn.Conv2d(16, BOXES, 1)
        self.scores = nn.Conv2d(16, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Boxes beside scores."""
        features = torch.relu(self.stem(x))
        return torch.cat([self.boxes(features), self.scores(features).sigmoid()], dim=1)


def head() -> Head:
    """With weights that make scores of all sizes."""
    torch.manual_seed(7)
    found = Head().eval()
    with torch.no_grad():
        found.boxes.weight.mul_(PIXELS / 4)
        nn.init.constant_(dict(found.boxes.named_parameters())["bias"], PIXELS / 2)
        found.scores.weight.mul_(4)
        dict(found.scores.named_parameters())["bias"].sub_(1)
    return found
