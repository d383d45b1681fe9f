"""Loaders: any iterable of feeds, read once and kept aside."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from modelc.calibration.calibration_report import FindingKind
from modelc.core.errors import ErrorCode, UsageError

from ..reasons import has_code
from .conftest import Asked, loading, needed, normal, normals

ONE = Asked("x:float32[batch=1..8,6]")
TWO = Asked("ids:int64[batch,seq]", "mask:int64[batch,seq]")
DATA = normal(40, 6)


def dataset() -> TensorDataset:
    return TensorDataset(torch.from_numpy(DATA), torch.arange(40))


def generate() -> Iterator[np.ndarray]:
    yield from DATA


def test_every_way_of_giving_samples_gives_the_same() -> None:
    batches = [DATA[start : start + 8] for start in range(0, 40, 8)]
    ways: list[Any] = [
        list(DATA),
        generate,
        generate(),
        batches,
        [{"x": batch, "label": 1} for batch in batches],
        [(torch.from_numpy(batch), torch.zeros(8)) for batch in batches],
        [({"x": batch}, 3) for batch in batches],
        DataLoader(dataset(), batch_size=16),
        lambda: DataLoader(dataset(), batch_size=1),
        dataset(),
    ]
    digests: set[str] = set()
    for way in ways:
        with ONE.open("mine:loader", hooks=loading(way), hold_out=0) as opened:
            np.testing.assert_array_equal(np.concatenate([feed["x"] for feed in opened]), DATA)
            digests.add(opened.record.digest)
            assert opened.record.kind == "loader"
    assert len(digests) == 1


def test_a_set_can_be_read_twice_though_its_loader_shuffles() -> None:
    shuffled = DataLoader(dataset(), batch_size=8, shuffle=True)
    with ONE.open("mine:loader", hooks=loading(shuffled)) as opened:
        first, second = ([feed["x"] for feed in opened] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_only_as_many_samples_are_taken_as_are_needed() -> None:
    taken: list[int] = []

    def endless() -> Iterator[np.ndarray]:
        while True:
            taken.append(len(taken))
            yield normal(6, seed=len(taken))

    with ONE.open("mine:loader", hooks=loading(endless), samples=10, hold_out=2) as opened:
        assert (len(opened), len(opened.held_out), len(taken)) == (10, 2, 12)


def test_a_random_selection_is_spread_over_a_pool_and_repeats_with_its_seed() -> None:
    def chosen(seed: int) -> tuple[int, ...]:
        items = [np.full(6, value, np.float32) for value in range(400)]
        options: dict[str, Any] = {"samples": 8, "hold_out": 0, "selection": "random", "seed": seed}
        with ONE.open("mine:loader", hooks=loading(items), **options) as opened:
            return tuple(int(feed["x"][0, 0]) for feed in opened)

    assert chosen(1) == chosen(1) != chosen(2)
    assert len(set(chosen(1))) == 8
    assert max(chosen(1)) < 16 * 8
    assert max(chosen(1)) > 8


def test_the_order_of_a_tuple_is_that_of_the_inputs_and_labels_are_noted() -> None:
    items = [(np.full((1, 4), n), np.ones((1, 4), np.int64), n) for n in range(40)]
    with TWO.open("mine:loader", hooks=loading(items), hold_out=0) as opened:
        assert [int(feed["ids"][0, 0]) for feed in opened] == list(range(40))
        assert "position 2 (40)" in needed(opened.report, FindingKind.SURPLUS).detail


def test_an_item_of_other_names_is_an_error_with_its_number() -> None:
    items: list[object] = [{"x": normal(6, seed=n)} for n in range(40)]
    items[7] = {"image": normal(6)}
    finding = needed(ONE.look("mine:loader", hooks=loading(items)), FindingKind.NAMES)
    assert finding.files == ("mine:loader item 7",)
    assert "image" in finding.detail


def test_nan_in_one_row_of_a_batch_is_named_by_item_and_row() -> None:
    data = DATA.copy()
    data[21, 2] = np.nan
    hooks = loading(DataLoader(TensorDataset(torch.from_numpy(data)), batch_size=8))
    finding = needed(ONE.look("mine:loader", hooks=hooks), FindingKind.NON_FINITE)
    assert finding.files == ("mine:loader item 2 row 5",)


def broken() -> Iterator[np.ndarray]:
    yield normal(6)
    raise ZeroDivisionError("no such thing")


@pytest.mark.parametrize(
    ("found", "code", "shown"),
    [
        (broken, ErrorCode.LOADER_FAILED, "ZeroDivisionError"),
        (3, ErrorCode.LOADER_FAILED, "int"),
        ("text", ErrorCode.LOADER_FAILED, "str"),
        (object(), ErrorCode.LOADER_FAILED, "object"),
        (lambda path: [path], ErrorCode.LOADER_FAILED, "TypeError"),
        ([], ErrorCode.NO_SAMPLES, "mine:loader"),
    ],
)
def test_what_is_no_loader_of_samples_is_rejected(
    found: object, code: ErrorCode, shown: str
) -> None:
    with pytest.raises(UsageError, check=has_code(code, naming=shown)):
        ONE.look("mine:loader", hooks=loading(found))


def test_items_that_are_no_arrays_are_an_error() -> None:
    report = ONE.look("mine:loader", hooks=loading([["a", "b"]] * 3))
    assert "str" in needed(report, FindingKind.DTYPE).detail


@pytest.mark.parametrize("way", ["closed", "looked", "refused", "forgotten"])
def test_nothing_stays_behind(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    samples = normals(40, 6)
    acts: dict[str, Callable[[], object]] = {
        "closed": lambda: ONE.open("mine:loader", hooks=loading(samples)).close(),
        "looked": lambda: ONE.look("mine:loader", hooks=loading(samples)),
        "refused": lambda: ONE.open("mine:loader", hooks=loading([np.full(6, np.nan)])),
        "forgotten": lambda: len(ONE.open("mine:loader", hooks=loading(samples))),
    }
    if way == "refused":
        with pytest.raises(UsageError):
            acts[way]()
    else:
        acts[way]()
    assert not list(tmp_path.iterdir())
