"""Ties in a real model: eager itself answers otherwise when roundoff moves it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn

from modelc.checkpoints.eager_model import open_eager
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.core.call import parameters_of
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.signature import merge_inputs
from modelc.pipeline.rounding_ties import mark_undecided_replies
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from modelc.pipeline.eager_reference import EagerReference


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


def marks(answer: NDArray[Any], precision: Precision) -> NDArray[Any]:
    module = Picking().eval()
    loaded = LoadedModule(kind="state dict", module=module, takes=parameters_of(module))
    eager = open_eager(loaded, merge_inputs([parse_input("x:float32[60,4]")], {}))
    feed = NamedFeed(name="opt", arrays={"x": X}, sizes={})
    outputs = eager.run(feed.arrays)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    name = next(iter(outputs))
    told = mark_undecided_replies(
        [ReferenceOutputs(feed=feed, outputs=outputs)],
        [ArtifactOutputs(outputs={name: answer})],
        precision,
        cast("EagerReference", SimpleNamespace(model=eager)),
    )
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    return np.asarray(told[0].undecided.get(name, np.zeros((60, 2), bool)))


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


def test_nothing_is_asked_where_nothing_differs() -> None:
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


def test_where_eager_refuses_to_be_off_nothing_is_undecided() -> None:
    module = Strict().eval()
    loaded = LoadedModule(kind="state dict", module=module, takes=parameters_of(module))
    eager = open_eager(loaded, merge_inputs([parse_input("x:float32[60,4]")], {}))
    feed = NamedFeed(name="opt", arrays={"x": X}, sizes={})
    outputs = eager.run(feed.arrays)
    name = next(iter(outputs))
    told = mark_undecided_replies(
        [ReferenceOutputs(feed=feed, outputs=outputs)],
        [ArtifactOutputs(outputs={name: outputs[name] + 1})],
        Precision.FP32,
        cast("EagerReference", SimpleNamespace(model=eager)),
    )
    assert not told[0].undecided[name].any()


class Passing(nn.Module):
    """The places of scores that reach a threshold which one just meets."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale >= 1).nonzero()


def test_where_even_the_number_is_open_only_what_eager_gives_is_forgiven() -> None:
    module = Passing().eval()
    loaded = LoadedModule(kind="state dict", module=module, takes=parameters_of(module))
    eager = open_eager(loaded, merge_inputs([parse_input("x:float32[6]")], {}))
    x = np.array([0, 1, 2, 0, 3, 0], np.float32)
    feed = NamedFeed(name="opt", arrays={"x": x}, sizes={})
    outputs = eager.run(feed.arrays)
    (name,) = outputs
    assert outputs[name].ravel().tolist() == [1, 2, 4]
    for answer, forgiven in (([2, 4, 4], [True] * 3), ([77, 2, 4], [False, True, True])):
        (told,) = mark_undecided_replies(
            [ReferenceOutputs(feed=feed, outputs=outputs)],
            [ArtifactOutputs(outputs={name: np.array(answer).reshape(-1, 1)})],
            Precision.FP32,
            cast("EagerReference", SimpleNamespace(model=eager)),
        )
        assert told.undecided[name].ravel().tolist() == forgiven
