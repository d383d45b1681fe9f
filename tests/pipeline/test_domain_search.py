"""Bounds that nobody states: the sizes that eager accepts, searched outward in all dims."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.checkpoints.eager_model import Eager, open_eager
from modelc.checkpoints.sample_inputs import infer_specs
from modelc.core.domain import Domain
from modelc.core.errors import CheckpointError
from modelc.core.signature import Signature, ValueRange
from modelc.pipeline.domain_search import choose_dims
from modelc.pipeline.size_probe import MAX_ELEMENTS
from modelc.validators.feeds import FeedDrawer

from ..open_models import load, open_module, signature_of


class Squeeze(nn.Module):
    """Accepts images whose sides are multiples of 8."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pixel_shuffle(nn.functional.pixel_unshuffle(x, 8), 8)


class Positions(nn.Module):
    """Accepts at most 40 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(40, 4))

    def forward(self, ids: Tensor) -> Tensor:
        return self.table[: ids.shape[1]] + ids[..., None]


class Sum(nn.Module):
    """Accepts two tensors of one shape; without a check, one would broadcast over the other."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        if a.shape != b.shape:
            raise ValueError("shapes differ")
        return a + b


class Step(nn.Module):
    """A mask is one longer than the past."""

    def forward(self, token: Tensor, past: Tensor, mask: Tensor) -> Tensor:
        return torch.cat([past, token], 1) * mask[..., None]


class Square(nn.Module):
    """Accepts one size only: a table of 14 x 14 patches, without the floor of a convolution."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2:] != (28, 28):
            raise ValueError("28 x 28 only")
        return x * 2


class Deviation(nn.Module):
    """Gives NaN for one token: the deviation of one value."""

    def forward(self, x: Tensor) -> Tensor:
        return x.std(1)


class Area(nn.Module):
    """Accepts what has at most 4096 pixels, whatever the sides."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] * x.shape[2] > 4096:
            raise ValueError("too large")
        return x + 1


class Gather(nn.Module):
    """Indexes nodes by edges."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])


class Grown(nn.Module):
    """Keeps the longest cache that it was asked for."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > len(self.cache):
            self.cache = torch.zeros(x.shape[1])
        return x + self.cache[: x.shape[1]]


def opened(module: nn.Module, signature: Signature) -> Eager:
    return open_eager(load(module), signature)


def chosen(
    module: nn.Module, *inputs: str, samples: Mapping[str, np.ndarray] | None = None
) -> Signature:
    known = None if samples is None else infer_specs(samples)
    signature = signature_of(*inputs, known=known)
    return choose_dims(opened(module, signature), signature, samples=samples)


def text(signature: Signature) -> str:
    return Domain(inputs=signature.inputs).describe()


@pytest.mark.parametrize(
    ("module", "inputs", "expected"),
    [
        (Positions(), ("ids:int64[batch,seq]",), "batch 1..8, seq 1..40 (chosen)"),
        (
            Squeeze(),
            ("x:float32[batch,3,height,width]",),
            "batch 1..8, height 8..256 step 8, width 8..256 step 8 (chosen)",
        ),
        (
            Sum(),
            ("a:float32[batch,s1]", "b:float32[rows,s2]"),
            "batch 1..8, s1 1..256, rows=batch, s2=s1 (chosen)",
        ),
        (
            Step(),
            ("token:float32[batch,1,4]", "past:float32[batch,past,4]", "mask:float32[batch,total]"),
            "batch 1..8, past 1..252, total=past+1 (chosen)",
        ),
        (
            Step(),
            ("token:float32[batch=1..4,1,4]", "past:float32[batch,past,4]",
             "mask:float32[batch,total=past+1]"),
            "batch 1..4; chosen: past 1..256, total=past+1",
        ),
        (Deviation(), ("x:float32[batch,seq,4]",), "batch 1..8, seq 2..256 (chosen)"),
    ],
)  # fmt: skip
def test_what_eager_accepts_is_chosen(
    module: nn.Module, inputs: tuple[str, ...], expected: str
) -> None:
    assert text(chosen(module, *inputs)) == expected


def test_one_size_is_fixed_and_keeps_its_name() -> None:
    sample = {"x": np.zeros((1, 3, 28, 28), np.float32)}
    found = chosen(Square(), "x[batch,_,height,width]", samples=sample)
    assert text(found) == "batch 1..8, height 28, width 28 (chosen)"
    assert list(found.dynamic_dims) == ["batch"]


def test_stated_bounds_are_as_stated() -> None:
    found = chosen(Squeeze(), "x:float32[batch=2..3,3,height=8*(k=1..2),width]")
    assert [dim.low for dim in found.inputs[0].dims] == [2, 3, 8, 8]
    assert [dim.high for dim in found.inputs[0].dims] == [3, 3, 16, 256]
    assert [dim.chosen for dim in found.inputs[0].dims] == [False, False, False, True]


class Counted(nn.Module):
    """Positions count what a mask shows, as in OPT: 40 at most."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(41, 4))

    def forward(self, mask: Tensor) -> Tensor:
        found: Tensor = self.table[mask.cumsum(1)]
        return found


def test_the_search_begins_at_the_sample() -> None:
    sample = {"ids": np.zeros((1, 6), np.int64)}
    found = chosen(Positions(), "ids[batch,seq]", samples=sample).inputs[0].dims
    assert [(dim.low, dim.opt, dim.high) for dim in found] == [(1, 1, 8), (1, 6, 24)]


def test_a_size_that_only_values_break_is_accepted() -> None:
    sample = {"x": np.zeros((5, 4), np.float32), "edges": np.array([[0, 1, 4], [1, 4, 2]])}
    found = chosen(Gather(), "x[nodes,_]", "edges[_,edges]", samples=sample)
    assert text(found) == "nodes 1..20, edges 1..12 (chosen)"


def test_every_corner_of_the_box_runs() -> None:
    found = chosen(Area(), "x:float32[batch,height,width]")
    dims = found.free_dims
    eager, drawer = opened(Area(), found), FeedDrawer.of(found, 0, None)
    assert all(dim.low <= 64 <= dim.high for name, dim in dims.items() if name != "batch")
    assert chosen(Area(), "x:float32[batch,height,width]") == found  # the same again
    for sizes in itertools.product(*((dim.low, dim.high) for dim in dims.values())):
        eager.run(drawer.feed("corner", dict(zip(dims, sizes, strict=True))).arrays)


def test_no_feed_is_larger_than_the_cap() -> None:
    found = chosen(nn.ReLU(), "input:float32[batch,3,height,width,depth]")
    largest = 3
    for dim in found.free_dims.values():
        largest *= dim.high
    assert largest <= MAX_ELEMENTS
    assert found.free_dims["batch"].high >= 2


def test_the_search_restores_the_module() -> None:
    module = Grown()
    choose_dims(*open_module(module, "x:float32[batch,seq]"))
    assert len(module.cache) == 4


def test_a_model_that_runs_at_no_size_keeps_its_signature() -> None:
    class Never(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError(f"not today, {x.shape}")

    eager, signature = open_module(Never(), "x:float32[batch,seq]")
    assert choose_dims(eager, signature) is signature
    with pytest.raises(CheckpointError):
        eager.run({"x": np.zeros((1, 1), np.float32)})


class Rows(nn.Module):
    """Reads both as rows, of 8 and of 16 elements."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.view(-1, 8).sum() + y.view(-1, 16).sum()


def test_a_dim_that_follows_a_chosen_one_prints_as_valid_input() -> None:
    found = chosen(Rows(), "x:float32[seq]", "y:float32[2*seq]")
    printed = [str(spec) for spec in found.inputs]
    assert printed == ["x:float32[seq=8*(k_seq=1..8..32)]", "y:float32[16*(k_seq=1..8..32)]"]
    assert [str(spec) for spec in signature_of(*printed).inputs] == printed


def test_sizes_that_are_known_to_be_rejected_are_excluded() -> None:
    eager, signature = open_module(Squeeze(), "x:float32[batch,3,height,width]")
    rejected = [{"batch": 1, "height": 248, "width": 64}]
    found = choose_dims(eager, signature, rejected=rejected)
    assert text(found) == "batch 1..8, height 8..240 step 8, width 8..256 step 8 (chosen)"
    assert choose_dims(eager, found) is found  # all is chosen now


FULL = np.ones((2, 13), np.int64)
RANGE = {"mask": ValueRange(low=0, high=1, chosen=True)}


@pytest.mark.parametrize(
    ("spec", "mask", "values", "expected"),
    [
        ("{0..1}", FULL, {}, "mask 0..1; chosen: batch 1..8, seq 1..40"),
        ("", np.tri(2, 13, 6, dtype=np.int64), RANGE, "batch 1..8, seq 1..40 (chosen)"),
    ],
)
def test_integers_are_tried_at_their_ends_once_sizes_were_rejected(
    spec: str, mask: np.ndarray, values: dict[str, ValueRange], expected: str
) -> None:
    signature = signature_of(f"mask[batch,seq]{spec}", known=infer_specs({"mask": mask}))
    eager, samples = opened(Counted(), signature), {"mask": mask}
    assert text(choose_dims(eager, signature, samples=samples)).endswith(
        "seq 1..52" if spec else ")"
    )
    rejected = [{"batch": 8, "seq": 52}]
    found = choose_dims(eager, signature, samples=samples, rejected=rejected, values=values)
    assert text(found) == expected
