"""What lies beyond chosen ranges is said, with an --input that states it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from modelc.core.domain import Domain
from modelc.core.signature import ValueRange
from modelc.pipeline.domain_search import choose_dims
from modelc.pipeline.size_probe import describe_unverified_dims, widen_input
from modelc.reports.result_rows import describe_narrowed_values

from ..open_models import load, open_module, signature_of

WIDE = ValueRange(low=-(2**40), high=2**40, chosen=True, usual=(0, 1))


class Frames(nn.Module):
    """Windows of 400 elements, as of a sound."""

    def forward(self, wave: Tensor) -> Tensor:
        return torch.nn.functional.pad(wave, (200, 200), mode="reflect").unfold(1, 400, 160)


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(100))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > len(self.table):
            raise ValueError("too long")
        return x * self.table[: x.shape[1]]


def chosen(net: nn.Module, text: str) -> str:
    eager, signature = open_module(net, text)
    found = choose_dims(eager, signature)
    return describe_unverified_dims(found, widen_input(found, load(net)))


def test_the_example_states_larger_sizes_where_the_search_ended() -> None:
    line = chosen(Frames(), "wave:float32[batch,samples]")
    assert line.startswith("dims: batch 1..8, samples 201..896 (chosen;")
    assert line.endswith(" --input 'wave:float32[batch,samples=201..8960]')")
    wider = signature_of(line.partition("--input '")[2].rstrip("')"))
    assert wider.free_dims["samples"].high == 8960


def test_no_example_is_given_where_eager_rejects_larger_sizes() -> None:
    line = chosen(Positions(), "x:float32[batch,seq]")
    assert line.startswith("dims: batch 1..8, seq 1..100 (chosen;")
    assert "'" not in line


class Joined(nn.Module):
    """Two texts that share 120 positions, as a past and a prompt do."""

    def __init__(self, positions: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(positions))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.sum() + y.sum() + self.table[torch.arange(x.shape[1] + y.shape[1])].sum()


@pytest.mark.parametrize(("positions", "most"), [(40, 0), (50, 32), (100, 64), (10_000, 160)])
def test_the_example_is_a_size_at_which_eager_runs(positions: int, most: int) -> None:
    net = Joined(positions)
    signature = signature_of("x:float32[batch=1..4,n=1..4..16]", "y:float32[batch=1..4,m=1..4..16]")
    inputs = tuple(
        replace(one, dims=(one.dims[0], replace(one.dims[1], bounded=False, chosen=True)))
        for one in signature.inputs
    )
    found = replace(signature, inputs=inputs)
    line = describe_unverified_dims(found, widen_input(found, load(net)))
    assert ("--input 'x" in line) == bool(most)
    assert not most or line.endswith(f"--input 'x:float32[batch=1..4,n=1..{most}]')"), line


class Rotary(nn.Module):
    """Takes any size, as a model with rotary positions does."""

    def forward(self, input_ids: Tensor, kept: Tensor) -> Tensor:
        return input_ids.sum() + kept.sum()


@pytest.mark.parametrize(
    ("positions", "wider"), [(None, 1280), (1000, 872), (256, None), (64, None)]
)
def test_the_example_ends_with_the_positions_of_a_text(
    positions: int | None, wider: int | None
) -> None:
    text = signature_of("input_ids:int64[batch=1..8,sequence=1..32..128]")
    past = signature_of("kept:float32[batch=1..8,2,past=0..32..128,8]")
    specs = tuple(
        replace(spec, dims=tuple(replace(dim, chosen=dim.dynamic) for dim in spec.dims))
        for spec in (*text.inputs, *past.inputs)
    )
    loaded = replace(load(Rotary()), positions=positions)
    signature = replace(text, inputs=specs)
    line = describe_unverified_dims(signature, widen_input(signature, loaded))
    found = re.search(r"sequence=1\.\.(\d+)", line)
    assert (int(found[1]) if found else None) == wider
    assert ("'" in line) == (wider is not None)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(-(2**20), 2**20, True), (-(2**31) + 1, 2**31 - 1, False), (-(2**40), 2**40, False)],
)
def test_integers_that_an_artifact_narrows_are_described(low: int, high: int, said: bool) -> None:
    asked = signature_of("seconds:int64[batch=1..8]")
    (spec,) = asked.inputs
    asked = replace(asked, inputs=(replace(spec, values=WIDE),))
    kept = replace(spec, values=replace(WIDE, low=low, high=high))

    class Artifact:
        name = "openvino"
        domain = Domain(inputs=(kept,))

    lines = describe_narrowed_values([cast("Any", Artifact())], asked)
    assert len(lines) == said
    for line in lines:
        assert line.startswith("openvino: seconds ")
        assert " -1048576..1048576 " in line
        stated = re.search(r"--input '(.*)'", line)
        assert stated
        (wider,) = signature_of(stated[1]).inputs
        assert (wider.values and wider.values.high) == 2**31 - 1
