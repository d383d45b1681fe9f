"""A sequence tagger: embedding, two bidirectional LSTM layers, one linear layer per token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIGNATURE: tuple[str, ...] = ("tokens:int64[batch=1..4,seq=2..64]{0..999}",)
"""Token ids of a vocabulary of 1000."""


class Tagger(nn.Module):
    """Scores of every tag for every token."""

    def __init__(self, vocab: int, hidden: int, *, tags: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.classify = nn.Linear(2 * hidden, tags)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, seq) to scores (batch, seq, tags)."""
        states, _ = self.lstm(self.embed(tokens))
        scores: Tensor = self.classify(states)
        return scores


def tagger(vocab: int = 1000, hidden: int = 64, *, tags: int = 9) -> nn.Module:
    """Build the untrained tagger, the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Tagger(vocab, hidden, tags=tags)
        for weight in (*model.lstm.parameters(), model.classify.weight):
            if weight.ndim > 1:
                nn.init.kaiming_normal_(weight)
    return model
