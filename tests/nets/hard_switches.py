"""Hard cases: code that asks how it is run: in training, scripted, traced, exported, watched."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.tests.nets.case_helpers import Feeds, hard, normal, spiked
from modelc.tests.nets.cases import Case


class TrainingSwitch(nn.Module):
    """Noise, dropout and another output form in training; plain in eval."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.aside, self.out = nn.Linear(16, 16), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Map (batch, 16) to (batch, 4), with a second head's beside it in training."""
        if self.training:
            x = x + 0.1 * torch.randn_like(x)
        inner = functional.dropout(torch.relu(self.body(x)), 0.3, training=self.training)
        if self.training:
            return self.out(inner), self.aside(inner)
        out: Tensor = self.out(inner)
        return out


def _compiled() -> bool:
    watched = torch.jit.is_scripting() or torch.compiler.is_compiling()  # type: ignore[attr-defined]
    traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return watched or traced


class RunSwitch(nn.Module):
    """Another, equal way of computing where it is scripted, traced or compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to the same."""
        y: Tensor = self.body(x)
        if _compiled():
            return y * torch.sigmoid(1.702 * y)
        return y / (1.0 + torch.exp(-1.702 * y))


class ExportSwitch(nn.Module):
    """Leaves its decoding out where ONNX is exported, as some detectors do: not as in eager."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to boxes (batch, 4) and classes (batch, 2), side by side."""
        raw: Tensor = self.body(x)
        if torch.onnx.is_in_onnx_export():
            return raw
        return torch.cat([raw[:, :4].sigmoid() * 2 - 0.5, raw[:, 4:].softmax(dim=-1)], dim=1)


class Printing(nn.Module):
    """Prints shapes and values as it goes: what somebody forgot to take out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 8)."""
        print("input", tuple(x.shape), f"mean {x.mean().item():.4f}")
        out: Tensor = self.body(x)
        print("output", out.shape)
        return out


def _loud() -> Feeds:
    return [{"x": spiked(seed, 3, 16, value=40.0)} for seed in (1, 2)] + [{"x": normal(3, 1, 16)}]


_X = "x:float32[batch=1..4,16]"
CASES: tuple[Case, ...] = (
    hard("training-switch", TrainingSwitch, _X, why="self.training decides noise and outputs"),
    hard("scripting-switch", RunSwitch, _X, why="is_scripting, is_tracing, is_compiling"),
    hard("onnx-export-switch", ExportSwitch, _X, why="is_in_onnx_export leaves the decoding out"),
    hard("print-in-forward", Printing, _X, feeds=_loud, why="print and .item() for a message"),
)
