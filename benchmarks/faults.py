"""The faults of judge.py, by kind and of decreasing size, for each model what suits it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from modelc.benchmarks import fault_graphs as graphs
from modelc.benchmarks import fault_levers as lever
from modelc.benchmarks.fault_feeds import Feeding
from modelc.benchmarks.fault_settings import SETTINGS
from modelc.benchmarks.judge_bed import Bed
from modelc.core.signature import FLOATS

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)
_GRAPHED = (
    "perceptron", "attention", "convolutions", "waves", "lstm", "sample-digits", "sample-nested",
    "bert", "vit", "gpt2", "swin", "resnet",
)  # fmt: skip
_WHOLE = ("sample-digits", "attention", "convolutions", "bert", "t5", "vit", "convnext", "whisper")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: its kind (a row of the table), what it is exactly, and how it is planted.

    Either `alter` (of a copy of the module) or `edit` (of the graph, at output number `output`).
    `feeding` is a feed of its own in the declared range, on which it shows if anywhere.
    """

    kind: str
    label: str
    alter: tuple[lever.Alter, ...] = ()
    edit: graphs.Plan | None = None
    output: int = 0
    feeding: Feeding | None = None


def faults_for(bed: Bed) -> Iterator[Fault]:
    """All faults for that model, in an order that does not change."""
    pulls = lever.levers(bed.module, bed.subject.signature, bed.feeds[1])
    yield from _weights(bed, pulls)
    yield from _normalisation(bed, pulls)
    yield from _attention(bed)
    yield from _settings(bed)
    if bed.name in _WHOLE:
        yield from _everywhere(bed)
    if bed.name in _GRAPHED:
        yield from _graphs(bed)


def _weights(bed: Bed, pulls: lever.Levers) -> Iterator[Fault]:
    layers = pulls.live(*_LAYERS, module=bed.module)
    biases = pulls.live(*_LAYERS, module=bed.module, part="bias")
    if not layers:
        return
    places = itertools.cycle((0.0, 0.5, 1.0, 0.25, 0.75))
    for factor, said in ((1.1, "10 %"), (1.01, "1 %"), (1.001, "0.1 %"), (1.0001, "0.01 %")):
        name = lever.at(layers, next(places))
        alter = lever.element(name, pulls.typical(name), factor)
        yield Fault(kind=f"one weight off by {said}", label=name, alter=(alter,))
    for factor, said in ((1.1, "10 %"), (1.01, "1 %")) if biases else ():
        name = lever.at(biases, next(places))
        alter = lever.element(name, pulls.typical(name), factor)
        yield Fault(kind=f"one bias off by {said}", label=name, alter=(alter,))
    changes: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "two channels swapped": lever.two_swapped,
        "one layer in float16": lever.round_through(torch.float16),
        "one layer in bfloat16": lever.round_through(torch.bfloat16),
        "one layer in 8 bits": lever.eight_bits,
    }
    for kind, change in changes.items():
        name = lever.at(layers, next(places))
        yield Fault(kind=kind, label=name, alter=(lever.whole(name, change),))
    name = lever.at(layers, next(places))
    yield Fault(
        kind="one layer of another seed",
        label=name,
        alter=(lever.stale(bed.name, 99, only=name),),
    )
    yield from _tables(bed, pulls, layers)


def _tables(bed: Bed, pulls: lever.Levers, layers: Sequence[str]) -> Iterator[Fault]:
    square = [n for n in layers if _square(bed.module.get_parameter(n))]
    if square:
        name = lever.at(square, 0.5)
        yield Fault(
            kind="square weight transposed", label=name, alter=(lever.whole(name, _transpose),)
        )
    tables = pulls.live(nn.Embedding, module=bed.module)
    for name in [n for n in tables if "position" in n or "places" in n or "wpe" in n][:1]:
        yield Fault(
            kind="positions off by one",
            label=name,
            alter=(lever.whole(name, lambda value: value.roll(1, 0)),),
        )
    for name in [n for n in tables if "word" in n or n.endswith(("wte.weight", "embed.weight"))][
        :1
    ]:
        yield Fault(
            kind="one token's embedding off by 10 %",
            label=f"{name} row 57",
            alter=(lever.whole(name, _row_57),),
            feeding=Feeding(everywhere=57),
        )


def _square(value: torch.Tensor) -> bool:
    return value.ndim == 2 and value.shape[0] == value.shape[1]  # noqa: PLR2004 - a matrix


def _transpose(value: torch.Tensor) -> torch.Tensor:
    return value.T.contiguous()


def _row_57(value: torch.Tensor) -> torch.Tensor:
    value[57] *= 1.1
    return value


def _normalisation(bed: Bed, pulls: lever.Levers) -> Iterator[Fault]:
    found = lever.norms(bed.module)
    live = [n for n in found if pulls.pull.get(f"{n}.weight", torch.zeros(1)).max() > 0]
    if not live:
        return
    for place, part in ((0.5, "weight"), (0.0, "bias")):
        name = f"{lever.at(live, place)}.{part}"
        if name not in pulls.pull:
            continue
        change = torch.ones_like if part == "weight" else torch.zeros_like
        word = "scale" if part == "weight" else "shift"
        yield Fault(kind=f"a norm's {word} dropped", label=name, alter=(lever.whole(name, change),))
    for place, value in ((0.0, 1e-3), (1.0, 1e-5), (0.5, 1e-6), (0.0, 1e-12)):
        name = lever.at(live, place)
        layer = bed.module.get_submodule(name)
        now = getattr(layer, "eps", getattr(layer, "variance_epsilon", None))
        if now is None or now == value:
            continue
        yield Fault(
            kind=f"epsilon {_power(now)} -> {_power(value)}",
            label=name,
            alter=(lever.epsilon(name, value),),
        )


def _power(value: float) -> str:
    mantissa, _, exponent = f"{value:.0e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def _attention(bed: Bed) -> Iterator[Fault]:
    layers = lever.value_layers(bed.module)
    for place, factor in ((0.0, 1.5), (1.0, 1.01), (0.0, 1.001), (1.0, 1.0001)) if layers else ():
        name = lever.at(layers, place)
        alter = lever.head(name, 4, factor)
        yield Fault(kind=f"one attention head x {factor:g}", label=name, alter=(alter,))
    kinds = {type(part).__name__ for part in bed.module.modules()}
    if kinds & {"GELU", "GELUActivation", "NewGELUActivation", "GELUTanh"}:
        yield Fault(kind="gelu exact / tanh", label="all", alter=(lever.tanh_gelu,))
    if "Dropout" in kinds and bed.name in {"bert", "vit", "gpt2", "t5", "sample-digits"}:
        for factor in (1.1, 1.001):
            yield Fault(
                kind=f"dropout left on (x {factor:g})",
                label="the last",
                alter=(lever.dropout_scaled(factor),),
            )


def _settings(bed: Bed) -> Iterator[Fault]:
    for kind, name, value in SETTINGS.get(bed.name, ()):
        yield Fault(kind=kind, label=f"{name}={value}", alter=(lever.set_attribute(name, value),))


def _everywhere(bed: Bed) -> Iterator[Fault]:
    rows: Mapping[str, lever.Alter] = {
        "all weights of another seed": lever.stale(bed.name, 99),
        "all weights through bfloat16": lever.every(lever.round_through(torch.bfloat16)),
        "all weights through float16": lever.every(lever.round_through(torch.float16)),
        "weights below 1e-3 dropped": lever.every(lever.truncate),
    }
    for kind, alter in rows.items():
        yield Fault(kind=kind, label="all", alter=(alter,))


def _graphs(bed: Bed) -> Iterator[Fault]:
    """Faults of sizes, ranges, rows and channels; on the first output."""
    yield from _by_size(bed)
    yield from _by_range(bed)
    yield from _by_value(bed)
    name = bed.subject.signature.outputs[0]
    widths = {reference.outputs[name].shape[-1] for reference in bed.subject.references}
    for factor in (1.1, 1.001, 1.00001) if len(widths) == 1 else ():
        yield _graph(f"one output channel x {factor:g}", graphs.channel(factor, max(widths)))
    for share in (0.5, 1e-3, 1e-5):
        yield _graph(f"rows of a batch mixed ({share:g})", graphs.mix_rows(share))
    yield _graph("an output through float16", graphs.through(graphs.HALF))
    yield _graph("an output through bfloat16", graphs.through(graphs.BRAIN))


def _by_size(bed: Bed) -> Iterator[Fault]:
    spec = bed.subject.signature.inputs[0]
    for factor in (2.0, 1.01, 1.0001):
        edit = graphs.at_size(spec.name, 0, 3, factor)
        yield _graph(f"wrong at batch 3 alone (x {factor:g})", edit, Feeding(sizes={"batch": 3}))
    for name, dim in bed.subject.signature.dynamic_dims.items():
        if name == "batch":
            continue
        axis = [one.name for one in spec.dims].index(name)
        for size, said in ((dim.high, "the longest"), (dim.high - 1, "one below the longest")):
            edit = graphs.at_size(spec.name, axis, size, 1.01)
            kind = f"wrong at {said} size alone (x 1.01)"
            yield _graph(kind, edit, Feeding(sizes={name: size}))


def _by_range(bed: Bed) -> Iterator[Fault]:
    spec = bed.subject.signature.inputs[0]
    if spec.dtype not in FLOATS:
        return
    yield _graph("wrong for negative inputs (x 1.01)", graphs.below_mean(spec.name, 0.0, 1.01))
    for limit in (3.0, 6.0, 30.0):
        edit = graphs.above_peak(spec.name, limit, 1.01)
        yield _graph(f"wrong for inputs above {limit:g} (x 1.01)", edit, Feeding(scale=limit))


def _by_value(bed: Bed) -> Iterator[Fault]:
    output = bed.subject.signature.outputs[0]
    largest = sorted(float(found[output].max()) for found in bed.exact)
    for limit, said in ((0.9 * largest[0], "seen in every feed"), (0.99 * largest[-1], "rare")):
        yield _graph(
            f"output saturates at a value {said}",
            graphs.saturate(limit),
            Feeding(scale=30.0),
        )
    if bed.name == "sample-nested":
        names = bed.subject.signature.outputs
        first = names.index("boxes.0")
        edit = graphs.swap_outputs("boxes.1")
        yield Fault(kind="outputs swapped", label="boxes", edit=edit, output=first)


def _graph(kind: str, edit: graphs.Plan, feeding: Feeding | None = None) -> Fault:
    return Fault(kind=kind, label="the graph", edit=edit, feeding=feeding)
