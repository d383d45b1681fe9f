"""Models of several parts with the functions that compose them, for `--part` and `--compose`.

`diffusion` is a toy of Stable Diffusion: a text encoder, a UNet with timesteps and cross attention,
a VAE, four steps of a sampler with classifier-free guidance. `translator` is an encoder and a
decoder in a greedy loop, `detector` a network whose boxes Python suppresses, `two_encoders` has two
parts of one interface, `tied` two that share an embedding, `affine` is small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Parts = Mapping[str, Callable[..., Any]]
Arrays = dict[str, Any]
STEPS = (999, 749, 499, 249)
_memory: dict[bytes, Any] = {}


class TextEncoder(nn.Module):
    """Two layers of attention over token and position embeddings."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(60, dim), nn.Embedding(8, dim)
        layer = nn.TransformerEncoderLayer(dim, 2, 32, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Any:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.layers(self.token(ids) + self.place(places))


class Block(nn.Module):
    """A convolution with the time added, and cross attention to the text."""

    def __init__(self, channels: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.time = nn.Linear(dim, channels)
        self.cross = nn.MultiheadAttention(channels, 2, kdim=dim, vdim=dim, batch_first=True)

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Any:
        x = x + self.conv(nn.functional.silu(self.norm(x))) + self.time(time)[:, :, None, None]
        flat = x.flatten(2).transpose(1, 2)
        flat = flat + self.cross(flat, context, context, need_weights=False)[0]
        return flat.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """One level down and up, with a timestep."""

    def __init__(self, channels: int = 16, dim: int = 16) -> None:
        super().__init__()
        self.dim = dim
        self.first = nn.Conv2d(4, channels, 3, padding=1)
        self.last = nn.Conv2d(channels, 4, 3, padding=1)
        self.down, self.up = Block(channels, dim), Block(channels, dim)

    def forward(self, latent: Tensor, timestep: Tensor, context: Tensor) -> Any:
        rates = 0.01 * torch.exp(-torch.arange(self.dim // 2, device=latent.device) * 0.5)
        angle = timestep.float()[:, None] * rates
        time = torch.cat([angle.sin(), angle.cos()], 1)
        x = self.first(latent)
        low = self.down(nn.functional.avg_pool2d(x, 2), time, context)
        x = x + nn.functional.interpolate(low, scale_factor=2.0, mode="nearest")
        return self.last(self.up(x, time, context))


class Vae(nn.Module):
    """A decoder, which is a method, and an encoder that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Sequential(
            nn.Conv2d(4, 8, 3, padding=1), nn.SiLU(), nn.Upsample(scale_factor=2),
            nn.Conv2d(8, 3, 3, padding=1),
        )  # fmt: skip
        self.encoder = nn.Conv2d(3, 8, 3, padding=1, stride=2)

    def decode(self, latent: Tensor) -> Any:
        return self.decoder(latent / 0.18)


class Diffusion(nn.Module):
    """The three parts."""

    def __init__(self) -> None:
        super().__init__()
        self.text_encoder, self.unet, self.vae = TextEncoder(), UNet(), Vae()


def sample_image(parts: Parts, ids: Any, empty: Any, noise: Any) -> Arrays:
    """Four steps with classifier-free guidance."""
    context = np.concatenate([parts["text_encoder"](empty), parts["text_encoder"](ids)])
    latent = noise
    for step in STEPS:
        both = np.concatenate([latent, latent])
        timestep = np.full([len(both)], step, np.int64)
        free, held = np.split(parts["unet"](both, timestep, context=context), 2)
        latent = latent - 0.1 * (free + 4.0 * (held - free))
    return {"image": parts["vae"](0.18 * latent)}


class TwoEncoders(nn.Module):
    """Two parts of one interface, and a head over both."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = (
            nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 8), nn.GELU()) for _ in range(2)
        )
        self.head = nn.Linear(16, 3)


def join_encoders(parts: Parts, ids: Any) -> Any:
    """Concatenate both encodings."""
    return parts["head"](np.concatenate([parts["small"](ids), parts["large"](ids)], axis=-1))


class Translator(nn.Module):
    """An encoder and a decoder without a cache, which share an embedding."""

    def __init__(self, dim: int = 16, vocab: int = 40) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.below = nn.TransformerEncoderLayer(dim, 2, 32, batch_first=True, dropout=0)
        self.above = nn.TransformerDecoderLayer(dim, 2, 32, batch_first=True, dropout=0)
        self.head = nn.Linear(dim, vocab)

    def encode(self, ids: Tensor) -> Any:
        return self.below(self.embed(ids))

    def decode(self, tokens: Tensor, memory: Tensor) -> Any:
        size = tokens.shape[1]
        mask = torch.ones(size, size, dtype=torch.bool, device=tokens.device).triu(1)
        return self.head(self.above(self.embed(tokens), memory, tgt_mask=mask))


def translate(parts: Parts, ids: Any) -> Arrays:
    """Six greedy tokens."""
    memory = parts["encoder"](ids)
    tokens, logits = np.zeros((len(ids), 1), np.int64), None
    for _ in range(6):
        logits = parts["decoder"](tokens, memory)
        tokens = np.concatenate([tokens, logits[:, -1:].argmax(-1)], axis=1)
    return {"tokens": tokens, "logits": logits}


class Tied(nn.Module):
    """An encoder and a decoder with one embedding, which the decoder's last product reads too."""

    def __init__(self, dim: int = 32, vocab: int = 2500) -> None:
        super().__init__()
        self.embed, self.first = nn.Embedding(vocab, dim), nn.Linear(dim, dim)
        self.second, self.head = nn.Linear(dim, dim), nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.embed.weight

    def encode(self, ids: Tensor) -> Any:
        return self.first(self.embed(ids)).tanh()

    def decode(self, ids: Tensor, memory: Tensor) -> Any:
        return self.head(self.second(self.embed(ids) + memory.mean(1, keepdim=True)).tanh())


def read_once(parts: Parts, ids: Any) -> Any:
    """The logits of all tokens."""
    return parts["decoder"](ids, parts["encoder"](ids))


class Detector(nn.Module):
    """Boxes and scores for each cell of a grid."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()
        )
        self.boxes, self.scores = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 3, 1)

    def forward(self, image: Tensor) -> Any:
        x = self.body(image)
        boxes = self.boxes(x).exp().flatten(2).transpose(1, 2)
        return boxes, (3 * self.scores(x)).sigmoid().flatten(2).transpose(1, 2)


def detect(parts: Parts, image: Any) -> Arrays:
    """The boxes above a threshold, of each the best class; as many as there are."""
    boxes, scores = (one[0] for one in parts["detector"](image))
    best = scores.max(-1)
    kept = best > 0.6
    return {"boxes": boxes[kept], "scores": best[kept], "classes": scores.argmax(-1)[kept]}


class Affine(nn.Module):
    """Two small parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)


def chain(parts: Parts, x: Any) -> Any:
    """One part after the other, on rows that are doubled."""
    return parts["second"](np.tanh(parts["first"](np.concatenate([x, x]))))


def chain_from_memory(parts: Parts, x: Any) -> Any:
    """As `chain`, with a cache that outlives the call."""
    if x.tobytes() not in _memory:
        _memory[x.tobytes()] = parts["second"](np.tanh(parts["first"](np.concatenate([x, x]))))
    return _memory[x.tobytes()]


def chain_of_shapes(parts: Parts, x: Any) -> Any:
    """As `chain`, but what the first part returns is used for its shape alone."""
    rows = np.concatenate([x, x])
    return parts["second"](rows[:, : parts["first"](rows).shape[1]])


def chain_at_random(parts: Parts, x: Any) -> Any:
    """As `chain`, with noise that is not an input."""
    noise = np.random.default_rng().standard_normal(x.shape, dtype=np.float32)
    return chain(parts, x + noise)


def chain_tensors(parts: Parts, x: Any) -> Any:
    """As `chain`, with a tensor in place of an array."""
    return parts["second"](torch.from_numpy(parts["first"](x)))


KINDS: dict[str, Callable[[], nn.Module]] = {
    "diffusion": Diffusion, "two_encoders": TwoEncoders, "translator": Translator,
    "detector": Detector, "affine": Affine, "tied": Tied,
}  # fmt: skip


def build(kind: str) -> nn.Module:
    """A factory for `--model modelc.tests.nets.composed_nets:build --model-arg kind=NAME`."""
    return KINDS[kind]()
