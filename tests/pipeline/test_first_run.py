"""A runtime that keeps state of its first run: the smallest feed runs first, also with a sample."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn

from modelc.core.contract import Feed, Outputs, Runner, Target
from modelc.core.manifest import Manifest
from modelc.core.signature import Signature
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run

from ..conftest import saved
from .conftest import Fake, FakeRunner


class Scores(nn.Sequential):
    """A layer over (batch, seq, 6)."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 3))
        torch.manual_seed(0)
        nn.init.normal_(cast("nn.Linear", self[0]).weight)


@dataclass
class StatefulRuntime:
    """A runtime that is wrong at other lengths once its first feed had so many steps."""

    steps: int
    asked: list[tuple[int, ...]] = field(default_factory=list)

    def reply(self, feed: Feed) -> Outputs:
        x = feed["input"]
        self.asked.append(x.shape[:2])
        with torch.no_grad():
            found: np.ndarray = Scores().eval()(torch.tensor(x)).numpy()
        wrong = self.asked[0][1] == self.steps and x.shape[1] != self.steps
        return {"output": found + np.float32(wrong)}


@dataclass(frozen=True, kw_only=True)
class FunctionTarget(Fake):
    """A format whose runtime answers by a function."""

    reply: Callable[[Feed], Outputs]

    def open_runner(self, path: Path, device: str, signature: Signature) -> Runner:
        assert path.exists()
        assert device == "cpu"
        return FakeRunner(signature, self.reply)


def exported(runtime: StatefulRuntime, folder: Path, samples: Path | None) -> Manifest:
    sys.modules["first_run"] = sys.modules[__name__]
    source = Source(
        checkpoint=saved("scores", Scores(), folder),
        model="first_run:Scores",
        inputs=("input:float32[batch=1..3,seq=1..8,6]",),
        samples=samples,
    )
    order = Order(
        source=source, wanted=(Wanted.parse("fake"),), out=folder / "out", judging=Judging()
    )
    return run(order, targets=(cast("Target", FunctionTarget(reply=runtime.reply)),))


@pytest.mark.parametrize("sampled", [False, True])
def test_a_runtime_that_is_wrong_after_its_first_run_is_rejected(
    tmp_path: Path, *, sampled: bool
) -> None:
    sample = tmp_path / "sample.npz"
    np.savez(sample, input=np.ones((2, 5, 6), np.float32))
    runtime = StatefulRuntime(steps=1)
    manifest = exported(runtime, tmp_path, sample if sampled else None)
    assert runtime.asked[0] == (1, 1)
    (verdict,) = manifest.verdicts
    assert not verdict.passed


def test_outputs_belong_to_their_feeds(tmp_path: Path) -> None:
    sample = tmp_path / "sample.npz"
    np.savez(sample, input=np.ones((2, 5, 6), np.float32))
    runtime = StatefulRuntime(steps=99)  # never wrong
    manifest = exported(runtime, tmp_path, sample)
    assert manifest.passed
    assert len(set(runtime.asked)) > 3
