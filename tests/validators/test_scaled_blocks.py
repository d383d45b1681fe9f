"""Blocks with a wrong scale are found in integer weights of any tool, whatever its rounding."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest

from modelc.core.weights import IntegerMatrix, IntegerWeights
from modelc.validators.scaled_blocks import find_scaled_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.float64]"
ROWS, COLUMNS, SIZE, LEVELS = 64, 128, 32, 15
WEIGHT = np.random.default_rng(0).standard_normal((ROWS, COLUMNS))
OTHER = np.random.default_rng(1).standard_normal((ROWS, COLUMNS))
KNOWN = {"other": OTHER.astype(np.float32), "mlp.weight": WEIGHT.astype(np.float32)}


@dataclass
class Blocks:
    """Integers with a scale and a zero point for each block, as a tool writes them."""

    integers: Array
    scales: Array
    zeros: Array

    def matrix(self) -> IntegerMatrix:
        values = ((self.integers - self.zeros) * self.scales).reshape(ROWS, COLUMNS)
        numbers = np.arange(self.scales.size).reshape(ROWS, -1).repeat(SIZE, axis=1)
        radius = self.scales[..., 0].repeat(SIZE, axis=1) / 2
        per_row = self.scales.shape[1]

        def read_rows(first: int, last: int) -> IntegerWeights:
            return IntegerWeights(
                values=values[first:last].astype(np.float32), radius=radius[first:last],
                blocks=numbers[first:last] - first * per_row,
            )  # fmt: skip

        return IntegerMatrix(shape=(ROWS, COLUMNS), read_rows=read_rows)


def round_blocks(weight: Array, clip: float = 1.0) -> Blocks:
    parts = weight.reshape(ROWS, -1, SIZE)
    low = np.minimum(parts.min(-1, keepdims=True), 0) * clip
    high = np.maximum(parts.max(-1, keepdims=True), 0) * clip
    scales = (high - low) / LEVELS
    zeros = np.round(-low / scales)
    return Blocks(np.clip(np.round(parts / scales + zeros), 0, LEVELS), scales, zeros)


def compensate(weight: Array) -> Blocks:
    """Round column by column and spread each error over the columns after it, as GPTQ does."""
    draw = np.random.default_rng(2)
    inputs = draw.standard_normal((256, COLUMNS)) @ (
        np.eye(COLUMNS) + draw.standard_normal((COLUMNS, COLUMNS)) / math.sqrt(COLUMNS)
    )
    hessian = inputs.T @ inputs
    hessian += np.eye(COLUMNS) * 0.01 * np.diag(hessian).mean()
    upper = np.linalg.cholesky(np.linalg.inv(hessian)).T
    left, made = weight.copy(), round_blocks(weight)
    for column in range(COLUMNS):
        block, place = divmod(column, SIZE)
        if place == 0:
            fresh = round_blocks(left)
            made.scales[:, block], made.zeros[:, block] = (
                fresh.scales[:, block],
                fresh.zeros[:, block],
            )
        scale, zero = made.scales[:, block, 0], made.zeros[:, block, 0]
        integers = np.clip(np.round(left[:, column] / scale + zero), 0, LEVELS)
        made.integers[:, block, place] = integers
        error = (left[:, column] - (integers - zero) * scale) / upper[column, column]
        left[:, column + 1 :] -= np.outer(error, upper[column, column + 1 :])
    return made


def scale_channels(weight: Array) -> Blocks:
    """Scale all input channels, as AWQ does."""
    return round_blocks(weight * np.exp(np.random.default_rng(3).normal(0, 0.5, COLUMNS)))


def scale_few_channels(weight: Array) -> Blocks:
    factors = np.ones(COLUMNS)
    factors[:SIZE] = np.exp(np.random.default_rng(3).normal(0, 0.5, SIZE))
    return round_blocks(weight * factors)


def scale_both(weight: Array) -> Blocks:
    return scale_channels(weight * np.exp(np.random.default_rng(4).normal(0, 0.5, (ROWS, 1))))


TOOLS: dict[str, Callable[[Array], Blocks]] = {
    "nearest": round_blocks,
    "clipped": lambda weight: round_blocks(weight, 0.8),
    "gptq": compensate,
    "awq": scale_channels,
    "awq of few": scale_few_channels,
    "awq of both": scale_both,
}
tools = pytest.mark.parametrize("tool", TOOLS)


@tools
def test_the_weights_of_a_tool_are_no_fault(tool: str) -> None:
    assert find_scaled_blocks(KNOWN, [TOOLS[tool](WEIGHT).matrix()]) == ()


@tools
def test_a_doubled_scale_is_named_with_its_block(tool: str) -> None:
    made = TOOLS[tool](WEIGHT)
    made.scales[3, 1] *= 2
    (text,) = find_scaled_blocks(KNOWN, [made.matrix()])
    assert "mlp.weight" in text
    assert "block 13 ([3, 32:64]) is " in text


@pytest.mark.parametrize("tool", ["nearest", "clipped", "gptq"])
def test_many_wrong_scales_are_counted(tool: str) -> None:
    made = TOOLS[tool](WEIGHT)
    made.scales.reshape(-1)[::7] *= 1.3
    (text,) = find_scaled_blocks(KNOWN, [made.matrix()])
    assert "of 256 blocks is 1.3" in text


def test_a_zero_point_off_by_one_is_found() -> None:
    made = round_blocks(WEIGHT)
    made.zeros[5, 2] += 1
    (text,) = find_scaled_blocks(KNOWN, [made.matrix()])
    assert re.search(r"zero point\b.*\b22\b", text)


def test_a_block_of_a_transposed_weight_has_the_place_in_the_weight() -> None:
    made = round_blocks(WEIGHT)
    made.scales[3, 1] *= 2
    turned = {name: array.T.copy() for name, array in KNOWN.items()}
    (text,) = find_scaled_blocks(turned, [made.matrix()])
    assert "[32:64, 3]" in text


def test_a_matrix_that_is_no_weight_is_not_reported() -> None:
    assert find_scaled_blocks({"other": KNOWN["other"]}, [round_blocks(WEIGHT).matrix()]) == ()


def test_a_matrix_that_eager_computes_is_not_reported() -> None:
    made = round_blocks(WEIGHT)
    made.scales[3, 1] *= 2
    meant = WEIGHT.copy()
    meant[3, 32:64] *= 2
    found = find_scaled_blocks(KNOWN, [made.matrix()], computed=lambda test: test(meant))
    assert found == ()


def test_a_large_matrix_is_read_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelc.validators.scaled_blocks._PORTION", 16 * COLUMNS)
    made = round_blocks(WEIGHT)
    assert find_scaled_blocks(KNOWN, [made.matrix()]) == ()
    made.scales[35, 1] *= 2
    (text,) = find_scaled_blocks(KNOWN, [made.matrix()])
    assert "block 141 ([35, 32:64]) is 2" in text
