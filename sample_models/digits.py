"""A small convolutional net for scikit-learn's 8x8 digits; digits.safetensors holds its weights.

Held-out accuracy of the shipped checkpoint: 99.33 % of 450 digits (see train_digits.py).
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

SIGNATURE: tuple[str, ...] = ("x:float32[batch=1..8,1,8,8]",)
"""Eight by eight grey images; real ones hold ink from 0 (none) to 1 (full)."""

CLASSES = 10


def build() -> nn.Module:
    """Build the untrained net, the same weights each time: images in, (batch, 10) logits out."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [
            *_stage("stem", 1, 16),
            *_stage("body", 16, 32),
            ("pool1", nn.MaxPool2d(2)),
            *_stage("head", 32, 32),
            ("pool2", nn.MaxPool2d(2)),
            ("flatten", nn.Flatten()),
            ("hidden", nn.Linear(32 * 2 * 2, 64)),
            ("hidden_relu", nn.ReLU()),
            ("dropout", nn.Dropout(0.3)),
            ("classify", nn.Linear(64, CLASSES)),
        ]
        return nn.Sequential(OrderedDict(layers))


def _stage(name: str, inputs: int, outputs: int) -> list[tuple[str, nn.Module]]:
    return [
        (f"{name}_conv", nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)),
        (f"{name}_norm", nn.BatchNorm2d(outputs)),
        (f"{name}_relu", nn.ReLU()),
    ]
