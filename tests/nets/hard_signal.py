"""Hard cases: signals and images. Transforms, complex numbers, resampling at sizes that vary."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from modelc.tests.nets.case_helpers import hard
from modelc.tests.nets.cases import Case


class Spectrogram(nn.Module):
    """Log-mel-like features by torch.stft."""

    window: Tensor
    bank: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(32))
        self.register_buffer("bank", torch.rand(17, 10))
        self.out = nn.Conv1d(10, 6, 3, padding=1)

    def forward(self, wave: Tensor) -> Tensor:
        """Map (batch, samples) to (batch, 6, frames)."""
        complex_ = torch.stft(
            wave, n_fft=32, hop_length=8, window=self.window, return_complex=True, center=True
        )
        power = complex_.abs().square().transpose(1, 2) @ self.bank
        out: Tensor = self.out(torch.log(power + 1e-3).transpose(1, 2))
        return out


class Denoiser(nn.Module):
    """A mask on the spectrum: stft, a product with it, istft back to as many samples."""

    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(32))
        self.mask = nn.Linear(17, 17)

    def forward(self, wave: Tensor) -> Tensor:
        """Map (batch, samples) to the same."""
        spectrum = torch.stft(wave, 32, 8, window=self.window, return_complex=True)
        mask = torch.sigmoid(self.mask(torch.log1p(spectrum.abs()).transpose(1, 2))).transpose(1, 2)
        return torch.istft(spectrum * mask, 32, 8, window=self.window, length=wave.shape[-1])


class FourierLayer(nn.Module):
    """A Fourier neural operator's layer: rfft, complex weights on the low modes, irfft."""

    def __init__(self, modes: int = 5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, modes, dtype=torch.cfloat) * 0.3)
        self.skip, self.modes = nn.Conv1d(4, 4, 1), modes

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 4, points) to the same."""
        spectrum = torch.fft.rfft(x)
        low = torch.einsum("bim,iom->bom", spectrum[..., : self.modes], self.weight)
        mixed = torch.zeros_like(spectrum)
        mixed[..., : self.modes] = low
        out: Tensor = self.skip(x) + torch.fft.irfft(mixed, n=x.shape[-1])
        return functional.gelu(out)


class ComplexRotary(nn.Module):
    """Rotary positions by complex products, as Llama's first code had them."""

    turns: Tensor

    def __init__(self) -> None:
        super().__init__()
        rates = 1.0 / 100 ** (torch.arange(0, 16, 2) / 16)
        angles = torch.outer(torch.arange(64), rates)
        self.register_buffer(
            "turns", torch.polar(torch.ones_like(angles), angles), persistent=False
        )
        self.body = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, 16) to the same."""
        pairs = torch.view_as_complex(self.body(x).float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns[: x.shape[1]]).flatten(2).type_as(x)


class SpatialTransformer(nn.Module):
    """affine_grid and grid_sample: the input warped by what a small net says."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.say = nn.Linear(16, 6)

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, h, w) to the same."""
        unit = torch.eye(2, 3)[None]
        theta = unit + 0.1 * torch.tanh(self.say(self.look(image).flatten(1))).view(-1, 2, 3)
        grid = functional.affine_grid(theta, list(image.shape), align_corners=False)
        return functional.grid_sample(image, grid, mode="bilinear", align_corners=False)


class SampledReflect(nn.Module):
    """grid_sample in bicubic mode with reflected borders, at points that are an input."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 6, 3, padding=1)

    def forward(self, image: Tensor, points: Tensor) -> Tensor:
        """Sample features of (batch, 3, h, w) at (batch, n, 2): (batch, n, 6)."""
        sampled = functional.grid_sample(
            self.body(image), points[:, None], mode="bicubic", padding_mode="reflection",
            align_corners=True,
        )  # fmt: skip
        return sampled[:, :, 0].transpose(1, 2)


class ScaleUp(nn.Module):
    """interpolate by factors, in three modes, antialiased once."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (batch, 3, h, w) to maps of 2, 1.5 and 0.5 times the size."""
        x = self.body(image)
        return (
            functional.interpolate(x, scale_factor=2.0, mode="nearest"),
            functional.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=False),
            functional.interpolate(x, scale_factor=0.5, mode="bicubic", antialias=True),
        )


class ResizeLike(nn.Module):
    """One input is brought to the other's size, as skip connections and depth heads do."""

    def __init__(self) -> None:
        super().__init__()
        self.coarse, self.fine = nn.Conv2d(4, 6, 1), nn.Conv2d(3, 6, 3, padding=1)

    def forward(self, image: Tensor, features: Tensor) -> Tensor:
        """Map image (batch, 3, h, w) and features (batch, 4, p, q) to (batch, 6, h, w)."""
        size = image.shape[-2:]
        wide = functional.interpolate(
            self.coarse(features), size=size, mode="bilinear", align_corners=True
        )
        out: Tensor = wide + self.fine(image)
        return out


class PyramidPool(nn.Module):
    """Adaptive pools to grids that the size need not divide into, brought back up."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.pools = nn.ModuleList(nn.AdaptiveAvgPool2d(size) for size in (1, 2, 3, 6))

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, h, w) to (batch, 30, h, w)."""
        x = self.stem(image)
        size = x.shape[-2:]
        maps = [functional.interpolate(pool(x), size=size, mode="nearest") for pool in self.pools]
        return torch.cat([x, *maps], dim=1)


class MaxPyramid(nn.Module):
    """adaptive_max_pool2d to a fixed grid: a classifier for any size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6 * 9, 5)

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, h, w) to (batch, 5)."""
        pooled = functional.adaptive_max_pool2d(self.stem(image), (3, 3))
        out: Tensor = self.out(pooled.flatten(1))
        return out


class Upwards(nn.Module):
    """Transposed convolutions with output_padding, dilation and groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)
        self.second = nn.ConvTranspose2d(6, 6, 3, stride=3, output_padding=2, groups=2, dilation=2)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 4, h, w) to (batch, 6, larger, larger)."""
        out: Tensor = self.second(torch.relu(self.first(x)))
        return out


class PadToMultiple(nn.Module):
    """Pads to a multiple of 8 by the size, works in windows of 8, cuts back: Swin's way."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Conv2d(3, 6, 1), nn.Linear(64, 64)

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, h, w) to (batch, 6, h, w)."""
        batch, _, height, width = image.shape
        x = functional.pad(self.embed(image), (0, (8 - width % 8) % 8, 0, (8 - height % 8) % 8))
        rows, columns = x.shape[2] // 8, x.shape[3] // 8
        tiles = x.view(batch, 6, rows, 8, columns, 8).permute(0, 2, 4, 1, 3, 5).reshape(-1, 6, 64)
        tiles = torch.tanh(self.mix(tiles)).view(batch, rows, columns, 6, 8, 8)
        whole = tiles.permute(0, 3, 1, 4, 2, 5).reshape(batch, 6, rows * 8, columns * 8)
        return whole[:, :, :height, :width].contiguous()


class ModedPads(nn.Module):
    """Reflect, replicate and circular padding, and a negative one that cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv1d(4, 4, 5, padding=2, padding_mode="circular")

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 4, time) to (batch, 4, time + 3)."""
        y = functional.pad(self.body(x), (2, 1), mode="reflect")
        y = functional.pad(torch.tanh(y), (3, 2), mode="replicate")
        return functional.pad(y, (-4, -1))


class Patches(nn.Module):
    """unfold to overlapping patches, a layer on each, fold back with the overlaps averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3 * 16, 3 * 16)

    def forward(self, image: Tensor) -> Tensor:
        """Map (batch, 3, h, w), h and w multiples of 4, to the same."""
        size = (image.shape[2], image.shape[3])
        patches = functional.unfold(image, 4, stride=2, padding=1)
        mixed = self.mix(patches.transpose(1, 2)).transpose(1, 2)
        ones = functional.unfold(torch.ones_like(image), 4, stride=2, padding=1)
        folded = functional.fold(mixed, size, 4, stride=2, padding=1)
        return folded / functional.fold(ones, size, 4, stride=2, padding=1)


_WAVE, _SEQ = "wave:float32[batch=1..4,samples=64..200]", "x:float32[batch=1..4,seq=1..32,16]"
_IMAGE = "image:float32[batch=1..4,3,h=12..30,w=12..30]"
CASES: tuple[Case, ...] = (
    hard("stft", Spectrogram, _WAVE, why="complex inside, frames by the input's length"),
    hard("istft", Denoiser, _WAVE, why="stft and back, length from a size"),
    hard("fourier-operator", FourierLayer, "x:float32[batch=1..4,4,points=16..40]",
         why="rfft, complex weights, a slice written, irfft"),
    hard("complex-rotary", ComplexRotary, _SEQ, why="a complex buffer, view_as_complex"),
    hard("grid-sample", SpatialTransformer, _IMAGE, why="affine_grid at a dynamic size"),
    hard(
        "grid-sample-bicubic", SampledReflect, _IMAGE, "points:float32[batch,n=1..9,2]{-1..1}",
        why="bicubic, reflection, align_corners",
    ),
    hard("interpolate-scale", ScaleUp, _IMAGE, why="2.0, 1.5 and 0.5 antialiased"),
    hard(
        "interpolate-like", ResizeLike, "image:float32[batch=1..4,3,h=12..30,w=12..30]",
        "features:float32[batch,4,p=3..8,q=3..8]", why="the size of another input",
    ),
    hard("adaptive-pooling", PyramidPool, _IMAGE, why="AdaptiveAvgPool2d(1, 2, 3, 6) at any size"),
    hard("adaptive-max-pooling", MaxPyramid, _IMAGE, why="adaptive_max_pool2d(3) at any size"),
    hard("transposed-convolutions", Upwards, "x:float32[batch=1..4,4,h=3..9,w=3..9]",
         why="output_padding, dilation, groups"),
    hard("pad-to-multiple", PadToMultiple, _IMAGE, why="pads and windows made of h % 8"),
    hard("padding-modes", ModedPads, "x:float32[batch=1..4,4,time=8..40]",
         why="circular, reflect, replicate, negative"),
    hard("unfold-fold", Patches, "image:float32[batch=1..4,3,16,16]", why="overlapping patches"),
)  # fmt: skip
