"""Small nets on which a right artifact may differ from eager until eager is asked again.

`build` is a factory for `--model modelc.tests.nets.second_look_nets:build --model-arg name=NAME`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

FACTORY = "modelc.tests.nets.second_look_nets:build"


class Ranking(nn.Module):
    """The two best of four experts, mixed, and their numbers: rows of zeros tie them all."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4, bias=False)
        self.experts = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, 8) to (batch, 2), twice."""
        scores = torch.softmax(self.gate(x), dim=-1)
        best = scores.topk(2, dim=-1).indices
        return self.experts(x).gather(1, best) + self.experts.weight[best].sum(-1), best


class Argmax(nn.Module):
    """The class of each row, which roundoff decides where two scores are close."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 200)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, 8) to classes and scores."""
        scores = self.layer(x)
        return scores.argmax(-1), scores


class Normed(nn.Module):
    """Two norms that amplify one rounding of constant rows to the whole output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 64)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 8) to (batch, 64)."""
        inner = self.layer(x)
        return self._norm(self._norm(inner - inner.mean()) * 3 + inner)

    @staticmethod
    def _norm(x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-30).sqrt()


class Encoder(nn.Module):
    """torch's own encoder, whose fast path fills padded positions with zeros."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Map (batch, 7, 8) with lengths to the same shape."""
        padded = torch.arange(x.shape[1])[None] >= lengths[:, None]
        found: Tensor = self.layers(x, src_key_padding_mask=padded)
        return found


class Gated(nn.Module):
    """A branch on the values of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 8) to the same shape."""
        if x.mean() > 0:
            found: Tensor = self.layer(x)
            return found
        return -x


class Buckets(nn.Module):
    """Rounded positions, which depend on the size alone: artifacts are swept over it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 8) to the same shape."""
        rows = x.shape[0]
        return x * self.scale + (torch.arange(rows) / rows * 10).long()[:, None]


NETS = {
    "ranking": (Ranking, ("x:float32[batch=1..8,8]",)),
    "argmax": (Argmax, ("x:float32[batch=1..64,8]",)),
    "normed": (Normed, ("x:float32[batch=2..8,8]",)),
    "encoder": (Encoder, ("x:float32[batch=2..4,7,8]", "lengths:int64[batch]{1..7}")),
    "gated": (Gated, ("x:float32[batch=1..8,8]",)),
    "buckets": (Buckets, ("x:float32[batch=1..40,8]",)),
}


def build(name: str) -> nn.Module:
    """Build the net; its weights come from the checkpoint."""
    torch.manual_seed(0)
    return NETS[name][0]().eval()
