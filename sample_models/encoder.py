"""A text encoder of BERT-base's shape and size (110 million parameters), in our own code."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIGNATURE: tuple[str, ...] = (
    "ids:int64[batch=1..4,seq=2..128]{0..30521}",
    "mask:int64[batch=1..4,seq=2..128]{0..1}",
)
"""Token ids, and the attention mask: 1 where a token counts, 0 where it is padding."""

LONGEST = 512
MASKED = -1e4
"""Score of a token that is masked: finite in half precision too, so that no softmax gives NaN."""

INITIAL_STD = 0.02


class Attention(nn.Module):
    """Multi-head self-attention that never looks at a masked token."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (hidden // heads) ** -0.5
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, masked: Tensor) -> Tensor:
        """Map (batch, seq, hidden) to the same; `masked` is true where (batch, 1, 1, seq) is off.

        A row that is masked throughout attends to all its tokens equally: scores are replaced,
        not added to, so the result does not hang on rounding.
        """
        query, key = self._heads(self.query(x)), self._heads(self.key(x))
        scores = query @ key.transpose(-1, -2) * self.scale
        weights = scores.masked_fill(masked, MASKED).softmax(dim=-1)
        mixed = weights @ self._heads(self.value(x))
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)


class Layer(nn.Module):
    """Attention, then a feed-forward net; each is added to its input and normalised (post-LN)."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads)
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.feed = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        )
        self.feed_norm = nn.LayerNorm(hidden, eps=1e-12)

    def forward(self, x: Tensor, masked: Tensor) -> Tensor:
        """Map (batch, seq, hidden) to the same."""
        x = self.attention_norm(x + self.attention(x, masked))
        out: Tensor = self.feed_norm(x + self.feed(x))
        return out


class Encoder(nn.Module):
    """Embeddings, layers, and a pooled vector taken from the first token."""

    positions: Tensor

    def __init__(self, layers: int, hidden: int, *, heads: int, vocab: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, hidden)
        self.places = nn.Embedding(LONGEST, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.pool = nn.Linear(hidden, hidden)
        self.register_buffer("positions", torch.arange(LONGEST)[None], persistent=False)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Map ids and mask (batch, seq) to hidden (batch, seq, hidden), pooled (batch, hidden)."""
        x = self.norm(self.words(ids) + self.places(self.positions[:, : ids.shape[1]]))
        masked = (mask == 0)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, masked)
        return {"hidden": x, "pooled": torch.tanh(self.pool(x[:, 0]))}


def bert(layers: int = 12, hidden: int = 768, *, heads: int = 12, vocab: int = 30522) -> nn.Module:
    """Build the untrained encoder, the same weights each time; small arguments for small tests."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = Encoder(layers, hidden, heads=heads, vocab=vocab)
        for module in model.modules():
            _randomise(module)
    return model


def _randomise(module: nn.Module) -> None:
    """Give weights BERT's own spread, and norms a scale and shift that are not 1 and 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STD)
    elif isinstance(module, nn.LayerNorm):
        nn.init.uniform_(module.weight, 0.9, 1.1)
        nn.init.normal_(module.bias, std=INITIAL_STD)
