"""Cases: an architecture as a user has it, and the factory that builds it.

`build` is the factory: `--model modelc.tests.nets.cases:build --model-arg name=NAME`. Each module
in `_MODULES` defines a tuple CASES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import torch
from torch import Tensor, nn

FACTORY = "modelc.tests.nets.cases:build"
FAMILIES = (
    "encoder", "decoder", "encoder-decoder", "vision-transformer", "cnn", "detection",
    "segmentation", "audio", "time-series", "state-space", "multi-modal", "recurrent", "graph",
    "hard", "large",
)  # fmt: skip
_DENSE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)
_NOTHING = 0.01  # biases, position tables, layer scales that training starts at 1e-6
_MODULES = (
    "transformers_other", "transformers_text", "transformers_vision",
    "plain_sequence", "plain_graph", "plain_vision",
    "hard_branches", "hard_forms", "hard_index", "hard_loops", "hard_parts", "hard_shapes",
    "hard_signal", "hard_state", "hard_switches", "hard_weights",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One architecture.

    `inputs` are `--input` texts with every dim dynamic that the architecture takes so; `options`
    are what its user would further give to `modelc export`. `more_feeds` take every arm of a case
    that branches on data. `why` says in one line what is hard. A case whose weights are part of
    what it is about (tied, expanded, in half precision) sets `drawn` to False and seeds its own.
    `close` is given where eager itself rounds to less than float32: right to its last bit is right.
    """

    name: str
    family: str
    build: Callable[[], nn.Module]
    inputs: tuple[str, ...]
    options: tuple[str, ...] = ()
    why: str = ""
    more_feeds: Callable[[], list[dict[str, np.ndarray]]] | None = None
    drawn: bool = True
    close: float | None = None


def cases() -> Iterator[Case]:
    """Every case, module by module. transformers is not imported before a case of it is built."""
    for name in _MODULES:
        yield from import_module(f"modelc.tests.nets.{name}").CASES


def case_named(name: str) -> Case:
    """The case of that name.

    Raises:
        KeyError: there is none.
    """
    for case in cases():
        if case.name == name:
            return case
    raise KeyError(name)


def build(name: str) -> nn.Module:
    """Build the case's module in eval mode, its weights drawn from seed 0."""
    case = case_named(name)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module = case.build().eval()
        for part in module.modules() if case.drawn else ():
            _draw(part)
    return module


def _draw(part: nn.Module) -> None:
    """Weights that keep the scale, and none that a fault could pass through unseen.

    Layers are drawn by their fan-in, embeddings at 0.5; what is constant (norms at 1, biases at 0,
    layer scales at 1e-6) and the statistics of normalisations are moved off that.
    """
    for value in part.parameters(recurse=False):
        if value.is_floating_point() and value.numel():
            _draw_weight(part, value)
    for name, buffer in part.named_buffers(recurse=False):
        if name == "running_mean":
            nn.init.normal_(buffer, std=0.1)
        elif name == "running_var":
            nn.init.uniform_(buffer, 0.8, 1.25)
        elif name == "embed":  # a codebook, which training fills
            nn.init.normal_(buffer)


def _draw_weight(part: nn.Module, value: Tensor) -> None:
    first = value.flatten()[0]
    if isinstance(part, nn.Embedding):
        nn.init.normal_(value, std=0.5)
    elif isinstance(part, _DENSE) and value.ndim > 1:
        nn.init.normal_(value, std=value[0].numel() ** -0.5)
    elif torch.equal(value, first.expand_as(value)):
        size = float(first)  # it is overwritten below
        if abs(size) < _NOTHING:
            nn.init.normal_(value, std=0.1)
        else:
            nn.init.uniform_(value, 0.8, 1.2).mul_(size)
