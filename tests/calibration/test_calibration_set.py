"""The set that quantizers get: which samples, in which order, how often, and its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelc.calibration.calibration_options import CalibrationOptions
from modelc.calibration.calibration_report import FindingKind
from modelc.calibration.calibration_set import CalibrationSet
from modelc.calibration.sample_reader import LoaderHooks
from modelc.core.contract import CalibrationFeeds, Feed
from modelc.core.errors import ErrorCode, UsageError

from ..reasons import has_code
from .conftest import Asked, needed, no_draw, no_load, normal

ONE = Asked("x:float32[batch,6]")
Save = Callable[[Sequence[np.ndarray]], Path]


def numbered(count: int) -> list[np.ndarray]:
    """Sample i holds i, and something else so that it is not constant."""
    return [np.array([[i, -1, 2, 3, 4, 5]], np.float32) for i in range(count)]


def numbers(feeds: Sequence[Feed] | CalibrationSet) -> list[int]:
    return [int(value) for feed in feeds for value in feed["x"][:, 0]]


def test_it_is_what_quantizers_take(save_arrays: Save) -> None:
    opened: CalibrationFeeds = ONE.open(save_arrays(numbered(40)))
    assert len(opened) == opened.record.used == len(list(opened)) == 32


def test_files_are_chosen_at_random_and_loaders_are_not(tmp_path: Path) -> None:
    assert CalibrationOptions(source=str(tmp_path)).selection == "random"
    assert CalibrationOptions(source="package.module:loader").selection == "first"
    assert CalibrationOptions(source="random").selection == "first"


@pytest.mark.parametrize(
    ("count", "asked", "used", "held"),
    [(40, {}, 32, 8), (100, {}, 84, 16), (1, {}, 1, 0), (4, {}, 2, 2), (9, {}, 5, 4),
     (24, {}, 19, 5),
     (100, {"samples": 10}, 10, 5), (100, {"hold_out": 0}, 100, 0), (40, {"samples": 8}, 8, 5)],
)  # fmt: skip
def test_a_fifth_is_held_out_or_of_few_samples_half(
    save_arrays: Save, count: int, asked: dict[str, Any], used: int, held: int
) -> None:
    opened = ONE.open(save_arrays(numbered(count)), **asked)
    assert (len(opened), len(opened.held_out)) == (used, held)
    assert (opened.record.used, opened.record.held_out, opened.record.found) == (used, held, count)
    assert not set(numbers(opened)) & set(numbers(opened.held_out))


def test_held_out_samples_are_spread_over_the_set(save_arrays: Save) -> None:
    opened = ONE.open(save_arrays(numbered(100)), hold_out=4)
    assert numbers(opened.held_out) == [12, 37, 62, 87]


def test_the_first_samples_keep_their_order(save_arrays: Save) -> None:
    opened = ONE.open(save_arrays(numbered(90)), samples=10, hold_out=0)
    assert numbers(opened) == list(range(10))


@pytest.mark.parametrize("batched", [False, True])
def test_a_random_selection_repeats_with_its_seed(tmp_path: Path, batched: bool) -> None:
    arrays = numbered(90)
    if batched:
        arrays = [np.concatenate(arrays[:50]), np.concatenate(arrays[50:])]
    for index, array in enumerate(arrays):
        np.save(tmp_path / f"{index:02}.npy", array)

    def chosen(seed: int) -> list[int]:
        return numbers(ONE.open(tmp_path, samples=20, hold_out=0, selection="random", seed=seed))

    assert chosen(1) == chosen(1) != chosen(2)
    assert len(set(chosen(1))) == 20
    assert max(chosen(1)) >= 50 > min(chosen(1))


def test_the_record_tells_all_that_was_asked(save_arrays: Save, tmp_path: Path) -> None:
    folder = save_arrays(numbered(20))
    opened = ONE.open(folder, root=tmp_path / "out", selection="random", seed=3)
    record = opened.record
    assert (record.source, record.kind, record.preprocess) == ("../arrays", "folder", "")
    assert (record.selection, record.seed) == ("random", 3)
    assert record.findings == tuple(map(str, opened.report.findings))
    assert len(record.digest) == 64


def test_the_digest_changes_with_any_sample_and_with_nothing_else(save_arrays: Save) -> None:
    folder = save_arrays(numbered(40))
    before = ONE.open(folder).record.digest
    assert ONE.open(folder).record.digest == before
    (folder / "notes.txt").write_text("of no account")
    assert ONE.open(folder).record.digest == before
    used = numbers(ONE.open(folder))[3]
    np.save(folder / f"{used:02}.npy", normal(1, 6))
    assert ONE.open(folder).record.digest != before


def test_the_digest_depends_on_order_names_and_preprocessing(photos: Path) -> None:
    def digest(name: str, preprocess: str) -> str:
        opened = Asked(f"{name}:float32[batch,3,40,48]").open(photos, preprocess=preprocess)
        return opened.record.digest

    digests = {digest("x", "unit"), digest("y", "unit"), digest("x", "unit,channels=bgr")}
    assert len(digests) == 3


@pytest.mark.parametrize(
    "change", [lambda path: np.save(path, normal(1, 6)), lambda path: path.unlink()]
)
def test_a_file_that_changes_in_use_is_rejected_by_name(
    save_arrays: Save, change: Callable[[Path], object]
) -> None:
    folder = save_arrays(numbered(20))
    opened = ONE.open(folder, hold_out=0)
    change(folder / "11.npy")
    with pytest.raises(UsageError, check=has_code(ErrorCode.SAMPLES_CHANGED, naming="11.npy")):
        list(opened)


def test_samples_are_stacked_where_the_batch_is_fixed(save_arrays: Save) -> None:
    asked = Asked("x:float32[8,6]")
    opened = asked.open(save_arrays([array[0] for array in numbered(83)]), hold_out=8)
    assert {feed["x"].shape for feed in opened} == {(8, 6)}
    assert (len(opened), len(opened.held_out)) == (9, 1)
    assert (opened.record.used, opened.record.held_out) == (72, 8)
    assert needed(opened.report, FindingKind.LEFT_OVER).detail.startswith("3 ")
    assert numbers(opened)[:8] == list(range(8))


def test_fewer_samples_than_one_feed_takes_are_an_error(save_arrays: Save) -> None:
    asked = Asked("x:float32[8,6]")
    with pytest.raises(UsageError, match=r"5.*8") as caught:
        asked.open(save_arrays([array[0] for array in numbered(5)]))
    assert caught.value.code is ErrorCode.SAMPLES_UNFIT


def test_drawn_samples_are_marked() -> None:
    hooks = LoaderHooks(load=no_load, draw=lambda index: {"x": normal(1, 6, seed=index)})
    opened = ONE.open("random", hooks=hooks, samples=40, hold_out=10)
    assert (opened.record.kind, opened.record.source, len(opened)) == ("random", "random", 40)
    assert needed(opened.report, FindingKind.DRAWN).hint
    first, second = ([feed["x"] for feed in opened] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_bad_samples_are_never_fed(save_arrays: Save) -> None:
    arrays = numbered(40)
    arrays[5][0, 1] = np.nan
    with pytest.raises(UsageError) as refusal:
        ONE.open(save_arrays(arrays))
    assert "05.npy" in refusal.value.message
    assert "modelc calibrate" in refusal.value.hint


def test_progress_is_reported(save_arrays: Save) -> None:
    from modelc.calibration.calibration_set import survey_samples

    calls: list[tuple[int, int]] = []
    survey_samples(
        CalibrationOptions(source=str(save_arrays(numbered(12)))),
        ONE.signature,
        LoaderHooks(load=no_load, draw=no_draw),
        advance=lambda done, total: calls.append((done, total)),
    )
    assert calls == [(done, 12) for done in range(1, 13)]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"source": " "}, "source"),
        ({"samples": 0}, "calib-samples.* 0"),
        ({"selection": "frist"}, "frist"),
        ({"hold_out": -1}, "hold_out.* -1"),
        ({"seed": -1}, "seed.* -1"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], shown: str) -> None:
    with pytest.raises(UsageError, match=shown) as refusal:
        CalibrationOptions(**{"source": "calib", **options})
    assert refusal.value.hint
