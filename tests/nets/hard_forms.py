"""Hard cases: what goes in and what comes out. Nested, optional, shared, empty, of other dtypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from modelc.tests.nets.case_helpers import hard
from modelc.tests.nets.cases import Case


class Scores(NamedTuple):
    """Logits and what they are of."""

    logits: Tensor
    states: tuple[Tensor, Tensor]


@dataclass
class Found:
    """A record of outputs; one of them is left out here."""

    boxes: Tensor
    scores: Tensor
    masks: Tensor | None = None


class DictOut(nn.Module):
    """A dict of tensors, lists and dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: Tensor) -> dict[str, Any]:
        """Map (batch, 16) to logits, hidden states and statistics without dims."""
        states = [x]
        for layer in self.layers:
            states.append(torch.tanh(layer(states[-1])))
        return {"logits": states[-1][:, :4], "hidden": states[1:], "stats": {"mean": x.mean()}}


class NamedTupleOut(nn.Module):
    """A named tuple with a tuple inside."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(8, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Scores:
        """Map (batch, 8) to logits (batch, 4) and states (batch, 12) twice."""
        state, cell = self.cell(x)
        return Scores(self.out(state), (state, cell))


class DataclassOut(nn.Module):
    """A dataclass with a field that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.scores = nn.Linear(16, 4), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Found:
        """Map (batch, 16) to boxes (batch, 4) and scores (batch, 3)."""
        return Found(boxes=self.boxes(x).sigmoid(), scores=self.scores(x).softmax(dim=-1))


class OptionalIn(nn.Module):
    """Two optional inputs and a keyword-only one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.place = nn.Linear(16, 16), nn.Embedding(32, 16)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        *,
        scale: Tensor | None = None,
    ) -> Tensor:
        """Map (batch, seq, 16) to (batch, 16)."""
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)[None]
        y = torch.tanh(self.body(x + self.place(positions)))
        if mask is not None:
            y = y * mask[..., None]
        if scale is not None:
            y = y * scale[:, None, None]
        return y.mean(dim=1)


class Lists(nn.Module):
    """A list of maps of several sizes, as a feature pyramid is given."""

    def __init__(self) -> None:
        super().__init__()
        self.joins = nn.ModuleList(nn.Conv2d(8, 6, 1) for _ in range(3))

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Map three (batch, 8, size, size) to pooled (batch, 6) each."""
        return [
            join(part).amax(dim=(2, 3)) for join, part in zip(self.joins, features, strict=True)
        ]


class DictIn(nn.Module):
    """A dict of tensors of several dtypes, one key optional."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.dense = nn.Embedding(20, 8), nn.Linear(5, 8)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Map category (batch,) and values (batch, 5) to logits (batch, 8)."""
        inner = self.embed(batch["category"]) + self.dense(batch["values"])
        if "weight" in batch:
            inner = inner * batch["weight"][:, None]
        return {**{name: batch[name] for name in ("category",)}, "logits": inner.relu()}


class Variadic(nn.Module):
    """*args and **kwargs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, *parts: Tensor, **options: Tensor) -> Tensor:
        """Add what the layers make of two (batch, 8), times `gain` (batch, 8)."""
        total = sum(layer(part) for layer, part in zip(self.layers, parts, strict=True))
        return torch.as_tensor(total) * options.get("gain", torch.ones(1))


class DtypesIn(nn.Module):
    """uint8, int32 and bool together; promotion does the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.embed = nn.Conv2d(3, 8, 3, padding=1), nn.Embedding(10, 8)

    def forward(self, image: Tensor, kind: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map image (batch, 3, h, w), kind (batch,) and keep (batch,) to three of each dtype."""
        features = self.stem(image / 255.0).mean(dim=(2, 3)) + self.embed(kind)
        whole = kind * 2 + keep
        return features * keep[:, None], whole, ~keep & (features.sum(dim=-1) > 0)


class Promoting(nn.Module):
    """Integers over integers, floats with doubles, halves with floats, bools that are added."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        """Map (batch, 8) and count (batch,) to five results of several dtypes."""
        y = self.body(x)
        share = count / (count.sum() + 1)
        precise = y.double().cumsum(dim=-1) / 3
        return (
            share,
            precise + y,
            count // 3 - (count % 4),
            (y > 0).sum(dim=-1),
            (y > 0) + count[:, None],
        )


class ZeroDims(nn.Module):
    """Scalars without dims, in and out: a temperature, a loss, a count."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8)

    def forward(self, x: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (batch, 16) to an energy, a largest class and a count, all without dims."""
        logits = self.body(x) / temperature.clamp(min=0.1)
        return logits.logsumexp(dim=-1).mean(), logits.mean(dim=0).argmax(), (logits > 0).sum()


class Aliases(nn.Module):
    """Outputs that are the input, each other, views of one tensor, or constants."""

    anchors: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8)
        self.register_buffer("anchors", torch.rand(5, 4))

    def forward(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        """Map (batch, 16) and hidden (batch, 8) to seven outputs that share memory."""
        y = self.body(x)
        return x, y, y, y.view(-1), y[:, :2], self.anchors, hidden


class Unused(nn.Module):
    """An input and a layer that take no part."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.forgotten = nn.Linear(16, 8), nn.Linear(999, 3)

    def forward(self, x: Tensor, mask: Tensor, extra: Tensor) -> Tensor:  # noqa: ARG002
        """Map (batch, 16) to (batch, 8); mask and extra are taken and not used."""
        out: Tensor = self.body(x)
        return out


class EmptyOut(nn.Module):
    """An empty tensor that grows by concatenation, and an output without rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, 8) to (batch, 24) and (batch, 0)."""
        kept = x.new_zeros((x.shape[0], 0))
        nothing = x[:, 8:]
        for layer in self.layers:
            x = torch.relu(layer(x))
            kept = torch.cat([kept, x], dim=-1)
        return kept, nothing


class NotTensors(nn.Module):
    """Numbers, strings and None beside the tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> dict[str, object]:
        """Map (batch, 16) to logits (batch, 8), a size, a name and nothing."""
        return {"logits": self.body(x), "size": x.shape[0], "task": "classify", "loss": None}


class SizesOut(nn.Module):
    """Sizes that become tensors, and scale what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, 3, h, w) to boxes in pixels (batch, 4) and the size (2,)."""
        height, width = image.shape[-2:]
        size = torch.tensor([height, width])
        scale = torch.tensor([width, height, width, height], dtype=torch.float32)
        return self.body(image).mean(dim=(2, 3)).sigmoid() * scale, size


_X, _SEQ = "x:float32[batch=1..4,16]", "x:float32[batch=1..4,seq=1..32,16]"
_MAPS = [f"features.{i}:float32[batch=1..4,8,{size},{size}]" for i, size in enumerate((16, 8, 4))]
_PARTS = [f"{name}:float32[batch=1..4,8]" for name in ("left", "right")]
_IMAGE = "image:uint8[batch=1..4,3,h=8..24,w=8..24]"
CASES: tuple[Case, ...] = (
    hard("dict-output", DictOut, _X, why="dict, list and dict inside, a scalar"),
    hard("namedtuple-output", NamedTupleOut, "x:float32[batch=1..4,8]", why="a tuple in a tuple"),
    hard("dataclass-output", DataclassOut, _X, why="a dataclass that torch does not know"),
    hard("optional-left-out", OptionalIn, _SEQ, why="three optional inputs, none given"),
    hard(
        "optional-and-keyword-only", OptionalIn, _SEQ, "mask:float32[batch,seq]{0..1}",
        "scale:float32[batch]", why="a mask, and a keyword-only scale; positions left out",
    ),
    hard("list-input", Lists, *_MAPS, why="a list of tensors in, a list out"),
    hard(
        "dict-input", DictIn, "batch.category:int64[n=1..6]{0..19}", "batch.values:float32[n,5]",
        why="a dict in; one of its values goes out again",
    ),
    hard("variadic", Variadic, *_PARTS, why="*args, and **kwargs that is not given"),
    hard(
        "integer-and-bool-inputs", DtypesIn, _IMAGE, "kind:int32[batch]{0..9}", "keep:bool[batch]",
        why="uint8, int32 and bool in; float, int and bool out",
    ),
    hard(
        "dtype-promotion", Promoting, "x:float32[batch=1..4,8]", "count:int64[batch]{-7..9}",
        why="true, floor and rest division, doubles, sums of bools",
    ),
    hard("scalars-without-dims", ZeroDims, _X, "temperature:float32[]{0.2..4}", why="0-d in, out"),
    hard("aliased-outputs", Aliases, _X, "hidden:float32[batch,8]", why="outputs share memory"),
    hard(
        "unused-input", Unused, _X, "mask:bool[batch]", "extra:float32[batch,3]",
        why="inputs and a layer that take no part",
    ),
    hard("empty-tensors", EmptyOut, "x:float32[batch=1..4,8]", why="no columns; grown by cat"),
    hard("not-all-tensors", NotTensors, _X, why="an int, a str and None among the outputs"),
    hard(
        "sizes-as-tensors", SizesOut, "image:float32[batch=1..4,3,h=8..24,w=8..24]",
        why="torch.tensor of sizes",
    ),
)  # fmt: skip
