"""Plain PyTorch nets for coverage.py: images, maps and detection heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.tests.nets.cases import Case


def _conv(
    given: int, made: int, kernel: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """A convolution without bias, BatchNorm and ReLU; the size is kept at stride 1."""
    layer = nn.Conv2d(given, made, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(made), nn.ReLU(inplace=True))


class UNet(nn.Module):
    """Two levels down and up; skips are padded where the size is odd."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = _conv(3, 8), _conv(8, 12), _conv(12, 16)
        self.up2, self.up1 = nn.ConvTranspose2d(16, 12, 2, 2), nn.ConvTranspose2d(12, 8, 2, 2)
        self.join2, self.join1, self.out = _conv(24, 12), _conv(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, h, w) to logits (batch, 2, h, w)."""
        one = self.first(image)
        two = self.second(functional.max_pool2d(one, 2))
        three = self.third(functional.max_pool2d(two, 2))
        two = self.join2(self._beside(two, self.up2(three)))
        out: Tensor = self.out(self.join1(self._beside(one, self.up1(two))))
        return out

    def _beside(self, skip: Tensor, x: Tensor) -> Tensor:
        down, right = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
        x = functional.pad(x, [right // 2, right - right // 2, down // 2, down - down // 2])
        return torch.cat([skip, x], dim=1)


class Residual(nn.Module):
    """A basic block with a projection where the form changes."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.one = _conv(given, made, stride=stride)
        self.two = nn.Sequential(
            nn.Conv2d(made, made, 3, padding=1, bias=False), nn.BatchNorm2d(made)
        )
        self.skip = nn.Conv2d(given, made, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, given, h, w) to (batch, made, h / stride, w / stride)."""
        out = self.two(self.one(x))
        out += self.skip(x)
        return functional.relu(out, inplace=True)


class ResNet(nn.Module):
    """A stem, two stages, an average over places, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.stages = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2))
        self.pool, self.out = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(16, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, h, w) to logits (batch, 10)."""
        out: Tensor = self.out(torch.flatten(self.pool(self.stages(self.stem(image))), 1))
        return out


class MobileNet(nn.Module):
    """An inverted residual: expanded, depthwise, squeeze-and-excitation, hard activations."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depth = _conv(3, 12, 1), _conv(12, 12, 5, 2, groups=12)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(12, 4, 1), nn.ReLU(), nn.Conv2d(4, 12, 1),
            nn.Hardsigmoid(),
        )  # fmt: skip
        self.project, self.out = nn.Conv2d(12, 8, 1), nn.Linear(8, 6)

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, h, w) to logits (batch, 6)."""
        x = self.depth(self.expand(image))
        x = functional.hardswish(self.project(x * self.squeeze(x)))
        out: Tensor = self.out(x.mean([2, 3]))
        return out


class DenseNet(nn.Module):
    """Each layer sees all maps before it, joined; a transition halves them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_conv(6 + 4 * index, 4) for index in range(3))
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.transition = nn.Sequential(
            nn.BatchNorm2d(18), nn.ReLU(), nn.Conv2d(18, 9, 1), nn.AvgPool2d(2)
        )
        self.out = nn.Linear(9, 5)

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, h, w) to logits (batch, 5)."""
        maps = [self.stem(image)]
        for layer in self.layers:
            maps.append(layer(torch.cat(maps, dim=1)))
        out: Tensor = self.out(self.transition(torch.cat(maps, 1)).mean((-2, -1)))
        return out


class Inception(nn.Module):
    """Four branches of other kernels side by side, and local response normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.three, self.five = _conv(3, 4, 1), _conv(3, 4, 3), _conv(3, 4, 5)
        self.pool, self.norm = nn.MaxPool2d(3, 1, 1, ceil_mode=True), nn.LocalResponseNorm(5)
        self.after, self.out = _conv(3, 4, 1), nn.Conv2d(16, 7, 1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """Map (batch, 3, h, w) to maps (batch, 7, h, w) and their maxima (batch, 7)."""
        parts = [self.one(image), self.three(image), self.five(image), self.after(self.pool(image))]
        maps = self.out(self.norm(torch.cat(parts, dim=1)))
        return {"maps": maps, "most": maps.flatten(2).amax(dim=-1)}


class SuperResolution(nn.Module):
    """Efficient sub-pixel convolutions: pixel_shuffle by 3, an image of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.rise = nn.Conv2d(1, 8, 5, padding=2), nn.Conv2d(8, 9, 3, padding=1)
        self.shuffle = nn.PixelShuffle(3)

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 1, h, w) to (batch, 1, 3h, 3w), added to a bicubic enlargement."""
        wide = functional.interpolate(image, scale_factor=3, mode="bicubic", align_corners=False)
        out: Tensor = self.shuffle(self.rise(torch.tanh(self.look(image)))) + wide
        return out


class Yolo(nn.Module):
    """A head of three anchors on one map, decoded to boxes in pixels by a grid of its size."""

    anchors: Tensor

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(3, 8, stride=2), _conv(8, 12, stride=2))
        self.head, self.classes = nn.Conv2d(12, 3 * (5 + classes), 1), classes
        self.register_buffer("anchors", torch.tensor([[10.0, 13.0], [16.0, 30.0], [33.0, 23.0]]))

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, h, w) to boxes, objectness, classes (batch, 3 * h/4 * w/4, 9)."""
        raw: Tensor = self.head(self.body(image))
        batch, _, rows, columns = raw.shape
        raw = (
            raw.view(batch, 3, 5 + self.classes, rows, columns).permute(0, 1, 3, 4, 2).contiguous()
        )
        down, right = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        grid = torch.stack((right, down), dim=2).view(1, 1, rows, columns, 2).float()
        y = raw.sigmoid()
        y[..., 0:2] = (y[..., 0:2] * 2 - 0.5 + grid) * 4
        y[..., 2:4] = (y[..., 2:4] * 2) ** 2 * self.anchors.view(1, 3, 1, 1, 2)
        return y.view(batch, -1, 5 + self.classes)


class Ssd(nn.Module):
    """Two maps with default boxes; the best 20 by score, those that overlap better ones at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far, self.most = _conv(3, 8, stride=4), _conv(8, 8, stride=2), 0.5
        self.heads = nn.ModuleList(nn.Conv2d(8, 4 + 3, 3, padding=1) for _ in range(2))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (batch, 3, h, w) to boxes (batch, 20, 4), scores (batch, 20), labels (batch, 20)."""
        near = self.near(image)
        raw = [head(x) for head, x in zip(self.heads, (near, self.far(near)), strict=True)]
        boxes, logits = zip(*(self._decoded(part) for part in raw), strict=True)
        scores, labels = torch.cat(logits, dim=1).softmax(dim=-1)[..., 1:].max(dim=-1)
        best, places = scores.topk(20, dim=1)
        kept = torch.cat(boxes, dim=1).gather(1, places[..., None].expand(-1, -1, 4))
        low = torch.maximum(kept[:, :, None, :2], kept[:, None, :, :2])
        high = torch.minimum(kept[:, :, None, 2:], kept[:, None, :, 2:])
        inner = (high - low).clamp(min=0).prod(dim=-1)
        area = (kept[..., 2:] - kept[..., :2]).prod(dim=-1)
        overlap = inner / (area[:, :, None] + area[:, None] - inner)
        beaten = (overlap.triu(diagonal=1) > self.most).any(dim=1)
        return kept, best.masked_fill(beaten, 0.0), labels.gather(1, places)

    def _decoded(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = raw.shape[-2:]
        y = (torch.arange(rows) + 0.5) / rows
        x = (torch.arange(columns) + 0.5) / columns
        centres = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).reshape(-1, 2)
        flat = raw.flatten(2).transpose(1, 2)
        middle, size = centres + 0.1 * flat[..., :2], 0.2 * torch.exp(0.2 * flat[..., 2:4])
        return torch.cat([middle - size / 2, middle + size / 2], dim=-1), flat[..., 4:]


class Mixer(nn.Module):
    """MLP-Mixer: patches, layers over places and over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.places = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.channels = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.out = nn.Linear(16, 5)

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, 16, 16) to logits (batch, 5)."""
        x = self.patch(image).flatten(2).mT
        x = x + self.places(self.norms[0](x).mT).mT
        out: Tensor = self.out((x + self.channels(self.norms[1](x))).mean(dim=1))
        return out


def _case(name: str, build: type[nn.Module], inputs: str, family: str = "cnn") -> Case:
    return Case(name=name, family=family, build=build, inputs=(inputs,))


_IMAGE = "image:float32[batch=1..4,3,h=17..40,w=17..40]"
_WIDE = "image:float32[batch=1..3,3,h=32..64,w=32..64]"
CASES: tuple[Case, ...] = (
    _case("unet", UNet, _IMAGE, family="segmentation"),
    _case("resnet-plain", ResNet, _IMAGE),
    _case("mobilenet-plain", MobileNet, _IMAGE),
    _case("densenet", DenseNet, _IMAGE),
    _case("inception", Inception, _IMAGE),
    _case("pixel-shuffle", SuperResolution, "image:float32[batch=1..4,1,h=5..20,w=5..20]"),
    _case("yolo-head", Yolo, _WIDE, family="detection"),
    _case("ssd", Ssd, _WIDE, family="detection"),
    _case("mlp-mixer", Mixer, "image:float32[batch=1..4,3,16,16]", family="vision-transformer"),
)
