"""Images that are resized, padded, rolled, unfolded and sampled by sizes that vary."""
# mypy: disable-error-code="no-any-return,arg-type"

from __future__ import annotations

import math

import torch
from attack_case import attack
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as in every tutorial

IMAGE = "x[batch,_,height,width]"
PICTURE = {"x": (2, 3, 20, 20)}


class Conv(nn.Module):
    """A convolution from 3 channels to 4."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)


@attack("x:float32[batch=1..2,3,height=1..64,width=1..64]", family="resize by scale")
class Scale23(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.conv(x), scale_factor=2.3)


@attack(IMAGE, family="resize by scale", sample=PICTURE)
class Scale07Bilinear(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.conv(x), scale_factor=0.7, mode="bilinear")


@attack("x:float32[batch=1..2,3,height=2..90,20]", family="resize by scale")
class Recomputed(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(
            self.conv(x), scale_factor=1.7, mode="bilinear", recompute_scale_factor=True
        )


@attack("x:float32[batch=1..2,3,height=2..90,20]", family="resize by scale")
class NearestExact(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.conv(x), scale_factor=1.5, mode="nearest-exact")


@attack("x[batch,_,width]", family="resize by scale", sample={"x": (2, 3, 40)})
class Linear13(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=1.3, mode="linear", align_corners=True)


@attack(IMAGE, family="resize by scale", sample=PICTURE, good=True)
class UpsampleTwice(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.conv(x), scale_factor=2, mode="nearest")


@attack(IMAGE, family="resize by size", sample=PICTURE, good=True)
class BackToInput(Conv):
    def forward(self, x: Tensor) -> Tensor:
        y = F.avg_pool2d(self.conv(x), 2)
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


@attack(IMAGE, family="resize by size", sample=PICTURE, good=True)
class AlignedCorners(Conv):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)[..., ::2, ::2]
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=True)


@attack(IMAGE, family="resize by size", sample=PICTURE)
class BicubicHalf(Conv):
    def forward(self, x: Tensor) -> Tensor:
        size = (math.ceil(x.shape[2] / 2), math.ceil(x.shape[3] / 2))
        return F.interpolate(self.conv(x), size=size, mode="bicubic")


@attack(IMAGE, family="resize by size", sample=PICTURE)
class ShorterSideTo12(Conv):
    def forward(self, x: Tensor) -> Tensor:
        scale = 12 / min(x.shape[2], x.shape[3])
        size = (int(x.shape[2] * scale), int(x.shape[3] * scale))
        return self.conv(F.interpolate(x, size=size, mode="bilinear"))


@attack(IMAGE, family="resize by size", sample=PICTURE)
class AntialiasedHalf(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.conv(x), size=(8, 8), mode="bilinear", antialias=True)


@attack(IMAGE, family="pad by size", sample=PICTURE)
class PadToMultiple(Conv):
    def forward(self, x: Tensor) -> Tensor:
        h, w = (8 - x.shape[2] % 8) % 8, (8 - x.shape[3] % 8) % 8
        return F.max_pool2d(self.conv(F.pad(x, (0, w, 0, h))), 8)


@attack(IMAGE, family="pad by size", sample=PICTURE)
class PadSquare(Conv):
    def forward(self, x: Tensor) -> Tensor:
        side = max(x.shape[2], x.shape[3])
        return self.conv(F.pad(x, (0, side - x.shape[3], 0, side - x.shape[2]), value=0.5))


@attack("x[batch,seq,8]", family="pad by size", sample={"x": (2, 6, 8)})
class ReflectHalf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[1] // 2
        return F.pad(x.transpose(1, 2), (half, half), mode="reflect").cumsum(-1)


@attack(IMAGE, family="pad by size", sample=PICTURE)
class SamePadding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        pads = []
        for size in (x.shape[3], x.shape[2]):
            need = max((math.ceil(size / 2) - 1) * 2 + 3 - size, 0)
            pads += [need // 2, need - need // 2]
        return self.conv(F.pad(x, pads))


@attack("x[batch,seq,8]", family="roll by size", sample={"x": (2, 6, 8)})
class RollHalf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.roll(x.shape[1] // 2, 1) - x.roll(-1, 1)


@attack(IMAGE, family="roll by size", sample={"x": (2, 3, 16, 16)})
class ShiftedWindows(Conv):
    def forward(self, x: Tensor) -> Tensor:
        shift = 2 if min(x.shape[2:]) > 8 else 0
        y = self.conv(x)
        y = y.roll((-shift, -shift), (2, 3)) if shift else y
        b, c, h, w = y.shape
        windows = y.view(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).flatten(3, 4)
        return windows.softmax(-2).flatten(1, 2)


@attack("x[batch,seq,8]", family="unfold", sample={"x": (2, 10, 8)})
class FramesByUnfold(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.unfold(1, 4, 3).mean(-1)


@attack(IMAGE, family="unfold", sample=PICTURE)
class UnfoldFold(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, 3, padding=1)
        return F.fold(patches, x.shape[-2:], 3, padding=1)


@attack(IMAGE, family="grid sample", sample=PICTURE)
class WarpedGrid(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[-2:]
        y, z = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        grid = torch.stack([z * 0.9 + 0.05, y + 0.1 * z], -1)
        return F.grid_sample(x, grid.expand(x.shape[0], -1, -1, -1), align_corners=False)


@attack("x[batch,_,height,width]", "grid[batch,rows,columns,2]", family="grid sample", good=True,
        sample={"x": (2, 3, 12, 12), "grid": (2, 5, 6, 2)})  # fmt: skip
class BorderGrid(nn.Module):
    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid.tanh() * 1.4, padding_mode="border", align_corners=True)


@attack("x[batch,_,height,width]", "theta[batch,2,3]", family="grid sample",
        sample={"x": (2, 3, 12, 12), "theta": (2, 2, 3)})  # fmt: skip
class SpatialTransformer(nn.Module):
    def forward(self, x: Tensor, theta: Tensor) -> Tensor:
        grid = F.affine_grid(theta.tanh(), list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, mode="bilinear", align_corners=False)


@attack(IMAGE, family="pooling", sample=PICTURE)
class CeilMode(Conv):
    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(self.conv(x), 3, 2, ceil_mode=True)
        return F.avg_pool2d(y, 3, 2, padding=1, ceil_mode=True, count_include_pad=False)


@attack(IMAGE, family="pooling", sample=PICTURE)
class AverageCeilPad(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(x), 4, 3, padding=1, ceil_mode=True)


@attack(IMAGE, family="pooling", sample=PICTURE)
class AdaptiveTo3(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(self.conv(x), 3)


@attack(IMAGE, family="pooling", sample=PICTURE)
class AdaptiveMaxTo2(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_max_pool2d(self.conv(x), (2, 5))


@attack(IMAGE, family="pooling", sample={"x": (2, 3, 32, 32)})
class SpatialPyramid(Conv):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return torch.cat([F.adaptive_avg_pool2d(y, s).flatten(1) for s in (1, 2, 4)], 1)


@attack(IMAGE, family="pooling", sample=PICTURE)
class PoolOverAll(Conv):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return F.avg_pool2d(y, (y.shape[2], y.shape[3])).flatten(1)


@attack(IMAGE, family="pooling", sample=PICTURE)
class PoolWithIndices(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y, where = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(y, where, 2, output_size=x.shape[-2:])


@attack("x[batch,_,width]", family="pooling", sample={"x": (2, 4, 33)})
class LpPool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.lp_pool1d(x, 2, 3, 2, ceil_mode=True)


@attack(IMAGE, family="shuffle", sample={"x": (2, 12, 8, 8)}, good=True)
class PixelShuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.conv(x), 2)


@attack(IMAGE, family="shuffle", sample={"x": (2, 3, 16, 16)})
class SpaceToDepth(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_unshuffle(x, 2).amax(1)


@attack(IMAGE, family="shuffle", sample={"x": (2, 8, 10, 10)}, good=True)
class ChannelShuffle(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.channel_shuffle(x, 4) * torch.arange(8.0)[:, None, None]


@attack("x[batch,seq,8]", family="einsum", sample={"x": (2, 6, 8)}, good=True)
class EinsumGram(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 3, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.einsum("bsi,ihd->bhsd", x, self.w)
        return torch.einsum("bhsd,bhtd->bhst", y, y).diagonal(dim1=-2, dim2=-1)
