"""Odd values on which eager itself is noise say nothing of an artifact; all others count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.checkpoints.eager_model import Eager
from modelc.core.verdict import Verdict
from modelc.pipeline.reply_evidence import JudgedEvidence, redraw
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs

from ..open_models import evidence_of, open_module, reference_of, signature_of

if TYPE_CHECKING:
    from modelc.core.contract import Feed, Outputs

INPUT = "x:float32[2,1,32,32]"
SIGNATURE = signature_of(INPUT, outputs=["output"])
FEEDS = (("opt", "drawn"), ("seed-1", "seed"), ("zeros", "value"), ("negated", "value"))


class Normed(nn.Module):
    """Three convolutions with instance norms: of zeros each variance is 0."""

    def __init__(self, *, norm: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = zip((1, 8, 8), (8, 8, 8), strict=True)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in widths)
        self.norm = norm
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x)
            x = nn.functional.instance_norm(x) if self.norm else x
            x = nn.functional.leaky_relu(x, 0.01)
        y: Tensor = self.head(x)
        return y


def verdict_of(module: nn.Module, change: Callable[[str, np.ndarray], None]) -> Verdict:
    """The verdict on eager's own answers, changed."""
    eager, _ = open_module(module, INPUT)
    draw = np.random.default_rng(1)
    references, replies = [], []
    for name, kind in FEEDS:
        x = draw.standard_normal((2, 1, 32, 32)).astype(np.float32) * (name != "zeros")
        feed = NamedFeed(name=name, arrays={"x": x}, sizes={}, kind=kind)
        outputs = eager.run(feed.arrays)
        references.append(
            ReferenceOutputs(feed=feed, outputs=outputs, exact=eager.run_exact(feed.arrays))
        )
        found = outputs["output"].copy()
        change(name, found)
        replies.append(ArtifactOutputs(outputs={"output": found}))

    judged = JudgedEvidence.of(evidence_of(references, replies, SIGNATURE))
    example = references[0].feed.arrays
    return redraw(
        judged, reference_of(eager, references=references, example=example, feeds=None)
    ).verdict


def off_on(where: str) -> Callable[[str, np.ndarray], None]:
    def change(name: str, found: np.ndarray) -> None:
        if name == where:
            found[0, 1, 3] += 0.3

    return change


def test_a_feed_on_which_eager_is_unstable_is_omitted_with_a_note() -> None:
    verdict = verdict_of(Normed(), off_on("zeros"))
    assert verdict.passed, verdict.reason
    assert "zeros" not in verdict.feeds
    (note,) = verdict.notes
    assert "feed zeros" in note
    assert "2^-24" in note


class Silence(nn.Module):
    """Normalizes a logarithm with a floor: silence is one value, which noise does not move."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.abs().clamp(min=1e-10).log().flatten(2)[..., :21]
        y = (y - y.mean(-1, keepdim=True)) / (y.std(-1, keepdim=True) + 1e-5)
        return y[..., :1, None].expand(2, 2, 4, 32)


def test_a_feed_on_which_the_order_of_a_sum_decides_is_left_out() -> None:
    verdict = verdict_of(Silence(), off_on("zeros"))
    assert verdict.passed, verdict.reason
    assert len(verdict.notes) == 1
    assert not verdict_of(Silence(), off_on("opt")).passed


@pytest.mark.parametrize("where", ["opt", "seed-1", "negated"])
def test_feeds_of_usual_values_are_never_left_out(where: str) -> None:
    assert not verdict_of(Normed(), off_on(where)).passed


class Shortcut(nn.Module):
    """A branch for inputs that are all alike, which noise never takes."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.equal(x, x.flip(-1)):
            return torch.full((2, 2, 32, 32), 7.0)
        return torch.cat([x, x * 2], dim=1)


@pytest.mark.parametrize("module", [Normed(norm=False), Shortcut()])
def test_odd_values_count_where_eager_is_stable_or_takes_another_branch(module: nn.Module) -> None:
    verdict = verdict_of(module, off_on("zeros"))
    assert not verdict.passed
    assert "zeros" in {reason.feed for reason in verdict.reasons}


@pytest.mark.parametrize(("flipped", "left_out"), [(4, True), (2, False)])
def test_values_on_a_threshold_are_omitted_if_most_draws_flip_them(
    flipped: int, left_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draws_off(self: Eager, feed: Feed, share: float, *, pairs: int) -> Iterator[Outputs]:  # noqa: ARG001 - its
        outputs = self.run(feed)["output"]
        for number in range(2 * pairs):
            yield {"output": outputs + np.float32(number < flipped)}

    monkeypatch.setattr(Eager, "draw_perturbed", draws_off)
    verdict = verdict_of(Normed(norm=False), off_on("zeros"))
    note = any("feed zeros" in note for note in verdict.notes)
    assert (verdict.passed, note) == (left_out, left_out)
