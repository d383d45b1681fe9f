"""Plain PyTorch nets for coverage.py: recurrent ones and others over sequences and signals."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.tests.nets.cases import Case


class LstmTagger(nn.Module):
    """Two bidirectional LSTM layers with dropout between them, a tag for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(80, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 12, num_layers=2, dropout=0.2, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(24, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, seq) to scores (batch, seq, 7)."""
        states, _ = self.lstm(self.embed(tokens))
        out: Tensor = self.tag(states)
        return out


class GruClassifier(nn.Module):
    """A bidirectional GRU, its last states of both ways joined; takes and gives its state."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(8, 12, batch_first=True, bidirectional=True), nn.Linear(24, 4)

    def forward(self, x: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, seq, 8) and states (2, batch, 12) to (batch, 4) and states."""
        _, last = self.gru(x, h0)
        return self.out(torch.cat([last[0], last[1]], dim=-1)), last


class Seq2Seq(nn.Module):
    """A GRU encoder, and a decoder with additive attention that is given its targets."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(40, 16), nn.Embedding(30, 16)
        self.encoder, self.cell = nn.GRU(16, 16, batch_first=True), nn.GRUCell(32, 16)
        self.of_state, self.of_memory = nn.Linear(16, 16), nn.Linear(16, 16, bias=False)
        self.score, self.out = nn.Linear(16, 1, bias=False), nn.Linear(32, 30)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map source (batch, seq) and target (batch, steps) to logits (batch, steps, 30)."""
        memory, last = self.encoder(self.source(source))
        state, projected = last[0], self.of_memory(memory)
        words, logits = self.target(target), []
        for step in range(target.shape[1]):
            scores = self.score(torch.tanh(projected + self.of_state(state)[:, None]))
            context = (scores.softmax(dim=1) * memory).sum(dim=1)
            state = self.cell(torch.cat([words[:, step], context], dim=-1), state)
            logits.append(self.out(torch.cat([state, context], dim=-1)))
        return torch.stack(logits, dim=1)


class ConvLstm(nn.Module):
    """A convolutional LSTM over the frames of a clip."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.gates, self.out = nn.Conv2d(2 + width, 4 * width, 3, padding=1), nn.Conv2d(width, 1, 1)
        self.width = width

    def forward(self, clip: Tensor) -> Tensor:
        """Map (batch, frames, 2, h, w) to the next frame (batch, 1, h, w)."""
        batch, frames, _, height, width = clip.shape
        hidden = clip.new_zeros(batch, self.width, height, width)
        cell = torch.zeros_like(hidden)
        for index in range(frames):
            gates = self.gates(torch.cat([clip[:, index], hidden], dim=1))
            enter, forget, leave, new = gates.chunk(4, dim=1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
            hidden = torch.sigmoid(leave) * torch.tanh(cell)
        out: Tensor = self.out(hidden)
        return out


class CausalBlock(nn.Module):
    """Two dilated convolutions that see no future, by padding and cutting, and a residual."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.past = 2 * dilation
        self.first = nn.Conv1d(width, width, 3, dilation=dilation, padding=self.past)
        self.second = nn.Conv1d(width, width, 3, dilation=dilation, padding=self.past)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width, time) to the same."""
        y = functional.relu(self.first(x)[:, :, : -self.past].contiguous())
        y = functional.relu(self.second(y)[:, :, : -self.past].contiguous())
        return functional.relu(x + y)


class TemporalConvolutions(nn.Module):
    """A TCN: causal blocks of growing dilation, a forecast of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(3, 8, 1)
        self.blocks = nn.Sequential(*(CausalBlock(8, 2**power) for power in range(3)))
        self.out = nn.Linear(8, 2)

    def forward(self, series: Tensor) -> Tensor:
        """Map (batch, 3, time) to (batch, 2)."""
        out: Tensor = self.out(self.blocks(self.stem(series))[:, :, -1])
        return out


class WaveNet(nn.Module):
    """Gated dilated convolutions with skips, conditioned on a speaker, mu-law classes out."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.speaker = nn.Embedding(32, width), nn.Embedding(4, 2 * width)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(4))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(4))
        self.out = nn.Sequential(
            nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 32, 1)
        )

    def forward(self, samples: Tensor, speaker: Tensor) -> Tensor:
        """Map samples (batch, time) and speaker (batch,) to logits (batch, 32, time)."""
        x = self.stem(samples).transpose(1, 2)
        who, total = self.speaker(speaker)[:, :, None], torch.zeros_like(x)
        for index, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            left, right = (gate(functional.pad(x, (2**index, 0))) + who).chunk(2, dim=1)
            y = skip(torch.tanh(left) * torch.sigmoid(right))
            x, total = x + y, total + y
        out: Tensor = self.out(total)
        return out


class Transducer(nn.Module):
    """RNN-T: an audio encoder, a label predictor, and the joint of every pair of both."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.LSTM(10, 12, batch_first=True)
        self.embed, self.predict = nn.Embedding(20, 8), nn.GRU(8, 12, batch_first=True)
        self.joint = nn.Linear(12, 20)

    def forward(self, frames: Tensor, labels: Tensor) -> Tensor:
        """Map frames (batch, time, 10) and labels (batch, u) to (batch, time, u + 1, 20)."""
        audio, _ = self.encode(frames)
        told, _ = self.predict(functional.pad(self.embed(labels), (0, 0, 1, 0)))
        joined = torch.tanh(audio.unsqueeze(2) + told.unsqueeze(1))
        return functional.log_softmax(self.joint(joined), dim=-1)


class StackedCells(nn.Module):
    """LSTMCells in a ModuleList, states kept as lists of tuples, over a time-first input."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(6, 8), nn.LSTMCell(8, 8)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (time, batch, 6) to (time, batch, 8) and the last cell (batch, 8)."""
        states = [(x.new_zeros(x.size(1), 8), x.new_zeros(x.size(1), 8)) for _ in self.cells]
        given, out = x, []
        for row in range(x.size(0)):
            inner = given[row]
            for index, cell in enumerate(self.cells):
                states[index] = cell(inner, states[index])
                inner = states[index][0]
            out.append(inner)
        return torch.stack(out), states[-1][1]


class VaeDecoder(nn.Module):
    """A latent to a signal: a layer, reshaped, transposed convolutions, a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(8, 16 * 16)
        self.grow = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.ConvTranspose2d(8, 3, 4, stride=2, padding=1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, latent: Tensor) -> Tensor:
        """Map (batch, 8) to images (batch, 3, 16, 16)."""
        out: Tensor = self.grow(self.start(latent).view(-1, 16, 4, 4))
        return out


def _case(name: str, build: type[nn.Module], *inputs: str, family: str = "recurrent") -> Case:
    return Case(name=name, family=family, build=build, inputs=inputs)


_SERIES = "series:float32[batch=1..4,3,time=8..40]"
CASES: tuple[Case, ...] = (
    _case("lstm-tagger", LstmTagger, "tokens:int64[batch=1..4,seq=1..24]{0..79}"),
    _case(
        "gru-bidirectional", GruClassifier, "x:float32[batch=1..4,seq=1..24,8]",
        "h0:float32[2,batch,12]",
    ),
    _case(
        "seq2seq-attention", Seq2Seq, "source:int64[batch=1..4,seq=2..12]{0..39}",
        "target:int64[batch,steps=1..8]{0..29}",
    ),
    _case("conv-lstm", ConvLstm, "clip:float32[batch=1..3,frames=1..5,2,h=6..14,w=6..14]"),
    _case("tcn", TemporalConvolutions, _SERIES, family="time-series"),
    _case(
        "wavenet", WaveNet, "samples:int64[batch=1..4,time=4..40]{0..31}",
        "speaker:int64[batch]{0..3}", family="audio",
    ),
    _case(
        "rnn-transducer", Transducer, "frames:float32[batch=1..3,time=2..14,10]",
        "labels:int64[batch,u=1..6]{0..19}", family="audio",
    ),
    _case("stacked-lstm-cells", StackedCells, "x:float32[time=1..10,batch=1..4,6]"),
    _case("vae-decoder", VaeDecoder, "latent:float32[batch=1..8,8]", family="cnn"),
)  # fmt: skip
