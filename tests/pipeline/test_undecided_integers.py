"""Ties in a real model: eager itself answers otherwise when roundoff moves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from modelc.core.kinds import Precision
from modelc.pipeline.rounding_ties import drop_empty_marks, mark_undecided_replies
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs

from ..open_models import open_module, reference_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Picking(nn.Module):
    """The largest of five scores; the first two are twins."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.scores = nn.Linear(4, 5)
        with torch.no_grad():
            self.scores.weight[1] = self.scores.weight[0]
            self.scores.bias[1] = self.scores.bias[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        indices: torch.Tensor = self.scores(x).topk(2).indices
        return indices


X = np.random.default_rng(3).standard_normal((60, 4)).astype(np.float32)


def marked(
    module: nn.Module,
    x: NDArray[Any],
    answer: Callable[[NDArray[Any]], NDArray[Any]],
    precision: Precision = Precision.FP32,
) -> NDArray[Any] | None:
    """Which elements of an artifact's output are undecided: its answer follows from eager's."""
    eager, _ = open_module(module, f"x:float32{list(x.shape)}")
    feed = NamedFeed(name="opt", arrays={"x": x}, sizes={})
    ((name, output),) = eager.run(feed.arrays).items()
    (found,) = mark_undecided_replies(
        [ReferenceOutputs(feed=feed, outputs={name: output})],
        [ArtifactOutputs(outputs={name: answer(output)})],
        precision,
        reference_of(eager),
    )
    return found.undecided.get(name)


def marks(answer: NDArray[Any], precision: Precision) -> NDArray[Any]:
    module = Picking()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    marks = marked(module, X, lambda _: answer, precision)
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    return np.zeros((60, 2), bool) if marks is None else marks


def picked() -> NDArray[Any]:
    return np.asarray(Picking().eval()(torch.from_numpy(X)))


def test_twins_are_undecided_and_the_rest_is_not() -> None:
    answer = picked()
    found = marks(answer + 1, Precision.FP32)
    twins = np.isin(answer, (0, 1)).all(axis=1)
    assert twins.any()
    assert found[twins].all()
    assert not found[~np.isin(answer, (0, 1)).any(axis=1)].any()


def test_eight_bits_decide_less() -> None:
    wrong = picked() + 1
    assert marks(wrong, Precision.INT8).sum() > marks(wrong, Precision.FP32).sum()


def test_equal_integers_are_not_undecided() -> None:
    assert not marks(picked(), Precision.FP32).any()


class Strict(nn.Module):
    """As `Picking`, and refuses what is not just as it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Picking()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.equal(x, torch.from_numpy(X)):
            raise ValueError("out of range")
        return self.inner(x)  # type: ignore[no-any-return]  # torch's own


def test_integers_are_decided_if_eager_rejects_perturbed_inputs() -> None:
    found = marked(Strict(), X, lambda output: output + 1)
    assert found is not None
    assert not found.any()


class Passing(nn.Module):
    """The places of scores that reach a threshold which one just meets."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale >= 1).nonzero()


@pytest.mark.parametrize(
    ("answer", "undecided"), [([2, 4, 4], [True] * 3), ([77, 2, 4], [False, True, True])]
)
def test_where_roundoff_decides_the_number_only_values_of_eager_are_undecided(
    answer: list[int], undecided: list[bool]
) -> None:
    x = np.array([0, 1, 2, 0, 3, 0], np.float32)
    found = marked(Passing(), x, lambda _: np.array(answer).reshape(-1, 1))
    assert found is not None
    assert found.ravel().tolist() == undecided


@pytest.mark.parametrize(("differing", "kept"), [(2, True), (3, False), (5, False)])
def test_an_output_that_roundoff_decides_nearly_everywhere_is_compared(
    differing: int, kept: bool
) -> None:
    """With constant weights all scores tie, and any classes would pass."""
    eager, answer = np.zeros((5, 1), np.int64), np.zeros((5, 1), np.int64)
    answer[:differing] = 1
    feed = NamedFeed(name="opt", arrays={}, sizes={})
    reply = ArtifactOutputs(outputs={"y": answer}, undecided={"y": np.ones((5, 1), bool)})
    references = [ReferenceOutputs(feed=feed, outputs={"y": eager})]
    (found,) = drop_empty_marks(references, [reply])
    assert ("y" in found.undecided) == kept
