"""The models of shapes.py: ten architectures, the dims that each takes, and how they are related.

`build` is a factory for `--model modelc.tests.nets.dynamic_nets:build --model-arg name=NAME`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.tests.nets.small_nets import Recurrent

FACTORY = "modelc.tests.nets.dynamic_nets:build"
_SIDES = "image:float32[batch=1..3,3,h={step}*(k=1..5),w={step}*(k2=1..6)]"


class Stages(nn.Module):
    """A CNN that halves twice and folds 2 x 2 pixels into channels: sides are multiples of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU())
        self.head = nn.Conv2d(48, 5, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Class maps at an eighth of the size, and the classes of the whole."""
        inner = self.second(self.first(image))
        maps: Tensor = self.head(functional.pixel_unshuffle(inner, 2))
        return maps, maps.flatten(2).mean(2)


class UNet(nn.Module):
    """Two levels down and up with skips: sides are multiples of 4."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 12, 3, 2, 1)
        self.up, self.last = nn.ConvTranspose2d(12, 8, 2, 2), nn.ConvTranspose2d(16, 3, 2, 2)

    def forward(self, image: Tensor) -> Tensor:
        """An image of the same size."""
        shallow = torch.relu(self.down(image))
        again = self.up(torch.relu(self.deep(shallow)))
        out: Tensor = self.last(torch.cat([shallow, again], 1))
        return out + image


class Patches(nn.Module):
    """A ViT whose learnt 4 x 4 positions are interpolated to the patches that there are."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 8, 8)
        self.positions = nn.Parameter(torch.randn(1, width, 4, 4))
        self.token = nn.Parameter(torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 48, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """The class token and the patches."""
        cells = self.cut(image)
        places = functional.interpolate(self.positions, cells.shape[2:], mode="bilinear")
        rows = (cells + places).flatten(2).transpose(1, 2)
        found = self.layers(torch.cat([self.token.expand(rows.shape[0], -1, -1), rows], 1))
        return found[:, 0], found[:, 1:]


class Detector(nn.Module):
    """A one-stage detection head: boxes from a grid of the image's size, and the best scores."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 16, 3, 2, 1))
        self.head = nn.Conv2d(16, 7, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes (batch, cells, 4) in pixels, and the scores of the best four cells."""
        raw = self.head(torch.nn.functional.silu(self.body(image)))
        rows, columns = raw.shape[2:]
        ys = torch.arange(rows, dtype=raw.dtype)[:, None].expand(rows, columns)
        xs = torch.arange(columns, dtype=raw.dtype)[None].expand(rows, columns)
        flat = raw.flatten(2).transpose(1, 2)
        centres = (flat[..., :2].sigmoid() + torch.stack([xs, ys], -1).reshape(1, -1, 2)) * 4
        boxes = torch.cat([centres, flat[..., 2:4].clamp(-4, 4).exp() * 4], -1)
        scores = flat[..., 4].sigmoid() * flat[..., 5:].softmax(-1).amax(-1)
        return boxes, scores.topk(4).values


class Conformer(nn.Module):
    """Attention and a depthwise convolution over time, masked beyond each row's length."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(8, width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.point, self.back = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depth = nn.Conv1d(width, width, 7, padding=3, groups=width)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        """Frames (batch, time, 8) and lengths (batch) to (batch, time, width)."""
        places = torch.arange(frames.shape[1])[None] >= lengths[:, None]
        inner = self.up(frames)
        shown = self.attention(inner, inner, inner, key_padding_mask=places, need_weights=False)[0]
        inner = self.norm(inner + shown)
        over = functional.glu(self.point(inner.transpose(1, 2)), 1)
        over = over.masked_fill(places[:, None], 0.0)
        out: Tensor = inner + self.back(functional.silu(self.depth(over))).transpose(1, 2)
        return out


class Messages(nn.Module):
    """A graph net: each edge sends its source's state to its target, twice."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.send, self.take = nn.Linear(width + 3, width), nn.Linear(2 * width, width)

    def forward(self, nodes: Tensor, edges: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes (nodes, 16), edges (2, edges) and (edges, 3) to the nodes and their mean."""
        for _ in range(2):
            sent = torch.relu(self.send(torch.cat([nodes[edges[0]], kinds], 1)))
            heard = torch.zeros_like(nodes).index_add(0, edges[1], sent)
            nodes = torch.tanh(self.take(torch.cat([nodes, heard], 1)))
        return nodes, nodes.mean(0)


class Step(nn.Module):
    """One step of a decoder with a cache: a token, the past, a mask that is one longer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(50, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, 50)

    def forward(
        self, token: Tensor, keys: Tensor, values: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the next token, and both caches one longer."""
        x = self.words(token)
        keys = torch.cat([keys, self.key(x)], 1)
        values = torch.cat([values, self.value(x)], 1)
        scores = self.query(x) @ keys.transpose(1, 2) / 4 + (mask[:, None] - 1.0) * 1e4
        return self.out(scores.softmax(-1) @ values)[:, 0], keys, values


class Tokens(nn.Module):
    """A model of transformers behind tensors of its own names."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], output: str) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, ids: Tensor, other: Tensor) -> Tensor:
        """The output of that name."""
        found = self.model(**dict(zip(self.names, (ids, other), strict=True)), use_cache=False)
        out: Tensor = found[self.output]
        return out


class Masked(Tokens):
    """The same for encoders, which know no cache."""

    def forward(self, ids: Tensor, other: Tensor) -> Tensor:
        """The output of that name."""
        out: Tensor = self.model(input_ids=ids, attention_mask=other)[self.output]
        return out


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    return Masked(BertModel(config), ("input_ids", "attention_mask"), "last_hidden_state")


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    return Tokens(LlamaForCausalLM(config), ("input_ids", "attention_mask"), "logits")


def _bart() -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=100, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
        max_position_embeddings=64,
    )  # fmt: skip
    names = ("input_ids", "decoder_input_ids")
    return Tokens(BartForConditionalGeneration(config), names, "logits")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One row: what builds it and what goes in."""

    build: Callable[[], nn.Module]
    inputs: tuple[str, ...]


_WORDS = "ids:int64[batch=1..4,seq=1..24]{0..99}"
ARCHITECTURES: Mapping[str, Architecture] = {
    "cnn": Architecture(build=Stages, inputs=(_SIDES.format(step=8),)),
    "encoder": Architecture(build=_bert, inputs=(_WORDS, "other:int64[batch,seq]{1..1}")),
    "decoder": Architecture(build=_llama, inputs=(_WORDS, "other:int64[batch,seq]{1..1}")),
    "decoder-step": Architecture(
        build=Step,
        inputs=(
            "token:int64[batch=1..4,1]{0..49}", "keys:float32[batch,past=1..12,16]",
            "values:float32[batch,past2=past,16]", "mask:float32[batch,n=past+1]{0..1}",
        ),
    ),
    "seq2seq": Architecture(
        build=_bart, inputs=(
            "ids:int64[batch=1..3,source=1..16]{3..99}", "other:int64[batch,target=1..12]{3..99}",
        ),
    ),
    "lstm": Architecture(build=Recurrent, inputs=("ids:int64[batch=1..4,seq=1..20]{0..199}",)),
    "conformer": Architecture(
        build=Conformer,
        inputs=("frames:float32[batch=1..4,time=2..40,8]", "lengths:int64[batch]{2..40}"),
    ),
    "u-net": Architecture(build=UNet, inputs=(_SIDES.format(step=4),)),
    "vit": Architecture(build=Patches, inputs=(_SIDES.format(step=8),)),
    "detection": Architecture(build=Detector, inputs=(_SIDES.format(step=8),)),
    "graph": Architecture(
        build=Messages,
        inputs=(
            "nodes:float32[nodes=4..30,16]", "edges:int64[2,edges=1..50]{0..3}",
            "kinds:float32[edges2=edges,3]",
        ),
    ),
}  # fmt: skip


def build(name: str) -> nn.Module:
    """Build the model of that name in eval mode, the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ARCHITECTURES[name].build().eval()
