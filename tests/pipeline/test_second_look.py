"""The second look: a long sum that was made in order is no fault, and a wrong weight still is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from modelc.core.call import bind, parameters_of
from modelc.core.grammar import parse_input
from modelc.core.precision import Precision
from modelc.core.signature import resolve
from modelc.core.verdict import State, Verdict
from modelc.pipeline.beyond import Evidence, second_look
from modelc.sources.eager import Eager
from modelc.validators.evidence import Reference, Reply
from modelc.validators.feeds import NamedFeed
from modelc.validators.judge import judge
from modelc.validators.tolerance import TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelc.pipeline.subject import Subject

SIGNATURE = resolve([parse_input("x:float32[2,3,56,56]")], {}).with_outputs(["output"])


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


def looked(artifact: Pooled) -> Verdict:
    module = Pooled().eval()
    eager = Eager(module, ("x",), bind(("x",), parameters_of(module.forward)))
    generator = np.random.default_rng(1)
    arrays = {
        "constant": np.ones((2, 3, 56, 56), np.float32),
        **{f"seed-{n}": generator.random((2, 3, 56, 56)).astype(np.float32) for n in range(3)},
    }
    references, replies = [], []
    for name, x in arrays.items():
        feed = NamedFeed(name=name, arrays={"x": x}, sizes={})
        exact = eager.run_exact(feed.arrays)
        references.append(Reference(feed=feed, outputs=eager.run(feed.arrays), exact=exact))
        with torch.no_grad():
            given = pooling_in_order(artifact, torch.from_numpy(x)).numpy()
        replies.append(Reply(outputs={"output": given}))

    def judge_on(references: Sequence[Reference], replies: Sequence[Reply]) -> Verdict:
        return judge(
            artifact="model.bin",
            references=references,
            replies=replies,
            tolerance=TOLERANCES[Precision.FP32],
            device="cpu",
            artifact_inputs=["x"],
            signature=SIGNATURE,
        )

    evidence = Evidence(
        references=tuple(references),
        replies=tuple(replies),
        precision=Precision.FP32,
        judge_on=judge_on,
    )
    assert evidence.verdict().state is State.FAILED  # what torch's own sums would refuse
    _, verdict = second_look(evidence, cast("Subject", SimpleNamespace(eager=eager)))
    return verdict


def test_a_pool_that_sums_in_order_passes() -> None:
    verdict = looked(Pooled())
    assert verdict.passed, verdict.reason


def test_a_weight_that_is_off_by_a_thousandth_beside_such_a_pool_fails() -> None:
    wrong = Pooled()
    with torch.no_grad():
        wrong.head.weight[3, int(wrong.head.weight[3].abs().argmax())] *= 1.001
    verdict = looked(wrong)
    assert verdict.state is State.FAILED
    assert "times as far from float64" in verdict.reason
