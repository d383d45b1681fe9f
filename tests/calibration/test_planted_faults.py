"""Faults planted in calibration data, each caught by name, and the clean twin of each passing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modelc.calibration.calibration_report import CalibrationReport, FindingKind, SampleSeverity
from modelc.core.errors import ErrorCode, UsageError

from .conftest import Asked, found, judged_on, mask, needed, normal, normals, photo

IMAGE = "x:float32[batch=1..8,3,32,32]"
SMALL = "imagenet,resize=32,crop=32"
Save = Callable[[Sequence[np.ndarray]], Path]


def problems(report: CalibrationReport) -> list[str]:
    """Errors and warnings."""
    return [str(one) for one in report.findings if one.severity is not SampleSeverity.NOTE]


def normalised(folder: Path) -> np.ndarray:
    """A photo as the model was trained on: the sample that a user would give."""
    opened = Asked(IMAGE).open(folder, preprocess=SMALL)
    return next(iter(opened))["x"]


def test_clean_photos_have_no_problem(photos: Path) -> None:
    hooks = judged_on({"x": normalised(photos)})
    report = Asked(IMAGE).look(photos, preprocess=SMALL, hooks=hooks)
    assert (problems(report), report.exit_code, report.read) == ([], 0, 40)


def test_images_that_are_not_scaled_are_rejected_beside_the_users_own_samples(photos: Path) -> None:
    hooks = judged_on({"x": normalised(photos)})
    raw = "raw,resize=32x32"
    finding = needed(Asked(IMAGE).look(photos, preprocess=raw, hooks=hooks), FindingKind.FAR)
    assert "0..255" in finding.detail
    with pytest.raises(UsageError, match=r"0\.\.255") as caught:
        Asked(IMAGE).open(photos, preprocess=raw, hooks=hooks)
    assert caught.value.code is ErrorCode.SAMPLES_UNFIT


def test_images_without_mean_and_std_are_warned_of(photos: Path) -> None:
    hooks = judged_on({"x": normalised(photos)})
    report = Asked(IMAGE).look(photos, preprocess="unit,resize=32x32", hooks=hooks)
    finding = needed(report, FindingKind.RANGE)
    assert finding.severity is SampleSeverity.WARNING
    assert "0..1" in finding.detail
    assert report.exit_code == 0


def test_images_that_are_not_scaled_are_warned_of_without_samples_of_the_users(
    photos: Path,
) -> None:
    drawn = judged_on({"x": normal(4, 3, 32, 32)})
    hooks = type(drawn)(load=drawn.load, draw=drawn.draw, validation=drawn.validation, own=False)
    report = Asked(IMAGE).look(photos, preprocess="raw,resize=32x32", hooks=hooks)
    assert needed(report, FindingKind.RANGE).severity is SampleSeverity.WARNING
    clean = Asked(IMAGE).look(photos, preprocess="unit,resize=32x32", hooks=hooks)
    assert found(clean, FindingKind.RANGE) is None


@pytest.mark.parametrize(("steps", "kind"), [("unit", None), ("raw", FindingKind.FAR)])
def test_images_outside_the_declared_values_are_rejected(
    photos: Path, steps: str, kind: FindingKind | None
) -> None:
    asked = Asked("x:float32[batch=1..8,3,32,32]{0..1}")
    report = asked.look(photos, preprocess=f"{steps},resize=32x32")
    assert [one.kind for one in report.errors] == ([kind] if kind else [])


def test_ids_outside_the_declared_vocabulary_are_warned_of(save_arrays: Save) -> None:
    ids = [np.full((1, 4), value, dtype=np.int64) for value in range(40)]
    folder = save_arrays(ids)
    finding = needed(Asked("ids:int64[batch,4]{0..30}").look(folder), FindingKind.RANGE)
    assert "0..39" in finding.detail
    assert "0..30" in finding.detail
    assert not problems(Asked("ids:int64[batch,4]{0..39}").look(folder))


DEPTH = Image.fromarray(np.arange(40 * 48, dtype=np.uint16).reshape(40, 48) * 30)


@pytest.mark.parametrize(
    ("images", "shown"),
    [([mask(1), mask(2)], "P image"), ([mask(1).convert("L")], "L image"), ([DEPTH], "I;16")],
)
def test_images_unlike_photos_are_named(
    photos: Path, images: list[Image.Image], shown: str
) -> None:
    for number, image in enumerate(images):
        image.save(photos / f"07_{number}.png")
    finding = needed(Asked(IMAGE).look(photos, preprocess=SMALL), FindingKind.ODD_IMAGE)
    assert finding.files == tuple(f"07_{number}.png" for number in range(len(images)))
    assert shown in finding.detail


def test_a_folder_of_nothing_but_label_masks_is_warned_of(tmp_path: Path) -> None:
    for index in range(40):
        mask(index).save(tmp_path / f"{index:02}.png")
    finding = needed(Asked(IMAGE).look(tmp_path, preprocess=SMALL), FindingKind.ODD_IMAGE)
    assert "P image" in finding.detail


def test_paletted_photos_are_no_label_masks(photos: Path) -> None:
    photo(99).quantize(256).save(photos / "99.png")
    assert found(Asked(IMAGE).look(photos, preprocess=SMALL), FindingKind.ODD_IMAGE) is None


@pytest.mark.parametrize(("value", "told"), [(np.nan, "1 NaN"), (-np.inf, "1 Inf")])
def test_one_sample_that_is_not_finite_is_named_and_refused(
    save_arrays: Save, value: float, told: str
) -> None:
    arrays = normals(40, 1, 6)
    arrays[17][0, 3] = value
    folder = save_arrays(arrays)
    asked = Asked("x:float32[batch,6]")
    report = asked.look(folder)
    finding = needed(report, FindingKind.NON_FINITE)
    assert finding.files == ("17.npy",)
    assert told in finding.detail
    assert (report.exit_code, report.read, report.used + report.held_out) == (1, 40, 39)
    with pytest.raises(UsageError, match=r"17\.npy"):
        asked.open(folder)


def test_arrays_without_a_fault_pass(save_arrays: Save) -> None:
    report = Asked("x:float32[batch,6]").look(save_arrays(normals(40, 1, 6)))
    assert (problems(report), report.exit_code) == ([], 0)


def test_many_bad_files_are_one_finding_that_counts_them(save_arrays: Save) -> None:
    folder = save_arrays([np.full((1, 6), np.nan, dtype=np.float32)] * 20)
    finding = needed(Asked("x:float32[batch,6]").look(folder), FindingKind.NON_FINITE)
    assert (len(finding.files), finding.count) == (8, 20)
    assert str(finding).endswith("07.npy and 12 more")


@pytest.mark.parametrize(
    ("array", "shown"),
    [
        (normal(1, 7), "7"),
        (normal(1, 6, 1), "1x6x1"),
        (normal(0, 6), "0x6"),
    ],
)
def test_wrong_shapes_are_errors(save_arrays: Save, array: np.ndarray, shown: str) -> None:
    report = Asked("x:float32[batch,6]").look(save_arrays([*normals(40, 1, 6), array]))
    finding = needed(report, FindingKind.SHAPE)
    assert finding.files == ("40.npy",)
    assert shown in finding.detail


def test_a_size_outside_its_range_is_an_error(save_arrays: Save) -> None:
    asked = Asked("ids:float32[batch,seq=2..16]")
    folder = save_arrays([*normals(40, 1, 16), normal(1, 17)])
    assert "seq=17" in needed(asked.look(folder), FindingKind.SHAPE).detail


def test_inputs_that_disagree_on_a_shared_dim_are_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", ids=np.ones((1, 5), np.int64), mask=np.ones((1, 4), np.int64))
    report = Asked("ids:int64[batch,seq]", "mask:int64[batch,seq]").look(tmp_path)
    assert "mask" in needed(report, FindingKind.SHAPE).detail


@pytest.mark.parametrize(
    ("array", "wanted", "fits"),
    [
        (np.full((1, 2), 0.5, np.float64), "float32", True),
        (np.full((1, 2), 0.1, np.float64), "float32", True),
        (np.full((1, 2), 1e5, np.float32), "float16", False),
        (np.full((1, 2), 7, np.int32), "int64", True),
        (np.full((1, 2), 300, np.int64), "uint8", False),
        (np.full((1, 2), 2.5, np.float32), "int64", False),
        (np.full((1, 2), 2.0, np.float32), "int64", True),
        (np.full((1, 2), 2**40, np.int64), "int32", False),
        (np.full((1, 2), True), "int64", True),
        (np.array([["a", "b"]]), "float32", False),
    ],
)
def test_a_dtype_is_cast_only_where_no_value_changes(
    save_arrays: Save, array: np.ndarray, wanted: str, fits: bool
) -> None:
    report = Asked(f"x:{wanted}[batch,2]").look(save_arrays([array]))
    assert [one.kind for one in report.errors] == ([] if fits else [FindingKind.DTYPE])


def test_wrong_names_are_an_error_that_says_what_the_file_holds(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", image=normal(1, 6))
    finding = needed(Asked("x:float32[batch,6]").look(tmp_path), FindingKind.NAMES)
    assert finding.files == ("a.npz",)
    assert "image" in finding.detail


def test_constant_samples_and_copies_are_warned_of(save_arrays: Save) -> None:
    arrays = normals(40, 1, 6)
    arrays[3] = np.full((1, 6), 2.0, np.float32)
    arrays[9] = arrays[8]
    report = Asked("x:float32[batch,6]").look(save_arrays(arrays))
    assert needed(report, FindingKind.CONSTANT).files == ("03.npy",)
    duplicate = needed(report, FindingKind.DUPLICATE)
    assert duplicate.files == ("09.npy",)
    assert "08.npy" in duplicate.detail
    assert report.exit_code == 0


def test_a_mask_of_ones_is_not_called_constant(tmp_path: Path) -> None:
    for index in range(40):
        ids, ones = np.full((1, 4), index, np.int64), np.ones((1, 4), np.int64)
        np.savez(tmp_path / f"{index}.npz", ids=ids, mask=ones)
    report = Asked("ids:int64[batch,seq]", "mask:int64[batch,seq]").look(tmp_path)
    assert not problems(report)


@pytest.mark.parametrize(("count", "warned"), [(31, True), (32, False)])
def test_too_few_samples_are_warned_of(save_arrays: Save, count: int, warned: bool) -> None:
    report = Asked("x:float32[batch,6]").look(save_arrays(normals(count, 1, 6)))
    assert (found(report, FindingKind.FEW) is not None) == warned


@pytest.mark.parametrize("still", [False, True])
def test_a_channel_that_never_changes_is_warned_of(save_arrays: Save, still: bool) -> None:
    arrays = normals(40, 1, 3, 4, 4)
    for array in arrays if still else []:
        array[:, 2] = 0.5
    report = Asked("x:float32[batch,3,4,4]").look(save_arrays(arrays))
    details = [one.detail for one in report.findings if one.kind is FindingKind.CHANNEL]
    assert len(details) == still
    assert all("channel 2" in detail for detail in details)


def test_the_first_samples_of_one_class_are_warned_of(tmp_path: Path) -> None:
    for label in "abcd":
        (tmp_path / label).mkdir()
        for index in range(20):
            np.save(
                tmp_path / label / f"{index:02}.npy", normal(1, 6, seed=ord(label) * 99 + index)
            )
    asked = Asked("x:float32[batch,6]")
    finding = needed(asked.look(tmp_path, samples=16, hold_out=4), FindingKind.ONE_FOLDER)
    assert re.findall(r"\d+", finding.detail) == ["16", "80", "1", "4"]
    chosen = asked.look(tmp_path, samples=16, hold_out=4, selection="random")
    assert found(chosen, FindingKind.ONE_FOLDER) is None
