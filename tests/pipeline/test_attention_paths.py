"""Eager's fast paths of attention: what they fill in excuses nothing, and padding is no fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from modelc.checkpoints.eager_model import Eager
from modelc.core.call import bind_inputs, parameters_of
from modelc.core.verdict import State, Verdict
from modelc.pipeline.api import export
from modelc.pipeline.float64_reference import add_exact
from modelc.pipeline.rounding_ties import apply_second_looks
from modelc.validators.feeds import NamedFeed
from modelc.validators.masked_rows import count_padded_positions
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs

from ..open_models import evidence_of, reference_of, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from modelc.core.contract import Feed, Outputs

# torch's own word on the layout of nested tensors, which the encoder chooses
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

INPUTS = ("x:float32[3,7,8]", "lengths:int64[3]")
SIGNATURE = signature_of(*INPUTS, outputs=["output"])
# Of most feeds no row is padded: there float32 and float64 agree.
LENGTHS = {"full": (7, 7, 7), "one": (7, 7, 4), "two": (7, 5, 2), "also-full": (7, 7, 7)}
LENGTHS |= {f"full-{number}": (7, 7, 7) for number in range(3)}


class Encoder(nn.Module):
    """torch's own encoder with lengths; `pooled` averages over padding too."""

    def __init__(self, *, pooled: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.pooled = pooled

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        padded = torch.arange(x.shape[1])[None] >= lengths[:, None]
        found: torch.Tensor = self.layers(x, src_key_padding_mask=padded)
        return found.mean(1) if self.pooled else found


def eager_of(module: nn.Module) -> Eager:
    names = ("x", "lengths")
    return Eager(module, names, bind_inputs(names, parameters_of(module.forward)))


def looked(
    change: Callable[[Feed, Outputs], Outputs] | None = None, *, pooled: bool = False
) -> Verdict:
    """The verdict on what the plain path gives, changed."""
    eager = eager_of(Encoder(pooled=pooled).eval())
    subject = reference_of(eager, exact={})
    references, replies = [], []
    generator = np.random.default_rng(0)
    for name, lengths in LENGTHS.items():
        x = generator.standard_normal((3, 7, 8)).astype(np.float32)
        arrays = {"x": x, "lengths": np.array(lengths)}
        feed = NamedFeed(name=name, arrays=arrays, sizes={})
        references.append(ReferenceOutputs(feed=feed, outputs=eager.run(arrays)))
        found = {"output": eager.run_plain_attention(arrays)["output"] * np.float32(1 + 1e-7)}
        replies.append(ArtifactOutputs(outputs=found if change is None else change(arrays, found)))

    exact = add_exact(references, LENGTHS, subject)
    return apply_second_looks(evidence_of(exact, replies, SIGNATURE), subject).verdict


def altered(feed: Feed, found: Outputs, *, padded: bool, times: float) -> Outputs:
    """The outputs with the padded positions, or the others, off."""
    output = found["output"].copy()
    behind = np.arange(7)[None] >= feed["lengths"][:, None]
    output[behind if padded else ~behind] *= np.float32(times)
    return {"output": output}


def test_the_plain_path_passes_with_a_note_on_padding() -> None:
    verdict = looked()
    assert verdict.passed, verdict.reason
    assert len(verdict.notes) == 1
    assert not any(output.excuse for output in verdict.outputs)
    assert min(o.sqnr or 200.0 for o in verdict.outputs) > 100


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("times", [1.05, 1.001, 0.0])
def test_any_other_value_is_wrong_at_padding_and_elsewhere(padded: bool, times: float) -> None:
    verdict = looked(lambda feed, found: altered(feed, found, padded=padded, times=times))
    if padded and times == 0:
        assert verdict.passed  # that is what the fast path gives
        assert not verdict.notes
    else:
        assert verdict.state is State.FAILED
        wrong = {output.feed for output in verdict.outputs if not output.passed}
        assert {"one", "two"} <= wrong


def test_padding_that_leaks_into_a_mean_is_wrong() -> None:
    verdict = looked(pooled=True)
    assert verdict.state is State.FAILED
    assert {o.feed for o in verdict.outputs if not o.passed} == {"one", "two"}


def rows(*values: Sequence[float]) -> Outputs:
    return {"output": np.array(values, np.float32)}


def test_positions_are_padding_only_where_they_hold_one_fill() -> None:
    one, other = rows([1, 2], [5, 6], [5, 6]), rows([1, 2], [3, 4], [7, 8])
    assert count_padded_positions([(one, one)]) == 0
    assert count_padded_positions([(one, other)]) == 2
    assert count_padded_positions([(other, one)]) is None
    single = rows([1, 2], [3, 4], [5, 6]), rows([1, 2], [3, 4], [7, 8])
    assert count_padded_positions([single]) is None
    assert count_padded_positions([(rows([1, 2], [0, 0]), rows([1, 2], [3, 4]))]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("pooled", "code"), [(False, 0), (True, 1)])
@pytest.mark.parametrize("lengths", ["1..12", "2..40"])  # most feeds have padding, or few
def test_torchs_own_encoder_to_onnx(pooled: bool, code: int, lengths: str, tmp_path: Path) -> None:
    torch.save(Encoder(pooled=pooled).state_dict(), tmp_path / "encoder.pt")
    manifest = export(
        tmp_path / "encoder.pt",
        to=["onnx"],
        out=tmp_path / "out",
        model=f"{__name__}:Encoder",
        model_args={"pooled": str(pooled)},
        inputs=["x:float32[batch=1..4,seq=4..12,8]", f"lengths:int64[batch]{{{lengths}}}"],
    ).manifest
    assert manifest.exit_code == code
    verdict = manifest.verdicts[-1]
    for output in verdict.outputs:
        if output.passed and not output.loose and output.sqnr is not None:
            assert output.sqnr > 90
