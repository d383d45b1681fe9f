"""Nets of usual size for the benchmark of cost: an image net, a deeper one and a text encoder.

As a program it is the script that a user would write instead of modelc:
python tests/nets/cost_nets.py NAME CHECKPOINT OUT.onnx exports with the same dynamic dims, opens
the file in ONNX Runtime and compares one feed with eager, no more.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from modelc.core.grammar import parse_input

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # width and stride of each stage, of two blocks
RESIDUAL_GAIN = 0.25  # as in the deeper net: scale of a block's last norm


@dataclass(frozen=True, kw_only=True)
class CostNet:
    """A net by its factory, the domain that is asked for and the sizes that are exported at."""

    factory: str
    inputs: tuple[str, ...]
    sizes: dict[str, int]
    arguments: tuple[str, ...] = ()

    def build(self) -> nn.Module:
        """Build it as `--model` does, in eval mode."""
        module, _, function = self.factory.partition(":")
        arguments = {name: int(value) for name, value in (a.split("=") for a in self.arguments)}
        built: nn.Module = getattr(import_module(module), function)(**arguments)
        return built.eval()


_TEXT = "[batch=1..8,seq=2..128]"
NETS: Mapping[str, CostNet] = {
    "resnet18": CostNet(
        factory="modelc.tests.nets.cost_nets:resnet18",
        inputs=("image:float32[batch=1..8,3,224,224]",),
        sizes={"batch": 2},
    ),
    "resnet50": CostNet(
        factory="modelc.sample_models.resnet:resnet50",
        inputs=("image:float32[batch=1..8,3,224,224]",),
        sizes={"batch": 2},
    ),
    "bert6": CostNet(
        factory="modelc.sample_models.encoder:bert",
        inputs=(f"ids:int64{_TEXT}{{0..30521}}", f"mask:int64{_TEXT}{{0..1}}"),
        sizes={"batch": 2, "seq": 16},
        arguments=("layers=6",),
    ),
}


class Block(nn.Module):
    """Two convolutions of 3 x 3, added to what came in."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != width:
            conv = nn.Conv2d(inputs, width, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, width, h / stride, w / stride)."""
        inner = self.relu(self.norm1(self.conv1(x)))
        summed: Tensor = self.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))
        return summed


def resnet18() -> nn.Module:
    """ResNet-18 (He et al. 2015, table 1): 11.7 million parameters, 1000 classes."""
    torch.manual_seed(0)
    stem = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
    layers = [stem, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
    inputs = 64
    for width, stride in STAGES:
        layers += [Block(inputs, width, stride), Block(width, width, 1)]
        inputs = width
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(module, Block):
            nn.init.constant_(module.norm2.weight, RESIDUAL_GAIN)
    return net


def example(net: CostNet) -> dict[str, Tensor]:
    """One feed at the net's own sizes, drawn from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    feed: dict[str, Tensor] = {}
    for text in net.inputs:
        spec = parse_input(text)
        shape = [net.sizes.get(d.name or "", d.opt) for d in spec.dims or () if d is not None]
        if spec.values is None:
            feed[spec.name] = torch.randn(shape, generator=generator)
        else:
            high = int(spec.values.high) + 1
            feed[spec.name] = torch.randint(0, high, shape, generator=generator)
    return feed


def main(name: str, checkpoint: str, out: str) -> None:
    """Build, load, export, run one feed, compare."""
    import onnxruntime
    from safetensors.torch import load_file

    net = NETS[name]
    model = net.build()
    model.load_state_dict(load_file(checkpoint))
    feed = example(net)
    axes = [torch.export.Dim(dim, max=8 if dim == "batch" else 128) for dim in net.sizes]
    dims = tuple(dict(enumerate(axes)) for _ in feed)
    with torch.no_grad():
        wanted = _arrays(model(*feed.values()))
        torch.onnx.export(model, tuple(feed.values()), out, dynamic_shapes=dims, dynamo=True)
        session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_inputs()]
        given = {key: one.numpy() for key, one in zip(names, feed.values(), strict=True)}
        found = session.run(None, given)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def _arrays(value: Any) -> Sequence[Any]:
    values = value.values() if isinstance(value, dict) else [value]
    return [one.numpy() for one in values]


def write(name: str, folder: Path) -> Path:
    """The net's weights as a file; it lies there from the last time, or is made."""
    from safetensors.torch import save_file

    path = folder / f"{name}.safetensors"
    if not path.exists():
        save_file(NETS[name].build().state_dict(), path)
    return path


if __name__ == "__main__":
    main(*sys.argv[1:])
