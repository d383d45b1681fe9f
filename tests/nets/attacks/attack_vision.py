"""Vision nets of ordinary kinds, exported as at first contact: a sample, names, no ranges."""
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from attack_case import attack
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as in every tutorial

IMAGE = "x[batch,3,height,width]"
PICTURE = {"x": (1, 3, 32, 32)}


def block(inner: int, outer: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, norm, activation."""
    conv = nn.Conv2d(inner, outer, 3, stride, 1, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outer), nn.ReLU(inplace=True))


@attack(IMAGE, family="vision", sample=PICTURE, good=True)
class TinyVgg(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            block(3, 8), nn.MaxPool2d(2), block(8, 16), nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


@attack(IMAGE, family="vision", sample=PICTURE, good=True)
class TinyResnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = block(3, 8, 2), block(8, 8), block(8, 8)
        self.down, self.head = block(8, 16, 2), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        y = y + self.b(self.a(y))
        return self.head(self.down(y).mean((2, 3)))


@attack("x[batch,_,_,_]", family="vision", sample=PICTURE, good=True)
class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc = nn.Sequential(nn.Linear(400, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.a(x)), 2)
        x = F.max_pool2d(F.relu(self.b(x)), 2)
        return self.fc(x.view(x.size(0), -1))


@attack(IMAGE, family="vision", sample=PICTURE, good=True)
class MobileBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depth = nn.Conv2d(3, 12, 1), block(12, 12, 2, groups=12)
        self.squeeze, self.excite = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1)
        self.project = nn.Conv2d(12, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depth(F.hardswish(self.expand(x)))
        scale = self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1))))
        return self.project(y * F.hardsigmoid(scale))


@attack(IMAGE, family="vision", sample=PICTURE, good=True)
class DenseBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(block(3 + 4 * i, 4) for i in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


@attack(IMAGE, family="vision", sample={"x": (1, 3, 64, 64)}, good=True)
class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = block(3, 8), block(8, 16), block(16, 16)
        self.up2, self.d2 = nn.ConvTranspose2d(16, 16, 2, 2), block(32, 8)
        self.up1, self.d1 = nn.ConvTranspose2d(8, 8, 2, 2), block(16, 8)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.max_pool2d(b, 2))
        y = self.d2(torch.cat([self.up2(c), b], 1))
        return self.head(self.d1(torch.cat([self.up1(y), a], 1)))


@attack(IMAGE, family="vision", sample={"x": (1, 3, 48, 64)}, good=True)
class UNetPadded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.d = block(3, 8), block(8, 8), block(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        y = F.interpolate(self.b(F.max_pool2d(a, 2)), scale_factor=2, mode="nearest")
        dh, dw = a.shape[2] - y.shape[2], a.shape[3] - y.shape[3]
        y = F.pad(y, (dw // 2, dw - dw // 2, dh // 2, dh - dh // 2))
        return self.d(torch.cat([a, y], 1))


@attack(IMAGE, "t[batch]", family="vision", good=True,
        sample={"x": (2, 3, 16, 16), "t": (2,)})  # fmt: skip
class DiffusionBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, 2, 1), nn.ConvTranspose2d(8, 3, 4, 2, 1)
        self.time, self.norm = nn.Linear(16, 8), nn.GroupNorm(2, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        freq = torch.exp(-math.log(100.0) * torch.arange(8) / 8)
        wave = torch.cat([torch.sin(t[:, None] * freq), torch.cos(t[:, None] * freq)], -1)
        y = self.norm(self.down(x)) + self.time(wave)[:, :, None, None]
        return self.up(F.silu(y))


@attack("x[batch,_,height,width]", family="vision", sample={"x": (1, 3, 32, 32)}, good=True)
class FeaturePyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = block(3, 8, 2), block(8, 8, 2), block(8, 8, 2)
        self.lateral = nn.ModuleList(nn.Conv2d(8, 4, 1) for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        a = self.a(x)
        b = self.b(a)
        c = self.c(b)
        p3 = self.lateral[2](c)
        p2 = self.lateral[1](b) + F.interpolate(p3, size=b.shape[-2:])
        p1 = self.lateral[0](a) + F.interpolate(p2, size=a.shape[-2:])
        return OrderedDict(p1=p1, p2=p2, p3=p3)


@attack(IMAGE, family="vision", sample={"x": (1, 3, 64, 64)}, good=True)
class YoloHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(block(3, 8, 2), block(8, 8, 2), block(8, 16, 2))
        self.head = nn.Conv2d(16, 3 * 9, 1)
        self.register_buffer("anchors", torch.tensor([[10.0, 13], [16, 30], [33, 23]]))
        self.anchors: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(self.body(x))
        b, _, h, w = y.shape
        y = y.view(b, 3, 9, h, w).permute(0, 1, 3, 4, 2).sigmoid()
        gy, gx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack([gx, gy], -1).float()
        xy = (y[..., :2] * 2 - 0.5 + grid) * 8
        wh = (y[..., 2:4] * 2) ** 2 * self.anchors[:, None, None]
        return torch.cat([xy, wh, y[..., 4:]], -1).view(b, -1, 9)


@attack(IMAGE, family="vision", sample={"x": (1, 3, 32, 32)})
class TopBoxes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = block(3, 8, 4), nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.head(self.body(x)).flatten(2).transpose(1, 2)
        scores, index = y[..., 0].topk(5)
        boxes = y[..., 1:].gather(1, index[..., None].expand(-1, -1, 4))
        return boxes, scores


@attack(IMAGE, family="vision", sample={"x": (1, 3, 16, 16)}, good=True)
class VqVae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(3, 4, 4, 2, 1)
        self.codes = nn.Embedding(16, 4)
        self.decoder = nn.ConvTranspose2d(4, 3, 4, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x).permute(0, 2, 3, 1)
        flat = z.reshape(-1, 4)
        far = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codes.weight.T
        index = (far + self.codes.weight.pow(2).sum(1)).argmin(1)
        q = self.codes(index).view(z.shape)
        return self.decoder(q.permute(0, 3, 1, 2)), index.view(z.shape[:-1])


@attack("z[batch,8]", family="vision", sample={"z": (2, 8)}, good=True)
class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(8, 64), nn.Unflatten(1, (4, 4, 4)),
            nn.ConvTranspose2d(4, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.LeakyReLU(0.2),
            nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, z: Tensor) -> Tensor:
        return self.net(z)


@attack("x[batch,_,_,_]", family="vision", sample=PICTURE, good=True)
class ConvNext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depth = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale = nn.Parameter(torch.full((8,), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return (x + y.permute(0, 3, 1, 2)).mean((-2, -1))


@attack("x[batch,_,_,_]", family="vision", sample=PICTURE, good=True)
class MlpMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.tokens, self.width = (
            nn.Conv2d(3, 8, 8, 8),
            nn.Linear(16, 16),
            nn.Linear(8, 8),
        )
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patch(x).flatten(2).transpose(1, 2)
        y = y + self.tokens(self.norm(y).transpose(1, 2)).transpose(1, 2)
        return (y + F.gelu(self.width(y))).mean(1)


@attack("a[batch,_,height,width]", "b[batch,_,height,width]", family="vision", good=True,
        sample={"a": (1, 3, 24, 24), "b": (1, 3, 24, 24)})  # fmt: skip
class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(block(3, 8, 2), block(8, 8, 2))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        one, two = self.body(a).mean((2, 3)), self.body(b).mean((2, 3))
        return F.cosine_similarity(one, two)


@attack("low[batch,_,height,width]", family="vision", sample={"low": (1, 3, 12, 16)}, good=True)
class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 12, 3, padding=1)

    def forward(self, low: Tensor) -> Tensor:
        y = F.pixel_shuffle(self.b(F.prelu(self.a(low), torch.tensor([0.2]))), 2)
        return y + F.interpolate(low, scale_factor=2.0, mode="bicubic", align_corners=False)


@attack(
    "video[batch,_,frames,_,_]", family="vision", sample={"video": (1, 3, 8, 12, 12)}, good=True
)
class Video3d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Conv3d(3, 6, 3, (1, 2, 2), 1), nn.Linear(6, 4)

    def forward(self, video: Tensor) -> Tensor:
        y = F.max_pool3d(F.relu(self.a(video)), (1, 2, 2))
        return self.head(y.mean((2, 3, 4)))


@attack(IMAGE, family="vision", sample={"x": (1, 3, 32, 32)}, good=True)
class DilatedSegmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = block(3, 8, 2)
        self.rates = nn.ModuleList(nn.Conv2d(8, 4, 3, padding=r, dilation=r) for r in (1, 2, 4))
        self.pool, self.head = nn.Conv2d(8, 4, 1), nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        whole = self.pool(y.mean((2, 3), keepdim=True)).expand(-1, -1, *y.shape[-2:])
        y = self.head(torch.cat([whole, *(rate(y) for rate in self.rates)], 1))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


@attack(IMAGE, family="vision", sample={"x": (1, 3, 32, 32)}, good=True)
class EfficientAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.qkv = block(3, 8, 4), nn.Conv2d(8, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        q, k, v = self.qkv(y).flatten(2).chunk(3, 1)
        context = k.softmax(-1) @ v.transpose(1, 2)
        return (q.softmax(1).transpose(1, 2) @ context).transpose(1, 2).reshape(y.shape)


@attack("x[batch,_,height,width]", family="vision", sample={"x": (1, 3, 32, 64)}, good=True)
class Crnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(block(3, 8), nn.MaxPool2d(2), block(8, 8), nn.MaxPool2d(2))
        self.rnn = nn.GRU(8, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x).mean(2).transpose(1, 2)
        return self.head(self.rnn(y)[0]).log_softmax(-1)


@attack("points[batch,n,3]", family="vision", sample={"points": (2, 20, 3)}, good=True)
class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv1d(3, 16, 1), nn.Conv1d(16, 16, 1), nn.Linear(16, 5)

    def forward(self, points: Tensor) -> Tensor:
        y = self.b(F.relu(self.a(points.transpose(1, 2))))
        return self.head(y.amax(2))


@attack(IMAGE, family="vision", sample={"x": (1, 3, 24, 24)}, good=True)
class EarlyAux(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = block(3, 8, 2), block(8, 8, 2)
        self.aux, self.head = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        a = self.a(x)
        out = {"logits": self.head(self.b(a).mean((2, 3)))}
        if self.training:
            out["aux"] = self.aux(a.mean((2, 3)))
        return out


@attack("image:uint8[height,width,3]", family="vision", good=True)
class PreprocessInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(block(3, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, image: Tensor) -> Tensor:
        x = image.permute(2, 0, 1)[None].float() / 127.5 - 1
        return self.net(F.interpolate(x, size=(16, 16), mode="bilinear", align_corners=False))
