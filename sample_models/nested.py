"""A detector with nested values: a dict of tensors in; a dict of tensor, tuple and record out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

SIGNATURE: tuple[str, ...] = (
    "inputs.image:float32[batch=1..4,3,32,32]",
    "inputs.meta:float32[batch=1..4,6]",
)
"""The two entries of forward's one argument: images, and six numbers about each."""


@dataclass(frozen=True, kw_only=True)
class Aux:
    """What the detector returns beside its result: embedding (batch, 16), energy (batch,)."""

    embedding: Tensor
    energy: Tensor


class Detector(nn.Module):
    """Scores, box centres and sizes, and an auxiliary record, from images and numbers together."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.read = nn.Linear(6, 16)
        self.join = nn.Linear(24 * 4 + 16, 16)
        self.scores = nn.Linear(16, 5)
        self.centres = nn.Linear(16, 2)
        self.sizes = nn.Linear(16, 2)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor | tuple[Tensor, ...] | Aux]:
        """Map image (batch, 3, 32, 32) and meta (batch, 6) to scores (batch, 5), boxes and aux.

        `boxes` is a pair: centres (batch, 2) and sizes (batch, 2), the latter above zero.
        """
        seen, read = self.look(inputs["image"]), torch.tanh(self.read(inputs["meta"]))
        joined = torch.tanh(self.join(torch.cat([seen, read], dim=1)))
        boxes = (self.centres(joined), nn.functional.softplus(self.sizes(joined)))
        aux = Aux(embedding=joined, energy=joined.square().mean(dim=1))
        return {"scores": self.scores(joined), "boxes": boxes, "aux": aux}


def detector() -> nn.Module:
    """Build the untrained detector, the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Detector()
        for weight in model.parameters():
            if weight.ndim > 1:
                nn.init.kaiming_normal_(weight)
    return model
