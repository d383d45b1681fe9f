"""LSTMs with projections as plain ones: eager's outputs and states, in forms that ONNX has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from modelc.capture.evidence import Symptom, evidence_of
from modelc.capture.rewrite_table import apply_rewrites, suggest_rewrites

from .conftest import Opened
from .test_rewrites import agree, export

Open = Callable[..., Opened]
REFUSED = evidence_of(Symptom.PROJECTED_LSTM)
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")


class Projected(nn.Module):
    """Outputs and last states, from states that are given where `stateful`."""

    def __init__(self, *, stateful: bool = False, **options: bool | int) -> None:
        super().__init__()
        self.stateful = stateful
        self.rnn = nn.LSTM(4, 6, proj_size=3, **options)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.rnn.flatten_parameters()
        states = None
        if self.stateful:
            count = self.rnn.num_layers * (2 if self.rnn.bidirectional else 1)
            first = x.flatten()[:3].expand(count, x.shape[int(not self.rnn.batch_first)], 3)
            cells = x.flatten()[:6].expand(count, x.shape[int(not self.rnn.batch_first)], 6)
            states = (first.contiguous(), cells.contiguous())
        y, (state, cell) = self.rnn(x, states)
        return y, state, cell


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": True},
        {"bias": False},
        {"batch_first": True, "bidirectional": True, "num_layers": 2},
    ],
    ids=["rows first", "no bias", "both ways"],
)
def test_outputs_and_states_are_eagers(
    options: dict[str, bool], opened: Open, *, stateful: bool
) -> None:
    torch.manual_seed(0)
    net = Projected(stateful=stateful, **options)
    eager, signature = opened(net, "x:float32[2,5,4]")
    with apply_rewrites(eager, ("plain-projections",)) as copied:
        kinds = [part for part in copied.module.modules() if isinstance(part, nn.LSTM)]
        assert kinds
        assert not any(part.proj_size for part in kinds)
        made = export(copied, signature)
    agree(made, eager, signature)


def test_it_suits_lstms_with_projections_that_were_refused(opened: Open) -> None:
    eager, _ = opened(Projected(), "x:float32[2,5,4]")
    assert ("plain-projections",) in suggest_rewrites(eager, REFUSED)
    assert ("plain-projections",) not in suggest_rewrites(eager, evidence_of(Symptom.DATA_BRANCH))
    other, _ = opened(nn.LSTM(4, 6), "input:float32[2,5,4]")
    assert ("plain-projections",) not in suggest_rewrites(other, REFUSED)
