"""Sizes that eager rejects: which relation of the dims mends it is found by trying."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.core.events import Event, Noted
from modelc.pipeline.dim_constraints import EagerTrials, RejectedSizesError, explain_rejection
from modelc.pipeline.order import Source

from ..open_models import open_module, open_source
from ..reasons import has_code


class Added(nn.Module):
    """Takes two of one length."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class Doubled(nn.Module):
    """The second is twice as long, the third one longer."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, a], 1) * b


class Halved(nn.Module):
    """Sides of an image are multiples of 8."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pixel_unshuffle(x, 8)


class Three(nn.Module):
    """Lengths are multiples of 3."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, 3) if x.shape[1] % 3 == 0 else x.view(0)


class Long(nn.Module):
    """At least 7, at most 21."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 21:
            raise ValueError("too long")
        return x.unfold(1, 7, 1)


class NotThree(nn.Module):
    """Any length but 3."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 3:
            raise ValueError("no three")
        return x


class Never(nn.Module):
    """Runs at no size."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(f"not today, {x.shape}")


def rejected(
    module: nn.Module, *inputs: str, filled: dict[str, int | list[int]] | None = None, **sizes: int
) -> CheckpointError:
    """The error of eager on a feed of these sizes, explained."""
    eager, signature = open_module(module, *inputs)
    trials = EagerTrials(eager, signature, 0, None)
    feed = {
        spec.name: np.full(
            [dim.size(sizes) for dim in spec.dims], (filled or {}).get(spec.name, 1), spec.dtype
        )
        for spec in signature.inputs
    }
    with (
        pytest.raises(CheckpointError, check=has_code(ErrorCode.FEED_REJECTED)) as caught,
        explain_rejection(trials, sizes),
    ):
        eager.run(feed)
    return caught.value


def test_two_dims_that_must_be_equal() -> None:
    inputs = "a:float32[b=1..4,s=2..9]", "b:float32[b,s2=3..9]"
    error = rejected(Added(), *inputs, b=1, s=2, s2=3)
    assert "s2=s" in error.hint
    assert "'s2'" in error.message


class Table(nn.Module):
    """Takes one length alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.ones(1, 12)


class Bounded(nn.Module):
    """Lengths are no larger than the axis."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        if int(n.max()) > x.shape[1]:
            raise ValueError("too far")
        return x.sum() + n


class Wider(nn.Module):
    """Takes images that are wider than high: no relation says it."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] < x.shape[1]:
            raise ValueError("not wide")
        return x


LINES = "a:float32[b=1..4,s=2..9]", "b:float32[b,t=2..18]"


@pytest.mark.parametrize(
    ("module", "inputs", "sizes", "write"),
    [
        (Added(), ("a:float32[b=2..4,5]", "b:float32[rows=2..4,5]"), {"b": 2, "rows": 4}, "rows=b"),
        (Doubled(), LINES, {"b": 1, "s": 2, "t": 3}, "t=2*s"),
        (
            Halved(),
            ("x:float32[b=1..4,3,h=20..100,w=30..70]",),
            {"b": 1, "h": 20, "w": 30},
            "h=8*(k=3..12) and w=8*(k2=4..8)",
        ),
        (Three(), ("x:float32[b=1..4,t=1..32]",), {"b": 1, "t": 1}, "t=3*(k=1..10)"),  # not 6
        (Long(), ("x:float32[b=1..4,t=1..30]",), {"b": 2, "t": 1}, "t=7..21"),
        (Long(), ("x:float32[b=1..4,t=1..30]",), {"b": 2, "t": 30}, "t=7..21"),
        (Long(), ("x:float32[b=1..2,n=2..60]",), {"b": 1, "n": 31}, "n=7..21"),
        (Long(), ("x:float32[b=1..2,n=2..9..60]",), {"b": 1, "n": 31}, "n=7..21"),
        (Table(), ("x:float32[b=1..4,t=2..12..40]",), {"b": 1, "t": 2}, "--static t"),
        (Table(), ("x:float32[b=1..4,t=2..12..400]",), {"b": 1, "t": 2}, "--static t"),
        (Table(), ("x:float32[b=1..4,t=1..20]",), {"b": 2, "t": 10}, "12 for t"),  # not the opt
    ],
)
def test_the_hint_states_the_sizes_that_eager_accepts(
    module: nn.Module, inputs: tuple[str, ...], sizes: dict[str, int], write: str
) -> None:
    hint = rejected(module, *inputs, filled=None, **sizes).hint
    assert hint.removeprefix("write ").startswith(write)


def test_values_are_distinguished_from_sizes_as_the_cause() -> None:
    inputs = "x:float32[b=1..4,s=1..9]", "n:int64[b]{1..9}"
    error = rejected(Bounded(), *inputs, filled={"n": 9}, b=1, s=1)
    assert not isinstance(error, RejectedSizesError)
    assert "n{1.." in error.hint


class Shops(nn.Module):
    """Looks up a category, beside integers of any value."""

    def __init__(self) -> None:
        super().__init__()
        self.shop = nn.Embedding(40, 3)

    def forward(self, shop: Tensor, seconds: Tensor) -> Tensor:
        found: Tensor = self.shop(shop)
        return found + seconds[:, None]


def test_a_stated_range_beyond_a_table_is_named_with_its_end() -> None:
    inputs = "shop:int64[b=1..4]{0..40}", "seconds:int64[b]{0..2000000000}"
    hint = rejected(Shops(), *inputs, filled={"shop": 40}, b=4).hint
    assert hint.endswith("--input 'shop:int64[b=1..4]{0..39}'")


class Boxes(nn.Module):
    """Looks widths and heights up, which are not negative."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = nn.Embedding(100, 3)

    def forward(self, box: Tensor) -> Tensor:
        found: Tensor = self.sides(box[..., 2:] - box[..., :2])
        return found


def test_values_that_must_ascend_are_found_and_written() -> None:
    box = "box:int64[b=1..4,n=2..9,4]{0..99}"
    hint = rejected(Boxes(), box, filled={"box": [5, 5, 1, 1]}, b=2, n=9).hint
    assert hint.endswith(" --input 'box:int64[b=1..4,n=2..9,4]{0..99 ascending}'")


def test_sizes_without_a_relation_are_an_error_that_names_the_dims() -> None:
    error = rejected(Wider(), "x:float32[b=1..4,h=2..30,w=2..30]", b=1, h=30, w=2)
    assert isinstance(error, RejectedSizesError)


def test_a_rejected_size_between_sizes_that_run_is_no_range() -> None:
    error = rejected(NotThree(), "x:float32[n=1..8,16]", n=3)
    assert "no three" in error.message
    assert "1..8" not in error.message


def test_an_error_at_all_sizes_keeps_its_hint() -> None:
    error = rejected(Never(), "x:float32[b=1..4,t=1..30]", b=2, t=3)
    assert not isinstance(error, RejectedSizesError)
    assert "--input NAME:DTYPE[DIM,...]" in error.hint


def test_eager_is_not_run_without_end() -> None:
    inputs = "x:float32[a=1..9,b=1..9,c=1..9,d=1..9,e=1..9]"
    trials = EagerTrials(*open_module(Never(), inputs), 0, None)
    before = trials.left
    with pytest.raises(CheckpointError), explain_rejection(trials, dict.fromkeys("abcde", 3)):
        raise CheckpointError("it raised", hint="none", code=ErrorCode.FEED_REJECTED)
    assert trials.left >= 0
    assert trials.left < before


def test_a_static_dim_is_fixed_before_eager_runs_and_noted(
    gate_source: Source, tmp_path: Path
) -> None:
    events: list[Event] = []
    subject = open_source(replace(gate_source, static=("batch",)), tmp_path, events.append)
    assert str(subject.signature.inputs[0]) == "x:float32[2,16]"
    assert {one.feed.arrays["x"].shape for one in subject.references} == {(2, 16)}
    assert subject.example["x"].shape == (2, 16)
    notes = [one.text for one in events if isinstance(one, Noted)]
    assert any("--static: batch at 2 (was batch=1..4)" in note for note in notes)


def test_an_unknown_static_dim_names_the_dims(gate_source: Source, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming="'seq'")
    ) as caught:
        open_source(replace(gate_source, static=("seq",)), tmp_path)
    assert caught.value.hint == "choose from: batch"
