"""The table of attacks: a small net, the `--input` texts as its user would type them, a sample.

Each net stands in a module beside this one, which its user names: `--model attack_sizes:Above9`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Array = NDArray[Any]
Shape = tuple[int, ...]
PLAIN = ("torchscript", "onnx", "openvino")
TABLE: dict[str, Attack] = {}


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One net and how it is exported.

    `sample` gives shapes that are drawn (floats normal), or arrays; empty where there is none.
    `good` marks a net of an ordinary kind, which has to pass at the first try in all targets but
    those in `unable`, which maps a target to why it cannot hold the net. `wide` lists the dims
    that the domain must hold more than one size of, `nan` says that its users feed NaN.
    """

    name: str
    net: type[nn.Module]
    family: str
    inputs: tuple[str, ...]
    sample: Mapping[str, Shape | Array] = field(default_factory=dict)
    targets: tuple[str, ...] = PLAIN
    options: Mapping[str, object] = field(default_factory=dict)
    good: bool = False
    unable: Mapping[str, str] = field(default_factory=dict)
    nan: bool = False
    calib: int = 0

    @property
    def factory(self) -> str:
        """What `--model` gets."""
        return f"{self.net.__module__}:{self.net.__name__}"

    def arrays(self) -> dict[str, Array]:
        """The sample as arrays."""
        rng = np.random.default_rng(7)
        return {
            name: rng.standard_normal(value).astype(np.float32)
            if isinstance(value, tuple)
            else value
            for name, value in self.sample.items()
        }


def attack(*inputs: str, family: str, **more: Any) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Put a net into the table under the name of its class."""

    def put(net: type[nn.Module]) -> type[nn.Module]:
        if net.__name__ in TABLE:
            raise ValueError(f"two attacks are called {net.__name__}")
        TABLE[net.__name__] = Attack(
            name=net.__name__, net=net, family=family, inputs=inputs, **more
        )
        return net

    return put


def ints(shape: Shape, low: int, high: int, seed: int = 3) -> Array:
    """Integers as a sample, both ends included."""
    return np.random.default_rng(seed).integers(low, high, shape, np.int64, endpoint=True)


def attacks(pattern: str = "attack_*.py") -> dict[str, Attack]:
    """All attacks, module by module."""
    for path in sorted(Path(__file__).parent.glob(pattern)):
        if path.stem != "attack_case":
            import_module(path.stem)
    return TABLE


def build(case: Attack) -> nn.Module:
    """The net with weights of a fixed seed, moved off what an initialisation leaves constant."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(sum(map(ord, case.name)))
        net = case.net().eval()
        for name, value in _state(net):
            if name.endswith("running_var"):
                value.uniform_(0.5, 1.5)
            elif name.endswith("running_mean"):
                value.normal_(std=0.2)
            elif name.endswith("bias") and not value.any():
                value.normal_(std=0.1)
    return net


def _state(net: nn.Module) -> Sequence[tuple[str, torch.Tensor]]:
    return [*net.named_parameters(), *net.named_buffers()]
