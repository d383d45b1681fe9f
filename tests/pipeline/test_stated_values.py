"""The end of a stated range: found right, and with few runs of eager."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from modelc.core.contract import Feed
from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, merge_inputs
from modelc.pipeline.stated_inputs import find_narrower_input


class Table:
    """A model that looks `ids` up in a table of so many rows; counts its runs."""

    def __init__(self, text: str, rows: int, *, follows: bool = False) -> None:
        self.signature: Signature = merge_inputs([parse_input(text)], {})
        self.runs = 0
        self._rows, self._follows = rows, follows

    def takes(self, arrays: Feed) -> bool:
        self.runs += 1
        rows = arrays["ids"].size if self._follows else self._rows
        return bool((arrays["ids"] < rows).all())

    def others(self, sizes: dict[str, int]) -> Iterator[Feed]:
        (spec,) = self.signature.inputs
        shape = [dim.size(sizes) for dim in spec.dims]
        yield {"ids": np.zeros(shape, np.int64)}


def sizes_of(table: Table) -> dict[str, int]:
    return {name: dim.opt for name, dim in table.signature.free_dims.items()}


@pytest.mark.parametrize("rows", [1, 2, 40, 30522, 10**6])
@pytest.mark.parametrize("high", [2 * 10**6, 2**31 - 1, 2**40])
@pytest.mark.parametrize("shape", ["n=2..8", "4"])
def test_the_end_is_the_last_row_of_the_table(rows: int, high: int, shape: str) -> None:
    table = Table(f"ids:int64[{shape}]{{0..{high}}}", rows)
    found = find_narrower_input(table, sizes_of(table))
    assert found is not None
    assert found.values is not None
    assert found.values.high == rows - 1
    assert table.runs <= 40


def test_a_range_that_eager_takes_costs_two_runs() -> None:
    table = Table("ids:int64[n=2..8]{0..99}", 100)
    assert find_narrower_input(table, sizes_of(table)) is None
    assert table.runs == 2


def test_an_end_that_follows_a_size_is_none_for_all() -> None:
    table = Table("ids:int64[n=2..8]{0..99}", 0, follows=True)
    assert find_narrower_input(table, sizes_of(table)) is None
