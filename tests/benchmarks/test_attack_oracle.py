"""The oracle of the attack set: what it must see, what it must excuse, and where it looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.benchmarks.attack_domain import feeds_of, read_domain
from modelc.benchmarks.attack_oracle import Eager, Truth, judge, truth

Array = np.ndarray[Any, np.dtype[Any]]
DIM = {"low": 1, "opt": 2, "high": 4, "name": "batch"}


def inputs(*dims: Mapping[str, Any] | int, dtype: str = "float32", **more: Any) -> list[Any]:
    known = [d if isinstance(d, dict) else {"low": d, "opt": d, "high": d} for d in dims]
    return [{"name": "x", "dtype": dtype, "dims": known, **more}]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 1.0, 1e-4]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Wave(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x * 1e4)


class Largest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(-1)


class Integers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 1e12).to(torch.int32)


def truth_of(net: type[nn.Module]) -> Truth:
    torch.manual_seed(0)
    domain = read_domain(inputs(DIM, 3))
    return truth(Eager(net), feeds_of(domain, {}, seed=1))


def state_of(net: type[nn.Module], run: Callable[[Array], Array]) -> str:
    wanted = truth_of(net)
    return judge(lambda feed: {"y": run(feed["x"])}, ["y"], wanted).state


def scaled(x: Array) -> Array:
    return x * np.array([1, 1, 1e-4], np.float32)


def test_the_same_numbers_are_right() -> None:
    assert state_of(Scaled, scaled) == "right"


def fill(found: Array) -> Array:
    found.flat[0] = np.nan
    return found


@pytest.mark.parametrize(
    "fault",
    [
        lambda x: scaled(x) * np.float32(1.01),
        lambda x: scaled(x) * np.array([1, 1, 0.5], np.float32),  # a channel that is small
        lambda x: scaled(x) if len(x) < 4 else -scaled(x),  # at the largest batch alone
        lambda x: np.clip(scaled(x), -2e4, 2e4),
        lambda x: scaled(x)[:1],
        lambda x: scaled(x).astype(np.float64),
        lambda x: fill(scaled(x)),
    ],
)
def test_a_fault_is_wrong(fault: Callable[[Array], Array]) -> None:
    assert state_of(Scaled, fault) == "WRONG"


def test_an_error_inside_of_the_domain_is_reported() -> None:
    def run(x: Array) -> Array:
        if len(x) == 3:
            raise RuntimeError("three rows")
        return scaled(x)

    assert state_of(Scaled, run) == "RAISES"


def test_what_roundoff_explains_is_excused() -> None:
    def exact(x: Array) -> Array:
        return np.sin(x.astype(np.float64) * 1e4).astype(np.float32)

    assert state_of(Wave, exact) == "right"
    assert state_of(Wave, lambda x: exact(x) * np.float32(1.5)) == "WRONG"


def test_either_of_two_equal_scores_is_right() -> None:
    def last(x: Array) -> Array:
        found: Array = x.shape[-1] - 1 - x[:, ::-1].argmax(-1)
        return found

    assert state_of(Largest, lambda x: x.argmax(-1)) == "right"
    assert state_of(Largest, last) == "right"
    assert state_of(Largest, lambda x: x.argmin(-1)) == "WRONG"


def test_a_cast_that_no_standard_defines_is_excused() -> None:
    def run(x: Array) -> Array:
        wide = (x * np.float32(1e12)).astype(np.float64)
        return np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32)

    assert state_of(Integers, run) == "right"


def test_an_output_that_is_left_out_is_wrong() -> None:
    wanted = truth_of(Scaled)
    assert judge(lambda _: {}, [], wanted).state == "WRONG"


def test_lower_precision_is_judged_by_channels() -> None:
    wanted = truth_of(Scaled)

    def run(feed: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": scaled(feed["x"]) * np.array([1, 1, 0], np.float32)}

    assert judge(run, ["y"], wanted).state == "WRONG"
    assert judge(run, ["y"], wanted, rough=True).state == "WRONG"
    assert judge(lambda f: {"y": scaled(f["x"]) * np.float32(1.01)}, ["y"], wanted,
                 rough=True).state == "right"  # fmt: skip


def test_feeds_have_every_size_of_a_short_range() -> None:
    domain = read_domain(inputs(DIM, 3))
    found = [feed["x"].shape[0] for _, feed in feeds_of(domain, {}, seed=1)]
    assert set(found) == {1, 2, 3, 4}
    assert len(found) >= 50


def test_relations_and_values_that_follow_a_dim_hold() -> None:
    tall = {"low": 32, "opt": 64, "high": 128, "name": "h",
            "relation": {"base": "k", "times": 32}}  # fmt: skip
    ids = {"name": "ids", "dtype": "int64", "dims": [{**DIM, "name": "batch"}],
           "values": {"low": 0, "high": 3, "high_dim": {"base": "batch", "plus": -1}}}  # fmt: skip
    domain = read_domain([*inputs(tall, DIM), ids])
    assert domain.bases == {"k": (1, 2, 4), "batch": (1, 2, 4)}
    for _, feed in feeds_of(domain, {}, seed=1):
        assert feed["x"].shape[0] in (32, 64, 96, 128)
        assert feed["ids"].max(initial=0) < feed["x"].shape[1]


def test_integers_without_values_are_drawn_wide() -> None:
    domain = read_domain(inputs(DIM, 3, dtype="int64"))
    found = np.concatenate([feed["x"].ravel() for _, feed in feeds_of(domain, {}, seed=1)])
    assert found.min() < -(2**31)
    assert found.max() > 2**31
