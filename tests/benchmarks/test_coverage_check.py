"""The independent check of benchmarks/coverage.py catches what it is there to catch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelc.benchmarks.coverage_check import (
    Truth,
    call,
    differs,
    disagreement,
    name_outputs,
    truth,
)
from modelc.benchmarks.coverage_feeds import Arrays
from modelc.benchmarks.open_artifacts import open_by_structure

RNG = np.random.default_rng(3)
LOGITS = RNG.standard_normal((3, 4)).astype(np.float32)
IDS = np.arange(6, dtype=np.int64)
EAGER: Arrays = {"logits": LOGITS, "ids": IDS}
HOLED = np.where(np.arange(12).reshape(3, 4) == 0, np.float32(np.nan), LOGITS)
WANTED = Truth(feeds=[{"x": np.ones((2, 3), np.float32)}] * 2, outputs=[EAGER, EAGER])


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({**EAGER, "logits": LOGITS + np.float32(0.02)}, "logits: off by 0.02 of"),
        ({**EAGER, "logits": LOGITS[:2]}, "logits: shape [2, 4]"),
        ({**EAGER, "logits": LOGITS.T}, "logits: shape [4, 3]"),
        ({**EAGER, "logits": LOGITS.astype(np.float64)}, "logits: dtype float64"),
        ({**EAGER, "logits": HOLED}, "logits: off by"),
        ({**EAGER, "logits": np.full_like(LOGITS, np.nan)}, "logits: NaN where"),
        ({**EAGER, "ids": IDS + (IDS == 5)}, "ids: 1 of 6 int64 values"),
        ({"logits": LOGITS}, "no output ids among logits"),
    ],
)
def test_a_fault_is_described(found: Arrays, said: str) -> None:
    assert said in differs(EAGER, found)


def test_roundoff_is_no_fault() -> None:
    found: Arrays = {**EAGER, "logits": LOGITS * np.float32(1 + 1e-5)}
    assert differs(EAGER, found) == ""


def test_fill_does_not_hide_what_the_others_are_off_by() -> None:
    masked = np.array([np.finfo(np.float32).min, 1.0, 2.0], np.float32)
    assert "0.5 of 2" in differs({"y": masked}, {"y": masked + np.float32(0.5)})


def test_nan_where_eager_has_it_is_no_fault() -> None:
    holed = np.array([np.nan, np.inf, 1.0], np.float32)
    assert differs({"y": holed}, {"y": holed.copy()}) == ""


def test_other_values_are_silent_and_a_rejected_feed_is_not() -> None:
    def refuse(_: Arrays) -> Arrays:
        raise RuntimeError("size 2 is not 3")

    loud = disagreement(refuse, WANTED)
    quiet = disagreement(lambda _: {**EAGER, "ids": IDS[::-1]}, WANTED)
    assert {"x[2,3]", "RuntimeError", "(2"} <= set(re.split(r"[: ]+", loud.said))
    assert (loud.silent, quiet.silent) == (False, True)


def test_no_disagreement_without_a_fault() -> None:
    assert disagreement(lambda _: dict(EAGER), WANTED).said == ""


class Pair(NamedTuple):
    """Two of a kind."""

    left: Tensor
    right: Tensor | None


@dataclass
class Boxes:
    """As a detector returns it."""

    boxes: list[Tensor]
    label: str


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (ONE, ["output"]),
        ((ONE, (ONE, ONE)), ["output.0", "output.1.0", "output.1.1"]),
        ({"logits": ONE, "states": (ONE, None)}, ["logits", "states.0"]),
        (Pair(ONE, None), ["left"]),
        (Boxes([ONE], "cat"), ["boxes.0"]),
        ({"x": ONE}, ["x_out"]),
    ],
)
def test_outputs_have_their_documented_names(value: object, names: list[str]) -> None:
    assert list(name_outputs(value, taken=["x"])[0]) == names


def test_what_is_no_tensor_is_named() -> None:
    assert name_outputs(Boxes([ONE], "cat"), taken=[])[1] == ("label (str)",)


class Nested(nn.Module):
    """Takes a pair and a dict."""

    def forward(self, pair: tuple[Tensor, Tensor], more: dict[str, Tensor]) -> Tensor:
        """Subtract, so that an order shows."""
        return pair[0] - pair[1] + more["bias"]


def test_dotted_names_are_nested() -> None:
    given = {"pair.0": ONE * 5, "pair.1": ONE * 2, "more.bias": ONE * 10}
    assert call(Nested(), given) == 13


def test_names_that_forward_does_not_have_go_by_order() -> None:
    assert call(nn.Bilinear(2, 3, 1), {"a": torch.ones(1, 2), "b": torch.ones(1, 3)}) is not None


class Counting(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """One more at each call."""
        self.calls += 1
        return x + self.calls


def test_eagers_state_moves_on_with_the_feeds() -> None:
    feed: Arrays = {"x": np.zeros(1, np.float32)}
    found = truth(Counting(), [feed, feed])
    assert [float(outputs["output"][0]) for outputs in found.outputs] == [1, 2]


def test_a_feed_that_eager_rejects_is_left_out() -> None:
    feeds: list[Arrays] = [{"x": np.ones((1, size), np.float32)} for size in (2, 3)]
    found = truth(nn.Linear(3, 1), feeds)
    assert (len(found.feeds), len(found.rejected)) == (1, 1)


@pytest.fixture
def decoded() -> dict[str, object]:
    """What an encoder-decoder returns: a cache between two tensors, each of other values."""
    caches = pytest.importorskip("transformers.cache_utils")
    own, cross = caches.DynamicCache(), caches.DynamicCache()
    for number, cache in enumerate((own, cross)):
        state = torch.full((1, 2, 3, 4), 10.0 * number)
        cache.update(state, state + 1, layer_idx=0)
    cache = caches.EncoderDecoderCache(own, cross)
    return {"logits": ONE, "past_key_values": cache, "encoder_last_hidden_state": ONE * 7}


CACHED = [
    "logits", "present.0.decoder.key", "present.0.decoder.value", "present.0.encoder.key",
    "present.0.encoder.value", "encoder_last_hidden_state",
]  # fmt: skip


def test_the_states_of_a_cache_have_their_documented_names(decoded: dict[str, object]) -> None:
    found, left_out = name_outputs(decoded, taken=[])
    assert (list(found), left_out) == (CACHED, ())
    assert [float(array.flat[0]) for array in found.values()] == [1, 0, 1, 10, 11, 7]


def test_several_caches_are_named_by_their_places(decoded: dict[str, object]) -> None:
    cache = decoded["past_key_values"]
    found, _ = name_outputs({"own": cache, "other": cache}, taken=[])
    assert list(found)[:2] == ["own.0.decoder.key", "own.0.decoder.value"]
    assert "other.0.encoder.value" in found


def test_a_cache_is_left_out_where_it_may_not_be_taken_apart(decoded: dict[str, object]) -> None:
    found, left_out = name_outputs(decoded, taken=[], caches=False)
    assert list(found) == ["logits", "encoder_last_hidden_state"]
    assert left_out == ("past_key_values (EncoderDecoderCache)",)


@pytest.mark.parametrize(
    ("swapped", "said"),
    [
        (None, ""),
        ((1, 2), "present.0.decoder.key: off by 1"),
        ((3, 1), "present.0.decoder.key: off by 10"),
    ],
)
def test_a_flat_artifact_is_held_to_the_states_of_a_cache(
    decoded: dict[str, object], swapped: tuple[int, int] | None, said: str, tmp_path: Path
) -> None:
    wanted, _ = name_outputs(decoded, taken=[])
    flat = [torch.from_numpy(array) for array in wanted.values()]
    if swapped is not None:
        one, other = swapped
        flat[one], flat[other] = flat[other], flat[one]

    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return tuple(one + 0 * x.sum() for one in flat)

    feed: Arrays = {"x": np.ones(1, np.float32)}
    torch.jit.trace(Fixed(), torch.ones(1)).save(str(tmp_path / "m.pt"))  # type: ignore[no-untyped-call]
    found = open_by_structure("torchscript", tmp_path / "m.pt", ["x"], list(wanted))(feed)
    assert differs(wanted, found).startswith(said)
    assert bool(differs(wanted, found)) == bool(said)
