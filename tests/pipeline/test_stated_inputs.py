"""Errors in stated inputs before the model is loaded, and the end of a stated range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from modelc.core.contract import Feed
from modelc.core.errors import UsageError
from modelc.core.events import Event, Started
from modelc.core.signature import Signature
from modelc.pipeline.eager_reference import read_checkpoint
from modelc.pipeline.order import Source
from modelc.pipeline.run_progress import Progress
from modelc.pipeline.stated_inputs import find_narrower_input

from ..open_models import signature_of

INPUTS = ("a:float32[batch=1..4,seq1=1..9]", "b:float32[batch,seq2=seq1]")


def asked(tmp_path: Path, source: Source, *inputs: str, static: tuple[str, ...] = ()) -> list[str]:
    """The steps that are begun for a checkpoint that is read and not loaded."""
    steps: list[str] = []

    def tell(event: Event) -> None:
        if isinstance(event, Started):
            steps.append(event.step)

    source = replace(source, inputs=inputs, static=static)
    read_checkpoint(source, Progress(tell=tell, logs=tmp_path / "logs"))
    return steps


@pytest.mark.parametrize(
    ("inputs", "static", "told"),
    [
        (("a:float32[batch=8..1]",), (), "8 is larger than 1"),
        ((INPUTS[0], "b:float32[batch,seq2=sqe1]"), (), "did you mean 'seq1'"),
        (INPUTS, ("sqe1",), "unknown dim in --static: 'sqe1'"),
    ],
)
def test_a_typo_is_an_error_before_the_checkpoint_is_read(
    gate_source: Source, tmp_path: Path, inputs: tuple[str, ...], static: tuple[str, ...], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        asked(tmp_path, gate_source, *inputs, static=static)
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("static", ["seq1", "seq2", "batch", "channels"])
def test_valid_names_are_checked_with_the_model(
    gate_source: Source, tmp_path: Path, static: str
) -> None:
    assert asked(tmp_path, gate_source, *INPUTS, static=(static,)) == ["read checkpoint"]


def test_dims_that_a_sample_may_name_wait_for_it(gate_source: Source, tmp_path: Path) -> None:
    texts = (INPUTS[0], "b:float32[batch,seq2=sqe1]")
    source = replace(gate_source, samples=tmp_path / "some.npz")
    assert asked(tmp_path, source, *texts) == ["read checkpoint"]
    assert asked(tmp_path, gate_source, *texts, "c:float32[_]") == ["read checkpoint"]


class Table:
    """A model that looks `ids` up in a table of so many rows; counts its runs."""

    def __init__(self, text: str, rows: int, *, follows: bool = False) -> None:
        self.signature: Signature = signature_of(text)
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
