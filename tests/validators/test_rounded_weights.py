"""Integer weights that are the checkpoint's, and those that rounding does not explain."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest

from modelc.core.weights import IntegerMatrix, IntegerWeights
from modelc.validators import rounded_weights
from modelc.validators.rounded_weights import find_misrounded_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.float32]"
COLUMNS, ROWS, SIZE = 48, 128, 32
WEIGHT = np.random.default_rng(0).standard_normal((COLUMNS, ROWS)).astype(np.float32)
OTHER = np.random.default_rng(1).standard_normal((COLUMNS, ROWS)).astype(np.float32)
KNOWN = {"other": OTHER, "layer.weight": WEIGHT}


def round_blocks(weight: Array, bits: int) -> IntegerWeights:
    """Round to nearest in blocks of `SIZE`, with zero points, as ONNX Runtime does."""
    parts = weight.reshape(len(weight), -1, SIZE)
    low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
    scale = ((high - low) / (2**bits - 1))[..., None]
    zero = np.round(-low[..., None] / scale)
    integers = np.clip(np.round(parts / scale) + zero, 0, 2**bits - 1)
    numbers = np.arange(scale.size).reshape(scale.shape)
    values, radius, blocks = (
        np.broadcast_to(one, parts.shape).reshape(weight.shape)
        for one in ((integers - zero) * scale, scale / 2, numbers)
    )
    return IntegerWeights(values=values, radius=radius, blocks=blocks)


def as_matrix(found: IntegerWeights) -> IntegerMatrix:
    def read(first: int, last: int) -> IntegerWeights:
        parts = (one[first:last] for one in (found.values, found.radius, found.blocks))
        values, radius, blocks = parts
        return IntegerWeights(values=values, radius=radius, blocks=blocks)

    return IntegerMatrix(shape=found.values.shape, read_rows=read)


bits = pytest.mark.parametrize("bits", [4, 8])


@bits
@pytest.mark.parametrize("turned", [False, True])
def test_a_rounded_weight_is_the_checkpoints(bits: int, turned: bool) -> None:
    found = round_blocks(WEIGHT, bits)
    if turned:
        found = IntegerWeights(values=found.values.T, radius=found.radius.T, blocks=found.blocks.T)
    assert find_misrounded_weights(KNOWN, [as_matrix(found)]) == ()


def double_scale(found: IntegerWeights) -> IntegerWeights:
    times = np.where(found.blocks == 9, 2.0, 1.0)
    return replace(found, values=found.values * times, radius=found.radius * times)


def swap_blocks(found: IntegerWeights) -> IntegerWeights:
    values = found.values.copy()
    values[3, :SIZE], values[3, SIZE : 2 * SIZE] = (
        found.values[3, SIZE : 2 * SIZE],
        found.values[3, :SIZE],
    )
    return replace(found, values=values)


def swap_halves(found: IntegerWeights) -> IntegerWeights:
    values = found.values.copy()
    values[5, :SIZE] = found.values[5, :SIZE].reshape(-1, 2)[:, ::-1].reshape(-1)
    return replace(found, values=values)


def shift_zero(found: IntegerWeights) -> IntegerWeights:
    return replace(found, values=found.values + np.where(found.blocks == 4, 2 * found.radius, 0))


@bits
@pytest.mark.parametrize("plant", [double_scale, swap_blocks, swap_halves, shift_zero])
def test_one_wrong_block_is_found(
    bits: int, plant: Callable[[IntegerWeights], IntegerWeights]
) -> None:
    (text,) = find_misrounded_weights(KNOWN, [as_matrix(plant(round_blocks(WEIGHT, bits)))])
    assert "layer.weight" in text
    count = 2 if plant is swap_blocks else 1
    assert re.search(rf"\b{count} of 192\b", text)


@bits
def test_zero_points_that_are_off_throughout_are_found(bits: int) -> None:
    found = round_blocks(WEIGHT, bits)
    sides = np.where(found.blocks % 2, 1, -1)
    shifted = replace(found, values=found.values + 2 * sides * found.radius)
    (text,) = find_misrounded_weights(KNOWN, [as_matrix(shifted)])
    assert "zero points" in text


@bits
def test_an_order_that_is_wrong_throughout_is_found(bits: int) -> None:
    found = round_blocks(WEIGHT, bits)
    turned = found.values.reshape(-1, 2)[:, ::-1].reshape(WEIGHT.shape)
    (text,) = find_misrounded_weights(KNOWN, [as_matrix(replace(found, values=turned))])
    assert "layer.weight" in text
    assert "another order" in text


@bits
@pytest.mark.parametrize("spread", [0.003, 0.02, 0.1, 0.3])
def test_a_fold_is_left_to_the_outputs(bits: int, spread: float) -> None:
    """A batch norm after the layer multiplies each of its outputs."""
    times = 1 + spread * np.random.default_rng(2).standard_normal((COLUMNS, 1)).astype(np.float32)
    assert find_misrounded_weights(KNOWN, [as_matrix(round_blocks(WEIGHT * times, bits))]) == ()


def test_a_channel_whose_scale_is_wrong_is_no_fold() -> None:
    found = round_blocks(WEIGHT.reshape(-1, SIZE), 8)
    (text,) = find_misrounded_weights(
        {"w": WEIGHT.reshape(-1, SIZE)}, [as_matrix(double_scale(found))]
    )
    assert "1 of 192" in text


@bits
def test_a_weight_of_no_checkpoint_is_left_to_the_outputs(bits: int) -> None:
    assert find_misrounded_weights({"other": OTHER}, [as_matrix(round_blocks(WEIGHT, bits))]) == ()


def test_what_eager_computes_of_a_weight_is_no_fault() -> None:
    pruned = WEIGHT * (np.arange(ROWS) >= 8)
    (text,) = find_misrounded_weights(KNOWN, [as_matrix(round_blocks(pruned, 4))])
    assert "layer.weight" in text
    computed = find_misrounded_weights(
        KNOWN, [as_matrix(round_blocks(pruned, 4))], computed=lambda test: test(pruned)
    )
    assert computed == ()


@bits
@pytest.mark.parametrize("turned", [False, True])
def test_a_rounded_weight_is_read_in_portions(
    bits: int, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, read = round_blocks(WEIGHT, bits), list[int]()
    if turned:
        found = IntegerWeights(values=found.values.T, radius=found.radius.T, blocks=found.blocks.T)
    whole = as_matrix(found)

    def read_rows(first: int, last: int) -> IntegerWeights:
        read.append(last - first)
        return whole.read_rows(first, last)

    monkeypatch.setattr(rounded_weights, "_PORTION", 5 * found.values.shape[1])
    assert find_misrounded_weights(KNOWN, [replace(whole, read_rows=read_rows)]) == ()
    assert max(read) == 5
    wrong = replace(found, values=found.values + 3 * found.radius * (found.blocks == 191))
    assert len(find_misrounded_weights(KNOWN, [as_matrix(wrong)])) == 1
