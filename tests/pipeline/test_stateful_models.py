"""A model whose outputs depend on what it ran before is refused; one that only notes is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modelc.core.errors import CheckpointError, ErrorCode
from modelc.core.signature import Signature
from modelc.pipeline.domain_search import choose_dims
from modelc.pipeline.run_reference import check_stateless
from modelc.pipeline.value_search import choose_values
from modelc.validators.feeds import draw_feeds
from modelc.validators.judge import ReferenceOutputs

from ..open_models import open_module, signature_of
from ..reasons import has_code

INPUT = "x:float32[n=1..4,3]"


class SetUp(nn.Module):
    """Sets itself up from its first input, as ActNorm does; in an attribute or in buffers."""

    kept: Tensor
    ready: Tensor

    def __init__(self, *, buffers: bool) -> None:
        super().__init__()
        self.buffers_too = buffers
        self.scale: Any = None
        self.register_buffer("kept", torch.ones(3))
        self.register_buffer("ready", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.buffers_too and not self.ready:
            self.kept.copy_(x.abs().mean(0) + 0.1)
            self.ready.fill_(1)
        elif not self.buffers_too and self.scale is None:
            self.scale = x.abs().mean(0) + 0.1
        return x / (self.kept if self.buffers_too else self.scale)


class Peak(nn.Module):
    """Divides by the largest value so far: the same feed twice gives the same."""

    peak: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("peak", torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        self.peak.copy_(torch.maximum(self.peak, x.abs().max()))
        return x / self.peak


class Noting(nn.Module):
    """Counts, keeps its last input, and grows a table by size: no output depends on any."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))
        self.tables: dict[int, Tensor] = {}
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.last = x
        if len(x) not in self.tables:
            self.tables[len(x)] = torch.arange(len(x))[:, None].float()
        return x + self.tables[len(x)]


def remembered(module: nn.Module) -> None:
    eager, signature = open_module(module, INPUT)
    before = eager.before()
    feeds = draw_feeds(signature)
    references = [ReferenceOutputs(feed=feed, outputs=eager.run(feed.arrays)) for feed in feeds]
    check_stateless(eager, before, references)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (SetUp(buffers=False), "scale"),
        (SetUp(buffers=True), "kept, ready"),
        (Peak(), "peak"),
    ],
)
def test_a_model_whose_outputs_depend_on_earlier_runs_is_rejected(
    module: nn.Module, names: str
) -> None:
    with pytest.raises(CheckpointError, match=f"forward changes {names}$"):
        remembered(module)


def test_the_state_is_as_the_runs_left_it() -> None:
    module = Noting()
    remembered(module)
    assert sorted(module.tables) == [1, 2, 4]
    assert int(module.count) == len(draw_feeds(signature_of(INPUT)))
    assert module.last is not None


class Watching(nn.Module):
    """Puts a hook in place in its first run, as transformers does to collect hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.watched = False
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if not self.watched:
            self.inner.register_forward_hook(lambda _, __, out: self.seen.append(out))
            self.watched = True
        self.seen = []
        self.inner(x)
        return torch.stack(self.seen).sum(0)


def test_hooks_of_a_first_run_go_with_the_note_that_they_are_there() -> None:
    remembered(Watching())


class Stamped:
    """A setting of a model that says its own version, as the configs of transformers may."""

    _version = "0.0.5"


def test_an_object_with_a_version_attribute_is_not_a_tensor() -> None:
    module = Noting()
    module.settings = {"config": Stamped()}  # type: ignore[assignment]  # any attribute
    remembered(module)


class TiedTable(nn.Module):
    """Rows are made shorter in the table itself, which is the head's weight too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8, max_norm=0.5)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.table(ids)
        return found @ self.table.weight.t()


class ShortRows(nn.Module):
    """The same table, read by its rows alone: no output depends on what was read before."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8, max_norm=0.5)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.table(ids)
        return found


class Largest(nn.Module):
    """Divides by the most ids so far, in an object that torch does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = SimpleNamespace(most=1)

    def forward(self, ids: Tensor) -> Tensor:
        self.kept.most = max(self.kept.most, ids.numel())
        most: int = self.kept.most
        return ids / most


def chosen_for(module: nn.Module, text: str) -> Signature:
    """The dims and values that are chosen for one input of integers."""
    eager, signature = open_module(module, text)
    return choose_values(eager, choose_dims(eager, signature))


@pytest.mark.parametrize("text", ["ids:int64[batch,seq]{0..19}", "ids:int64[2,5]"])
def test_weights_that_a_search_changes_are_put_back(text: str) -> None:
    module = TiedTable()
    weight = module.table.weight.detach().clone()
    chosen_for(module, text)
    assert torch.equal(module.table.weight, weight)


def test_a_search_notices_changes_of_state_outside_modules() -> None:
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.UNSTABLE_OUTPUTS)):
        chosen_for(Largest(), "ids:int64[batch]{0..9}")


def test_weights_that_change_no_output_are_fine() -> None:
    (spec,) = chosen_for(ShortRows(), "ids:int64[batch,seq]").inputs
    assert spec.values is not None
    assert (spec.values.low, spec.values.high) == (0, 19)
