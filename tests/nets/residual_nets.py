"""Nets with the joins that make a layer hard to name: residuals, concatenations, scripted branches.

Each has the shape of a family that people use, at a size that takes a second. A net that has to
begin in a certain way (`settle`) is set so after its weights were drawn: zero gammas, small layer
scales, folded norms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

WIDTHS = (8, 16, 24)
_NEAR_ZERO = 1e-6
Block = Callable[[int, int, int], nn.Module]


def _down(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """The shortcut of a block that changes the shape; None where it does not."""
    if stride == 1 and inputs == outputs:
        return None
    conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Basic(nn.Module):
    """ResNet-18's block: one ReLU module called twice, a downsample beside it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = _down(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, outputs, h / stride, w / stride)."""
        identity = x
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        summed: Tensor = self.relu(out)
        return summed


class Bottleneck(nn.Module):
    """ResNet-50's block: one ReLU module called three times, a downsample beside it."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = outputs // 2
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _down(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, outputs, h / stride, w / stride)."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        identity = x if self.downsample is None else self.downsample(x)
        summed: Tensor = self.relu(out + identity)
        return summed


class PreActivation(nn.Module):
    """Norm and ReLU before each convolution; nothing after the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, outputs, h / stride, w / stride)."""
        ready = torch.relu(self.bn1(x))
        kept = x if self.shortcut is None else self.shortcut(ready)
        summed: Tensor = self.conv2(torch.relu(self.bn2(self.conv1(ready)))) + kept
        return summed


class Inverted(nn.Module):
    """MobileNetV2's block: wide, depthwise, narrow; joined with what came in where it fits."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = 3 * inputs
        self.conv = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6(inplace=True),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False),
            nn.BatchNorm2d(inner), nn.ReLU6(inplace=True),
            nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.joins = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, outputs, h / stride, w / stride)."""
        out: Tensor = self.conv(x)
        return x + out if self.joins else out


class Dense(nn.Module):
    """DenseNet's block: three layers that read everything before them, then a transition."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(inputs + 4 * i), nn.ReLU(inplace=False),
                nn.Conv2d(inputs + 4 * i, 4, 3, padding=1, bias=False),
            )
            for i in range(3)
        )  # fmt: skip
        self.transition = nn.Sequential(
            nn.BatchNorm2d(inputs + 12), nn.ReLU(), nn.Conv2d(inputs + 12, outputs, 1, bias=False)
        )
        self.pool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, outputs, h / stride, w / stride)."""
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        out: Tensor = self.pool(self.transition(x))
        return out


class Scaled(nn.Module):
    """ConvNeXt's block: depthwise, norm over channels, a perceptron, and a layer scale of 1e-6."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(inputs, outputs, stride, stride)
        self.depth = nn.Conv2d(outputs, outputs, 7, padding=3, groups=outputs)
        self.norm = nn.LayerNorm(outputs, eps=1e-6)
        self.up, self.act = nn.Linear(outputs, 2 * outputs), nn.GELU()
        self.down = nn.Linear(2 * outputs, outputs)
        self.layer_scale = nn.Parameter(torch.full((outputs,), _NEAR_ZERO))

    def settle(self) -> None:
        """Begin as ConvNeXt does."""
        self.layer_scale.fill_(_NEAR_ZERO)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, outputs, h / stride, w / stride)."""
        x = self.enter(x)
        inner = self.norm(self.depth(x).permute(0, 2, 3, 1))
        inner = self.layer_scale * self.down(self.act(self.up(inner)))
        joined: Tensor = x + inner.permute(0, 3, 1, 2)
        return joined


class Net(nn.Module):
    """Stem, three stages of two blocks, average pool, classifier."""

    def __init__(self, block: Block, *, start: str = "") -> None:
        """`start` is `zero`, where the last norm of each block is multiplied by 0, or `folded`."""
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = self._stage(block, WIDTHS[0], WIDTHS[0], 1)
        self.layer2 = self._stage(block, WIDTHS[0], WIDTHS[1], 2)
        self.layer3 = self._stage(block, WIDTHS[1], WIDTHS[2], 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(WIDTHS[2], 10)
        self._start = start
        if start == "folded":
            self._without_norms()

    def _stage(self, block: Block, inputs: int, outputs: int, stride: int) -> nn.Sequential:
        return nn.Sequential(block(inputs, outputs, stride), block(outputs, outputs, 1))

    def _without_norms(self) -> None:
        """As `fuse_conv_bn_eval` leaves it: convolutions with a bias, and no norms."""
        for part in list(self.modules()):
            for name, child in list(part.named_children()):
                if isinstance(child, nn.BatchNorm2d):
                    setattr(part, name, nn.Identity())
                elif isinstance(child, nn.Conv2d) and child.bias is None:
                    child.bias = nn.Parameter(torch.zeros(child.out_channels))

    def settle(self) -> None:
        """Multiply the last norm of each block by 0, as `zero_init_residual` does."""
        for part in self.modules():
            last: Any = getattr(part, "bn3", None) or getattr(part, "bn2", None)
            if self._start == "zero" and last is not None:
                last.weight.zero_()
                last.bias.zero_()

    def forward(self, image: Tensor) -> Tensor:
        """Map images (batch, 3, h, w) to logits (batch, 10)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(image))))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


class Branching(nn.Module):
    """A residual net whose forward has a branch on tensor data, a loop and an assertion."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTHS[0], 3, padding=1)
        self.blocks = nn.ModuleList([Basic(8, 8, 1), Basic(8, 16, 2), Basic(16, 16, 1)])
        self.gate, self.fc = nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Map images (batch, 3, h, w) to logits (batch, 10)."""
        assert image.dim() == 4, "images have four dims"
        x = self.stem(image)
        for block in self.blocks:
            x = block(x)
        pooled = x.mean((2, 3))
        if pooled.mean() > 0:
            pooled = pooled * torch.sigmoid(self.gate(pooled))
        else:
            pooled = torch.tanh(self.gate(pooled))
        logits: Tensor = self.fc(pooled)
        return logits
