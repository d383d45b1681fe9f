"""A choice among equal scores is nobody's fault; any other difference there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from modelc.core.verdict import Verdict
from modelc.pipeline.reply_evidence import JudgedEvidence, redraw
from modelc.pipeline.rounding_ties import settle_ties
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs

from ..open_models import evidence_of, open_module, reference_of, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Choose = Callable[[torch.Tensor], torch.Tensor]

INPUT = "x:float32[6,8]"
SIGNATURE = signature_of(INPUT, outputs=("output",))


def by_torch(scores: torch.Tensor) -> torch.Tensor:
    return scores.topk(2, dim=-1).indices


def the_first(scores: torch.Tensor) -> torch.Tensor:
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :2]


def the_last(scores: torch.Tensor) -> torch.Tensor:
    return scores.shape[1] - 1 - the_first(scores.flip(1))


class Mixture(nn.Module):
    """The two best of four experts, by their scores; zeros tie them all."""

    def __init__(self, choose: Choose = by_torch) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.choose = nn.Linear(8, 4, bias=False), choose
        self.experts = nn.ModuleList(nn.Linear(8, 5) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(self.gate(x), dim=-1)
        places = self.choose(scores)
        every = torch.stack([expert(x) for expert in self.experts], dim=1)
        weights = scores.gather(1, places)
        taken = every.gather(1, places[..., None].expand(-1, -1, 5))
        out: torch.Tensor = (taken * weights[..., None]).sum(1)
        return out


class Stepping(nn.Module):
    """A mixture beside a threshold that zeros just meet, or just miss."""

    def __init__(self, choose: Choose = by_torch, *, meets: bool = False) -> None:
        super().__init__()
        self.inner, self.meets = Mixture(choose), meets

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        passed = (x >= 0 if self.meets else x > 0).to(x.dtype).mean(dim=1, keepdim=True)
        out: torch.Tensor = self.inner(x) + passed
        return out


def feeds(*, drawn: bool = True) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(2)
    found = {"zeros": np.zeros((6, 8), np.float32)}
    if drawn:
        for number in range(3):
            found[f"seed-{number}"] = generator.standard_normal((6, 8)).astype(np.float32)
    return found


def judged(
    module: nn.Module, artifact: Callable[[torch.Tensor], torch.Tensor], *, drawn: bool = True
) -> Verdict:
    eager, _ = open_module(module, INPUT)
    references, replies = [], []
    for name, x in feeds(drawn=drawn).items():
        feed = NamedFeed(name=name, arrays={"x": x}, sizes={})
        exact = eager.run_exact(feed.arrays)
        assert exact is not None
        references.append(ReferenceOutputs(feed=feed, outputs=eager.run(feed.arrays), exact=exact))
        with torch.no_grad():
            replies.append(
                ArtifactOutputs(outputs={"output": artifact(torch.from_numpy(x)).numpy()})
            )

    reference = reference_of(eager)
    found = redraw(JudgedEvidence.of(evidence_of(references, replies, SIGNATURE)), reference)
    assert not found.passed  # rejected without a look at the ties
    return settle_ties(found, reference).verdict


def other_choice() -> Choose:
    """The first or the last of equals, whichever torch does not take itself."""
    zeros = torch.zeros(6, 4)
    return the_last if torch.equal(by_torch(zeros).sort()[0], the_first(zeros)) else the_first


def test_another_choice_among_equals_passes_with_a_note() -> None:
    verdict = judged(Mixture(), Mixture(other_choice()).eval())
    assert verdict.passed, verdict.reason
    assert any("topk" in note and "on zeros:" in note for note in verdict.notes)


def worst_two(scores: torch.Tensor) -> torch.Tensor:
    return scores.topk(2, dim=-1, largest=False).indices


def the_best_twice(scores: torch.Tensor) -> torch.Tensor:
    return the_first(scores)[:, :1].expand(-1, 2)


@pytest.mark.parametrize("choose", [worst_two, the_best_twice])
def test_a_wrong_choice_fails(choose: Choose) -> None:
    assert not judged(Mixture(), Mixture(choose).eval()).passed


def test_no_choice_that_could_be_made_among_equals_fails() -> None:
    def one_twice(scores: torch.Tensor) -> torch.Tensor:
        tied = (scores == scores[:, :1]).all(dim=1, keepdim=True)
        return torch.where(tied, the_best_twice(scores), the_first(scores))

    assert not judged(Mixture(), Mixture(one_twice).eval()).passed


def test_a_weight_that_is_off_behind_another_choice_fails() -> None:
    wrong = Mixture(other_choice()).eval()
    with torch.no_grad():
        for expert in wrong.experts:
            assert isinstance(expert, nn.Linear)
            expert.bias.mul_(1.0001)
    assert not judged(Mixture(), wrong).passed


def test_a_threshold_that_is_just_met_is_not_a_tie() -> None:
    right = judged(Stepping(), Stepping(other_choice()).eval())
    assert right.passed, right.reason
    assert not judged(Stepping(), Stepping(other_choice(), meets=True).eval()).passed


def test_without_a_feed_that_shows_the_choice_a_tie_rejects() -> None:
    assert not judged(Mixture(), Mixture(other_choice()).eval(), drawn=False).passed
