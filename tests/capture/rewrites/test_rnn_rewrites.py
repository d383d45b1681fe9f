"""Recurrent layers: any length, and projections as plain LSTMs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from modelc.capture.evidence import Symptom, evidence_of
from modelc.capture.rewrite_table import apply_rewrites, suggest_rewrites

from .conftest import Opened
from .test_rewrites import agree, export

Open = Callable[..., Opened]
FIXED_SIZE = evidence_of(Symptom.FIXED_SIZE)


class Recurrent(nn.Module):
    """Outputs and last states."""

    def __init__(self, kind: Callable[..., nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.rnn = kind(4, 3, batch_first=True, **options)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out, state = self.rnn(x)
        return out, state[-1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported:UserWarning")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {"bidirectional": True, "num_layers": 2}),
        (nn.LSTM, {"proj_size": 2, "bias": False}),
        (nn.GRU, {"bidirectional": True}),
    ],
)
def test_every_length_is_exported(
    kind: Callable[..., nn.RNNBase], options: dict[str, object], opened: Open
) -> None:
    torch.manual_seed(0)
    eager, signature = opened(Recurrent(kind, **options), "x:float32[batch=2..4,seq=2..9,4]")
    with pytest.raises(Exception, match="specialized"):
        export(eager, signature)

    assert suggest_rewrites(eager, FIXED_SIZE)[0] == ("any-length-rnn",)
    with apply_rewrites(eager, ("any-length-rnn",)) as copied:
        made = export(copied, signature)

    agree(made, eager, signature)
    with pytest.raises(Exception, match="specialized"):
        export(eager, signature)  # torch is as it was


def test_it_suits_no_other_refusal_and_no_other_model(opened: Open) -> None:
    eager, _ = opened(Recurrent(nn.GRU), "x:float32[batch=2..4,seq=2..9,4]")
    assert ("any-length-rnn",) not in suggest_rewrites(eager, evidence_of(Symptom.DATA_BRANCH))
    plain, _ = opened(nn.Linear(4, 4), "input:float32[batch=2..4,4]")
    assert suggest_rewrites(plain, FIXED_SIZE) == ()


PROJECTED = evidence_of(Symptom.PROJECTED_LSTM)
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
    assert ("plain-projections",) in suggest_rewrites(eager, PROJECTED)
    assert ("plain-projections",) not in suggest_rewrites(eager, evidence_of(Symptom.DATA_BRANCH))
    other, _ = opened(nn.LSTM(4, 6), "input:float32[2,5,4]")
    assert ("plain-projections",) not in suggest_rewrites(other, PROJECTED)
