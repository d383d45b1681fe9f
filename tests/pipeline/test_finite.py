"""A checkpoint of which eager gives no number is refused before anything is made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from modelc.core.errors import CheckpointError, ErrorCode
from modelc.core.events import Event, Noted
from modelc.pipeline.order import Order, Source
from modelc.pipeline.run_order import run

from ..reasons import has_code

Orders = Callable[..., Order]
NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(4, 4), nn.Linear(4, 2)
    def forward(self, x):
        return self.dec(self.enc(x))

class Masked(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
    def forward(self, x):
        return self.dec(self.enc(x) + torch.softmax(self.mask, -1).sum(0))

class Roots(Net):
    def forward(self, x):
        return torch.sqrt(-1 - self.enc(x).abs())

class Places(Net):
    def forward(self, x):
        return self.dec(self.enc(x)).argmax(-1)
"""


@pytest.fixture
def spoilt(order: Orders, tmp_path: Path, write_module: Callable[[str], str]) -> Orders:
    """`spoilt("Net", "enc.weight")`: an order for that net with a NaN in that weight."""
    module = write_module(NETS)

    def make(name: str, *weights: str) -> Order:
        space: dict[str, type[nn.Module]] = {}
        exec(NETS, space)
        torch.manual_seed(0)
        state = space[name]().state_dict()
        for weight in weights:
            state[weight].view(-1)[0] = torch.nan
        torch.save(state, tmp_path / "net.pt")
        source = Source(
            checkpoint=tmp_path / "net.pt",
            model=f"{module}:{name}",
            inputs=("x:float32[batch=1..4,4]",),
        )
        return order("torchscript", source=source)

    return make


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        (["enc.bias"], "enc.bias has 1 NaN: eager gives nothing but NaN or Inf"),
        (["dec.weight", "enc.bias", "dec.bias"], "enc.bias has 1 NaN (and 2 more weights): eager"),
    ],
)
def test_the_first_weight_with_nan_is_named(
    spoilt: Callable[..., Order], tmp_path: Path, weights: list[str], told: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        run(spoilt("Net", *weights))
    assert caught.value.message.startswith(told)
    assert "checkpoint" in caught.value.hint
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_model_whose_outputs_are_all_nan_is_an_error(
    spoilt: Callable[..., Order],
) -> None:
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.NONFINITE_OUTPUTS)):
        run(spoilt("Roots"))


@pytest.mark.parametrize(
    ("name", "weights", "warned"),
    [("Net", ["dec.bias"], ["dec.bias has 1 NaN"]), ("Masked", [], []), ("Net", [], [])],
)
def test_where_eager_gives_numbers_weights_with_nan_are_a_warning(
    spoilt: Callable[..., Order], name: str, weights: list[str], warned: list[str]
) -> None:
    told: list[Event] = []
    found = run(spoilt(name, *weights), told.append)
    notes = [one.text for one in told if isinstance(one, Noted) and one.warning]
    assert [note.partition(":")[0] for note in notes if " has " in note] == warned
    assert found.passed


def test_integers_can_be_compared(spoilt: Callable[..., Order]) -> None:
    assert run(spoilt("Places", "enc.bias")).passed
