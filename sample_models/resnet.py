"""A residual net of ResNet-50's shape and size (25.6 million parameters), in our own code."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIGNATURE: tuple[str, ...] = ("image:float32[batch=1..4,3,224,224]",)
"""Colour images, any scale around zero."""

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of blocks of each stage; every stage but the first halves the image."""

EXPANSION = 4
RESIDUAL_GAIN = 0.25
"""Scale of a block's last norm: keeps the sum over 16 untrained blocks from growing with depth."""


class Bottleneck(nn.Module):
    """Narrow, look around, widen again, and add what came in."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, 4 * width, h / stride, w / stride)."""
        inner = self.relu(self.norm1(self.conv1(x)))
        inner = self.relu(self.norm2(self.conv2(inner)))
        summed: Tensor = self.relu(self.norm3(self.conv3(inner)) + self.shortcut(x))
        return summed


class ResNet(nn.Module):
    """Stem, four stages of bottlenecks, average pool, classifier."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stages = nn.Sequential()
        inputs = 64
        for index, (width, blocks) in enumerate(STAGES):
            self.stages.append(_stage(inputs, width, blocks, stride=1 if index == 0 else 2))
            inputs = width * EXPANSION
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(inputs, num_classes)

    def forward(self, image: Tensor) -> Tensor:
        """Map images (batch, 3, h, w) to logits (batch, num_classes)."""
        features = self.pool(self.stages(self.stem(image)))
        logits: Tensor = self.classify(features.flatten(1))
        return logits


def resnet50(num_classes: int = 1000) -> nn.Module:
    """Build the untrained net, the same weights and running statistics each time."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = ResNet(num_classes)
        for module in model.modules():
            _randomise(module)
        for module in model.modules():
            if isinstance(module, Bottleneck):
                module.norm3.weight.mul_(RESIDUAL_GAIN)
    return model


def _stage(inputs: int, width: int, blocks: int, *, stride: int) -> nn.Sequential:
    first = Bottleneck(inputs, width, stride)
    return nn.Sequential(
        first, *(Bottleneck(width * EXPANSION, width, 1) for _ in range(blocks - 1))
    )


def _randomise(module: nn.Module) -> None:
    """Give one module weights that keep the scale, and norms statistics that are not 0 and 1."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
    elif isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
        nn.init.normal_(module.running_mean, std=0.1)
        if module.running_var is not None:
            nn.init.uniform_(module.running_var, 0.8, 1.25)
        nn.init.uniform_(module.weight, 0.9, 1.1)
        nn.init.normal_(module.bias, std=0.1)
