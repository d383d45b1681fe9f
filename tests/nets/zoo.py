"""The models of judge.py: samples, small nets and small transformers, by name and seed.

`build` is a factory for `--model modelc.tests.nets.zoo:build --model-arg name=NAME`. Weights are
drawn from the seed, with norms, biases and running statistics that are not 1 and 0: a fault in a
weight that does nothing would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from modelc.pipeline.order import Source
from modelc.sample_models import digits, encoder, gate, lstm, nested
from modelc.tests.nets import residual_nets as residual
from modelc.tests.nets import small_nets as nets
from modelc.tests.nets.transformers_configs import CONFIGS

FACTORY = "modelc.tests.nets.zoo:build"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One model: what builds it (given its number of layers), what goes in, where it is from."""

    build: Callable[[int], nn.Module]
    inputs: tuple[str, ...]
    family: str


def _entry(build: Callable[[], nn.Module], *inputs: str, family: str = "net") -> Entry:
    return Entry(build=lambda _: build(), inputs=inputs, family=family)


_TOKENS = ("ids:int64[batch=1..4,seq=2..24]{0..99}", "mask:int64[batch=1..4,seq=2..24]{0..1}")
_WORDS = "tokens:int64[batch=1..4,seq=2..20]{0..199}"
_NETS: Mapping[str, Entry] = {
    "perceptron": _entry(nets.Perceptron, "x:float32[batch=1..8,32]"),
    "attention": _entry(nets.Attention, *_TOKENS),
    "convolutions": _entry(nets.Convolutions, "image:float32[batch=1..4,3,16,16]"),
    "upsampling": _entry(nets.Upsampling, "image:float32[batch=1..4,3,16,16]"),
    "lstm": _entry(nets.Recurrent, _WORDS),
    "gru": _entry(lambda: nets.Recurrent(gated=True), _WORDS),
    "pointing": _entry(nets.Pointing, "x:float32[batch=1..8,16]"),
    "numerics": _entry(nets.Numerics, "x:float32[batch=1..4,48]"),
    "waves": _entry(nets.Waves, "sound:float32[batch=1..4,1,time=16..64]"),
}
_IMAGE = "image:float32[batch=1..4,3,16,16]"
_RESIDUAL: Mapping[str, Entry] = {
    "basic": _entry(lambda: residual.Net(residual.Basic), _IMAGE),
    "zero-gamma": _entry(lambda: residual.Net(residual.Basic, start="zero"), _IMAGE),
    "bottleneck": _entry(lambda: residual.Net(residual.Bottleneck), _IMAGE),
    "zero-bottleneck": _entry(lambda: residual.Net(residual.Bottleneck, start="zero"), _IMAGE),
    "folded": _entry(lambda: residual.Net(residual.Bottleneck, start="folded"), _IMAGE),
    "preactivation": _entry(lambda: residual.Net(residual.PreActivation), _IMAGE),
    "inverted": _entry(lambda: residual.Net(residual.Inverted), _IMAGE),
    "dense": _entry(lambda: residual.Net(residual.Dense), _IMAGE),
    "layer-scale": _entry(lambda: residual.Net(residual.Scaled), _IMAGE),
    "scripted": _entry(residual.Branching, _IMAGE),
}
_BRANCHES: Mapping[str, Entry] = {
    f"branch-{kind}-{above:g}": _entry(
        partial(nets.Branching, above=above, peak=kind == "peak"),
        "x:float32[batch=1..4,16]",
        family="branch",
    )
    for kind, above in (
        ("mean", 0.0), ("mean", 0.1), ("mean", 0.5), ("mean", 2.0), ("mean", 10.0),
        ("peak", 2.0), ("peak", 3.0), ("peak", 5.0), ("peak", 20.0),
    )
}  # fmt: skip
_SAMPLES: Mapping[str, Entry] = {
    "sample-digits": _entry(digits.build, *digits.SIGNATURE, family="sample"),
    "sample-gate": _entry(gate.gate, *gate.SIGNATURE, family="sample"),
    "sample-nested": _entry(nested.detector, *nested.SIGNATURE, family="sample"),
    "sample-lstm": _entry(lstm.tagger, *lstm.SIGNATURE, family="sample"),
    "sample-encoder": _entry(
        lambda: encoder.bert(2, 64, heads=4, vocab=1000),
        "ids:int64[batch=1..4,seq=2..32]{0..999}",
        "mask:int64[batch=1..4,seq=2..32]{0..1}",
        family="sample",
    ),
}
ENTRIES: Mapping[str, Entry] = {
    **_SAMPLES,
    **_NETS,
    **_RESIDUAL,
    **_BRANCHES,
    **{
        name: Entry(build=config.build, inputs=config.inputs, family="transformers")
        for name, config in CONFIGS.items()
    },
}


def build(name: str, seed: int = 0, layers: int = 2) -> nn.Module:
    """Build the model of that name in eval mode, its weights drawn from the seed."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        entry = ENTRIES[name]
        model = entry.build(layers).eval()
        if entry.family != "sample" or seed:  # these have their own, for the first seed
            for part in model.modules():
                _draw(part)
        for part in model.modules():  # nets that have to begin in a certain way
            getattr(part, "settle", lambda: None)()
    return model


def checkpoint(name: str, folder: Path, *, seed: int = 0, layers: int = 2) -> Source:
    """Write the model's weights below `folder`; the source that a user would give for them."""
    path = folder / f"{name}-{seed}-{layers}.pt"
    torch.save(build(name, seed, layers).state_dict(), path)
    return Source(
        checkpoint=path,
        model=FACTORY,
        model_args={"name": name, "seed": str(seed), "layers": str(layers)},
        inputs=ENTRIES[name].inputs,
    )


def _draw(part: nn.Module) -> None:
    """Weights that keep the scale; norms, biases, layer scales and statistics that do something."""
    dense = isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d)
    for name, value in part.named_parameters(recurse=False):
        if "scale" in name or name in {"gamma", "lambda1"}:
            nn.init.uniform_(value, 0.5, 1.0)
        elif isinstance(part, nn.Embedding):
            nn.init.normal_(value, std=0.5)
        elif dense and value.ndim > 1:
            nn.init.normal_(value, std=value[0].numel() ** -0.5)
        elif value.ndim == 1:
            _draw_vector(name, value)
    for name, buffer in part.named_buffers(recurse=False):
        _draw_statistics(name, buffer)


def _draw_vector(name: str, value: Tensor) -> None:
    if name.startswith("weight"):
        nn.init.uniform_(value, 0.8, 1.2)
    elif "bias" in name:
        nn.init.normal_(value, std=0.1)


def _draw_statistics(name: str, buffer: Tensor) -> None:
    if name == "running_mean":
        nn.init.normal_(buffer, std=0.1)
    elif name == "running_var":
        nn.init.uniform_(buffer, 0.8, 1.25)
