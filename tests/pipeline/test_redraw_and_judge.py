"""The second look: sums that were made in order are no fault, and wrong weights still are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from modelc.core.kinds import Precision
from modelc.core.verdict import State, Verdict
from modelc.pipeline import reply_evidence
from modelc.pipeline.reply_evidence import Evidence, JudgedEvidence, redraw
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs
from modelc.validators.tolerance import TOLERANCES

from ..open_models import evidence_of, open_module, reference_of, signature_of
from ..reasons import because

if TYPE_CHECKING:
    from collections.abc import Callable

INPUT = "x:float32[2,3,56,56]"
SIGNATURE = signature_of(INPUT, outputs=["output"])


class Pooled(torch.nn.Module):
    """A convolution, a pool over all of the image, a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = self.head(torch.relu(self.conv(x)).mean((2, 3)))
        return pooled


def pooling_in_order(module: Pooled, x: torch.Tensor) -> torch.Tensor:
    """As a runtime does that walks over the image once, with one float32 sum per channel."""
    rows = torch.relu(module.conv(x)).flatten(2)
    total = torch.zeros(rows.shape[:2])
    for index in range(rows.shape[2]):
        total = total + rows[..., index]
    pooled: torch.Tensor = module.head(total / rows.shape[2])
    return pooled


class Normed(torch.nn.Module):
    """Two convolutions, each with a group norm: where an image is constant, so are the groups."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = torch.nn.Conv2d(3, 8, 1), torch.nn.GroupNorm(8, 8)
        self.second, self.last = torch.nn.Conv2d(8, 8, 1), torch.nn.GroupNorm(4, 8)
        self.head = torch.nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.silu(self.norm(self.first(x)))
        y: torch.Tensor = self.head(torch.relu(self.last(self.second(hidden))))
        return y


def norming_in_order(module: Normed, x: torch.Tensor) -> torch.Tensor:
    """As a runtime does that sums a group in eight parts of an image, one element after another."""

    def mean_of(rows: torch.Tensor) -> torch.Tensor:
        parts = rows.reshape(*rows.shape[:-1], -1, 8).numpy()
        total = np.add.accumulate(parts, axis=-2, dtype=np.float32)[..., -1, :].sum(-1)
        return torch.from_numpy(total)[..., None] / rows.shape[-1]

    def norm(one: torch.nn.GroupNorm, y: torch.Tensor) -> torch.Tensor:
        rows = y.reshape(len(y), one.num_groups, -1)
        off = rows - mean_of(rows)
        scaled = (off / torch.sqrt(mean_of(off * off) + one.eps)).reshape(y.shape)
        return scaled * one.weight[:, None, None] + one.bias[:, None, None]

    hidden = torch.nn.functional.silu(norm(module.norm, module.first(x)))
    y: torch.Tensor = module.head(torch.relu(norm(module.last, module.second(hidden))))
    return y


def looked(
    artifact: torch.nn.Module,
    module: torch.nn.Module,
    converted: Callable[[Any, torch.Tensor], torch.Tensor],
) -> Verdict:
    eager, _ = open_module(module, INPUT)
    generator = np.random.default_rng(1)
    arrays = {
        "constant": np.ones((2, 3, 56, 56), np.float32),
        **{f"seed-{n}": generator.random((2, 3, 56, 56)).astype(np.float32) for n in range(3)},
    }
    references, replies = [], []
    for name, x in arrays.items():
        feed = NamedFeed(name=name, arrays={"x": x}, sizes={})
        exact = eager.run_exact(feed.arrays)
        references.append(ReferenceOutputs(feed=feed, outputs=eager.run(feed.arrays), exact=exact))
        with torch.no_grad():
            given = converted(artifact, torch.from_numpy(x)).numpy()
        replies.append(ArtifactOutputs(outputs={"output": given}))

    evidence = evidence_of(references, replies, SIGNATURE)
    assert evidence.verdict.state is State.FAILED  # by torch's own sums
    return redraw(JudgedEvidence.of(evidence), reference_of(eager)).verdict


def test_a_pool_that_sums_in_order_passes() -> None:
    verdict = looked(Pooled(), Pooled(), pooling_in_order)
    assert verdict.passed, verdict.reason


def test_a_weight_that_is_off_by_a_thousandth_beside_such_a_pool_fails() -> None:
    wrong = Pooled()
    with torch.no_grad():
        wrong.head.weight[3, int(wrong.head.weight[3].abs().argmax())] *= 1.001
    verdict = looked(wrong, Pooled(), pooling_in_order)
    assert verdict.state is State.FAILED
    assert "float64" in verdict.reason


def test_norms_that_sum_in_order_pass_on_constant_images() -> None:
    verdict = looked(Normed(), Normed(), norming_in_order)
    assert verdict.passed, verdict.reason
    worst = min(output.sqnr or 0.0 for output in verdict.outputs)
    assert worst < 100, "eager was to be exact by chance on the constant image"


def weight_off(wrong: Normed) -> None:
    wrong.second.weight[3, 2] *= 1.0003


def bias_dropped(wrong: Normed) -> None:
    wrong.last.bias.zero_()


def epsilon_off(wrong: Normed) -> None:
    wrong.last.eps = 1.2e-5


@pytest.mark.parametrize("plant", [weight_off, bias_dropped, epsilon_off])
def test_a_fault_beside_such_norms_fails(plant: Callable[[Normed], None]) -> None:
    module, wrong = Normed(), Normed()
    with torch.no_grad():
        for one in (module, wrong):
            one.last.bias.copy_(torch.linspace(0.1, 0.4, 8))
        plant(wrong)
    assert looked(wrong, module, norming_in_order).state is State.FAILED


def test_feeds_of_channels_are_looked_at_after_the_feeds_that_were_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eager, _ = open_module(torch.nn.Linear(4, 4), "input:float32[2,4]")
    references = []
    for number in range(3):
        x = np.full((2, 4), number, np.float32)
        feed = NamedFeed(name=f"feed-{number}", arrays={"input": x}, sizes={})
        references.append(ReferenceOutputs(feed=feed, outputs=eager.run(feed.arrays)))
    rounds = iter([{"feed-1"}, {"feed-0", "feed-1", "feed-2"}, set[str]()])
    monkeypatch.setattr(reply_evidence, "find_doubtful_feeds", lambda _: next(rounds))
    evidence = Evidence(
        references=tuple(references),
        replies=tuple(ArtifactOutputs(outputs=one.outputs) for one in references),
        precision=Precision.FP32,
        compare=lambda **_: Verdict(
            artifact="model.bin",
            state=State.FAILED,
            reasons=because("off"),
            device="cpu",
            feeds=(),
            outputs=(),
            tolerance=TOLERANCES[Precision.FP32],
        ),
    )
    found = redraw(JudgedEvidence.of(evidence), reference_of(eager))
    assert all(one.again for one in found.evidence.references)
