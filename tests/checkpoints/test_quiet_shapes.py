"""Runs that answer are watched too, where that changes nothing: no branch is lost for it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.checkpoints.data_branches import is_watchable
from modelc.checkpoints.eager_model import Eager
from modelc.core.call import bind_inputs, parameters_of

if TYPE_CHECKING:
    from modelc.core.contract import Feed


class Counted(nn.Module):
    """Counts its runs by the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: Counter[int] = Counter()

    def forward(self, x: Tensor) -> Tensor:
        self.runs[len(x)] += 1
        return self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        return x * 2


class BranchAtFive(Counted):
    """Decides by data at five rows alone."""

    def compute(self, x: Tensor) -> Tensor:
        if x.shape[0] == 5 and bool(x.sum() > 0):
            return x * 3
        return x * 2


class OtherWhereWatched(Counted):
    """As fast paths of torch do: computes otherwise where a mode sees its calls."""

    def compute(self, x: Tensor) -> Tensor:
        seen = torch.overrides.has_torch_function((x,))
        return x * (3 if seen else 2)


def rows(count: int) -> Feed:
    return {"x": np.arange(1.0, 1 + 2 * count, dtype=np.float32).reshape(count, 2)}


def opened(module: nn.Module) -> Eager:
    return Eager(module.eval(), ("x",), bind_inputs(("x",), parameters_of(Counted().forward)))


def answered(module: nn.Module) -> tuple[Eager, list[tuple[str, Feed]]]:
    """Eager that was stable, and has answered feeds of several sizes."""
    eager = opened(module)
    eager.check_stable(rows(1))
    feeds = [(str(count), rows(count)) for count in (1, 2, 5, 2)]
    for name, feed in feeds:
        outputs = eager.run_reference(feed, extreme=name == "5")
        factor = 3 if isinstance(module, BranchAtFive) and name == "5" else 2
        assert np.array_equal(outputs["output"], feed["x"] * factor)
    return eager, feeds


def test_a_model_without_branches_runs_no_feed_again_to_be_watched() -> None:
    module = Counted()
    eager, feeds = answered(module)
    before = module.runs.copy()
    assert eager.branches(feeds, rows(2)).found == ()
    assert module.runs == before == Counter({1: 4, 2: 2, 5: 1})


def test_a_branch_at_one_size_is_found_and_then_all_feeds_are_watched() -> None:
    eager, feeds = answered(BranchAtFive())
    (found,) = eager.branches(feeds, rows(2)).found
    assert found.record.condition == "x.shape[0] == 5 and bool(x.sum() > 0)"
    assert found.others == ("5",)


def test_what_computes_otherwise_where_it_is_watched_answers_unwatched() -> None:
    module = OtherWhereWatched()
    eager, feeds = answered(module)  # which asserts the values
    before = module.runs[5]
    assert eager.branches(feeds, rows(2)).found == ()
    assert module.runs[5] == before + 1


@pytest.mark.parametrize(
    ("module", "may"),
    [
        (nn.Linear(2, 2), True),
        (nn.Sequential(nn.TransformerEncoderLayer(4, 2)), False),
        (nn.MultiheadAttention(4, 2), False),
        (torch.jit.script(nn.Linear(2, 2)), False),
    ],
    ids=["linear", "encoder", "attention", "script"],
)
def test_fast_paths_and_scripts_are_not_watched_while_they_answer(
    module: nn.Module, may: bool
) -> None:
    assert is_watchable(module) is may
