"""Small nets for `modelc debug`: integers and bools inside and outside."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

INPUT = "x:float32[batch=1..4,3,8]"


class Scores(nn.Module):
    """Scores for six classes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(8, 6), nn.Linear(6, 6)

    def scores(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.relu(self.inner(x)))
        return found


class Label(Scores):
    """Gives the class beside its scores."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.scores(x)
        return scores, scores.argmax(-1)


class Above(Scores):
    """Gives bools alone."""

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x) > 0.1


class Bucket(Scores):
    """Gives integers that a cast makes."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.scores(x)
        return scores, (scores * 10).to(torch.int64)


class Tied(Label):
    """Label with two classes that have the same scores."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.last.weight[1] = self.last.weight[0]
            self.last.bias[:2] = 1000


class Chooser(nn.Module):
    """A module that gives integers."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores.argmax(-1)


class Chosen(Scores):
    """Integers between two modules, made by a module or by the model's own forward."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        self.choose = Chooser() if inside else None
        self.table, self.end = nn.Embedding(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(x)
        best = scores.argmax(-1) if self.choose is None else self.choose(scores)
        found: Tensor = self.end(self.table(best))
        return found


class Step(nn.Module):
    """What a loop repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.mix(x))


class Looped(nn.Module):
    """A layer, a loop whose turns depend on the input, and another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.step, self.end = nn.Linear(8, 8), Step(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        turns = 0
        while turns < 2 + int(x.amax() > 0):
            h = self.step(h)
            turns += 1
        end: Tensor = self.end(h)
        return end


class Stacked(Looped):
    """The results of the turns beside each other, which no module gives."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        turns: list[Tensor] = []
        while len(turns) < 2 + int(x.amax() > 0):
            h = self.step(h)
            turns.append(h)
        end: Tensor = self.end(torch.stack(turns).sum(0))
        return end


class Chain(nn.Module):
    """Layers without weights between layers with weights; one is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.mix = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)
        self.norm, self.end = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.first(x))
        h = h + torch.sigmoid(self.mix(h))
        return torch.softmax(self.end(self.act(self.norm(h))), -1)


class Twins(nn.Module):
    """Two layers with equal weights, which the exporter merges."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.load_state_dict(self.first.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(torch.tanh(self.first(x)))
        return found


class Listed(nn.Module):
    """Lists, dicts, texts and sizes, as scripts have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.end = nn.Linear(8, 8), nn.Linear(8, 4)
        self.scale: dict[str, float] = {"one": 0.5, "two": 2.0}

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        h = self.first(x).reshape(batch * x.shape[1], x.shape[-1])
        parts: list[Tensor] = []
        for place in range(x.shape[1]):
            parts.append(h.view(batch, length, width)[:, place] * float(place + 1))  # noqa: PERF401 - aten::append
        sizes = list(x.shape)
        assert len(sizes) == 3, f"wrong sizes: {sizes}"
        if len("{} rows".format(sizes[0])) > 100:  # noqa: UP032 - aten::format
            parts.clear()
        found = {"plain": torch.stack(parts, 1)}
        found["cut"] = torch.relu(found["plain"])
        if "cut" in found:
            h = found["cut"] + found.get("none", found["plain"])
        for name, part in found.items():
            h = h + part * self.scale.get(name, 0.1)
        outs = [self.end(part) for part in h.unbind(1)]
        outs.extend([outs[0], outs[-1]])
        outs.insert(0, outs.pop())
        outs.reverse()
        del outs[0]
        outs += [torch.zeros([sizes[0], 4], dtype=x.dtype)]
        total: Tensor = torch.cat(outs[1:], 0).reshape(sizes[0], -1, 4) * self.scale["two"]
        return total.clamp_(-2.0, 2.0)


NETS: dict[str, Callable[[], nn.Module]] = {
    "listed": Listed,
    "chain": Chain,
    "twins": Twins,
    "looped": Looped,
    "stacked": Stacked,
    "label": Label,
    "above": Above,
    "bucket": Bucket,
    "tied": Tied,
    "chosen": lambda: Chosen(inside=False),
    "chooser": lambda: Chosen(inside=True),
}


def build(name: str) -> nn.Module:
    """One of the nets, with the same weights each time."""
    torch.manual_seed(0)
    return NETS[name]().eval()
