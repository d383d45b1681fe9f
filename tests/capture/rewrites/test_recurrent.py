"""LSTM and GRU are exported for every length, as the operators that they are."""

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
REFUSED = evidence_of(Symptom.FIXED_SIZE)


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

    assert suggest_rewrites(eager, REFUSED)[0] == ("any-length-rnn",)
    with apply_rewrites(eager, ("any-length-rnn",)) as copied:
        made = export(copied, signature)

    agree(made, eager, signature)
    with pytest.raises(Exception, match="specialized"):
        export(eager, signature)  # torch is as it was


def test_it_suits_no_other_refusal_and_no_other_model(opened: Open) -> None:
    eager, _ = opened(Recurrent(nn.GRU), "x:float32[batch=2..4,seq=2..9,4]")
    assert ("any-length-rnn",) not in suggest_rewrites(eager, evidence_of(Symptom.DATA_BRANCH))
    plain, _ = opened(nn.Linear(4, 4), "input:float32[batch=2..4,4]")
    assert suggest_rewrites(plain, REFUSED) == ()
