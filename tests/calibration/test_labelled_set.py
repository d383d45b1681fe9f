"""Labelled data in every form, and what is wrong with it in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from modelc.calibration.calibration_options import LabelledOptions
from modelc.calibration.labelled_set import LabelledSet, open_labelled_set
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

X = "x:float32[batch=1..8,1,4,4]"
HELD_OUT = Path(__file__).parents[2] / "sample_models" / "digits_heldout.npz"


def no_load(spec: str) -> object:
    raise AssertionError(f"nothing was to be imported, but {spec}")


def opened(
    source: object,
    *inputs: str,
    label: str | None = None,
    load: Callable[[str], object] = no_load,
) -> LabelledSet:
    signature = merge_inputs([parse_input(text) for text in inputs or (X,)], {})
    return open_labelled_set(LabelledOptions(source=str(source), label=label), signature, load)


def read(found: LabelledSet) -> dict[str, float]:
    """Every sample's name with its label."""
    with found:
        return {
            name: float(label.reshape(-1)[0])
            for batch in found
            for name, label in zip(batch.names, batch.labels, strict=True)
        }


def refusal(source: object, *inputs: str, **how: object) -> UsageError:
    """Return the error, which has one line and a hint."""
    with pytest.raises(UsageError) as caught:
        read(opened(source, *inputs, **how))  # type: ignore[arg-type]  # label or load
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value


def picture(path: Path, ink: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 4), ink, np.uint8)).save(path)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Two pictures a class: their ink tells which."""
    for ink, name in enumerate(("cat", "dog", "eel")):
        picture(tmp_path / name / "a.png", 50 * ink)
        picture(tmp_path / name / "b.png", 50 * ink + 1)
    return tmp_path


def rows(count: int) -> NDArray[np.float32]:
    """Sample i is all i."""
    return np.arange(count, dtype=np.float32)[:, None, None, None] * np.ones((1, 1, 4, 4), "f")


def test_a_folder_is_a_class_in_the_order_of_names(folders: Path) -> None:
    found = opened(folders)
    assert read(found) == {
        "cat/a.png": 0, "cat/b.png": 0, "dog/a.png": 1, "dog/b.png": 1,
        "eel/a.png": 2, "eel/b.png": 2,
    }  # fmt: skip
    assert found.classes == ("cat", "dog", "eel")


def test_a_pictures_label_stays_with_its_pixels(folders: Path) -> None:
    with opened(folders) as found:
        batch = next(iter(found))
        pixels = batch.feed["x"][:, 0, 0, 0] * 255
    assert batch.labels.tolist() == [round(float(ink)) // 50 for ink in pixels]


def test_classes_txt_says_another_order_and_classes_without_samples(folders: Path) -> None:
    (folders / "classes.txt").write_text("eel\nfox\ncat\ndog\n")
    found = opened(folders)
    assert read(found)["eel/a.png"] == 0
    assert read(found)["cat/a.png"] == 2
    assert found.classes == ("eel", "fox", "cat", "dog")


def test_a_folder_that_is_no_reported_class_is_rejected(folders: Path) -> None:
    (folders / "classes.txt").write_text("cat\ndog\n")
    error = refusal(folders)
    assert error.code is ErrorCode.UNKNOWN_CLASS
    assert "eel" in error.message


def test_numbered_folders_of_unclear_order_are_rejected(tmp_path: Path) -> None:
    for name in range(11):
        picture(tmp_path / str(name) / "a.png", name)
    assert refusal(tmp_path).code is ErrorCode.CLASS_ORDER
    (tmp_path / "classes.txt").write_text("\n".join(map(str, range(11))))
    assert read(opened(tmp_path))["10/a.png"] == 10


def test_a_picture_beside_class_folders_has_no_label(folders: Path) -> None:
    picture(folders / "stray.png", 3)
    error = refusal(folders)
    assert error.code is ErrorCode.NO_LABEL
    assert "stray.png" in error.message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.csv", "file,label\ncat/a.png,2\ndog/b.png,0\n"),
        ("labels.csv", "cat/a.png,2\ndog/b.png,0\n"),
        ("labels.txt", "cat/a.png 2\ndog/b.png 0\n"),
        ("labels.tsv", "\ufefffile\tlabel\ncat/a.png\t2\n\ndog/b.png\t0\n"),
    ],
)
def test_a_list_says_files_and_labels(folders: Path, name: str, text: str) -> None:
    (folders / name).write_text(text, encoding="utf-8")
    found = opened(folders)
    assert read(found) == {"cat/a.png": 2, "dog/b.png": 0}
    assert "4" in found.notes[-1]
    assert name in found.notes[-1]


def test_a_list_may_name_classes_once_their_order_is_reported(folders: Path) -> None:
    (folders / "labels.csv").write_text("cat/a.png,dog\n")
    error = refusal(folders)
    assert error.code is ErrorCode.UNKNOWN_CLASS
    assert "'dog'" in error.message
    (folders / "classes.txt").write_text("cat\ndog\neel\n")
    assert read(opened(folders)) == {"cat/a.png": 1}


def test_a_list_may_hold_several_numbers_a_file(folders: Path) -> None:
    (folders / "labels.csv").write_text("file,label\ncat/a.png,0.5,2\n")
    with opened(folders) as found:
        assert next(iter(found)).labels.tolist() == [[0.5, 2.0]]


@pytest.mark.parametrize(
    ("text", "code", "shown"),
    [
        ("cat/z.png,1\n", ErrorCode.NOT_FOUND, "line 1"),
        ("cat/a.png\n", ErrorCode.NO_LABEL, "line 1"),
        ("cat/a.png,1\ncat/a.png,2\n", None, "line 2"),
        ("cat/a.png,nan\n", ErrorCode.BAD_LABEL, "line 1"),
        ("", None, "empty"),
        ("labels.csv,1\n", None, "labels.csv is"),
    ],
)
def test_a_bad_list_names_its_line(
    folders: Path, text: str, code: ErrorCode | None, shown: str
) -> None:
    (folders / "labels.csv").write_text(text)
    error = refusal(folders)
    assert error.code is code
    assert shown in error.message


@pytest.mark.parametrize("name", ["label", "labels", "y", "target", "targets"])
def test_an_array_file_holds_labels_under_a_usual_name(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "a.npz", **{"x": rows(3), name: np.array([7, 8, 9])})  # type: ignore[arg-type]  # arrays
    assert read(opened(tmp_path / "a.npz")) == {
        "a.npz row 0": 7, "a.npz row 1": 8, "a.npz row 2": 9
    }  # fmt: skip


def test_a_label_of_another_name_is_named_by_the_user(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=rows(2), digit=np.array([4, 5]))
    error = refusal(tmp_path)
    assert error.code is ErrorCode.NO_LABEL
    assert "x, digit" in error.message
    assert list(read(opened(tmp_path, label="digit")).values()) == [4, 5]
    assert refusal(tmp_path, label="digits").code is ErrorCode.NO_LABEL


def test_an_input_called_y_is_no_label(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=rows(2), label=np.array([4, 5]))
    assert list(read(opened(tmp_path, X.replace("x:", "y:"))).values()) == [4, 5]


def test_safetensors_and_torch_files_hold_labels_too(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    images, labels = torch.from_numpy(rows(3)), torch.tensor([3, 1, 2])
    save_file({"x": images, "labels": labels}, tmp_path / "a.safetensors")
    torch.save((images, labels), tmp_path / "b.pt")
    expected = [3, 1, 2]
    assert list(read(opened(tmp_path / "a.safetensors")).values()) == expected
    assert list(read(opened(tmp_path / "b.pt")).values()) == expected


def test_npy_files_of_one_folder_belong_together(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows(9))
    np.save(tmp_path / "y.npy", np.arange(9))
    assert list(read(opened(tmp_path)).values()) == list(range(9))


def test_arrays_in_class_folders_have_their_folders_class(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "0.npz", x=rows(2))
    assert list(read(opened(tmp_path)).values()) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.array([1, 2]), "3 samples and 2 labels"),
        (np.array(1), "3 samples and 1 label"),
        (np.array(["cat", "dog", "eel"]), "'cat'"),
        (np.array([1.0, np.nan, 2.0]), "1 of 3"),
        (np.array([1j, 2j, 3j]), "complex128"),
    ],
)
def test_bad_labels_are_reported_with_their_file(
    tmp_path: Path, labels: NDArray[np.generic], words: str
) -> None:
    np.savez(tmp_path / "a.npz", x=rows(3), label=labels)
    error = refusal(tmp_path)
    assert error.code is ErrorCode.BAD_LABEL
    assert "a.npz" in error.message
    assert words in error.message


def test_two_labels_are_one_too_many(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=rows(1), label=np.array([1]), y=np.array([2]))
    assert refusal(tmp_path).code is ErrorCode.SEVERAL_LABELS


def test_what_does_not_fit_the_input_is_reported(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 1, 5, 4), "f"), label=np.array([1, 2]))
    assert "a.npz x" in refusal(tmp_path).message


@pytest.mark.parametrize(
    ("name", "code"), [("none", ErrorCode.NOT_FOUND), ("x.tar", ErrorCode.NO_LABEL)]
)
def test_what_holds_no_labels_is_rejected(tmp_path: Path, name: str, code: ErrorCode) -> None:
    if name == "x.tar":
        (tmp_path / name).write_bytes(b"\0" * 1024)
    assert refusal(tmp_path / name).code is code


@pytest.mark.parametrize(
    "items",
    [
        [(rows(3), np.array([5, 6, 7]))],
        [(row, label) for row, label in zip(rows(3), (5, 6, 7), strict=True)],
        [{"x": rows(3), "target": [5, 6, 7]}],
        [[{"x": rows(3)}, np.array([5, 6, 7])]],
    ],
)
def test_a_loader_yields_pairs_or_dicts(items: list[object]) -> None:
    assert list(read(opened("m:loader", load=lambda _: items)).values()) == [5, 6, 7]


def test_a_loader_that_ends_is_read_again_from_what_it_gave() -> None:
    def once() -> Iterator[object]:
        yield from ((row, number) for number, row in enumerate(rows(5)))

    with opened("m:once", load=lambda _: once()) as found:
        first, second = ([b.digest for b in found] for _ in range(2))
    assert first == second
    assert len(first) == 2


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ((rows(1), "cat"), ErrorCode.BAD_LABEL),
        ((rows(1), 1, "path"), ErrorCode.BAD_LABEL),
        (rows(1), ErrorCode.NO_LABEL),
        ({"x": rows(1)}, ErrorCode.NO_LABEL),
        ({"label": 1}, None),
    ],
)
def test_a_bad_item_of_a_loader_is_reported(item: object, code: ErrorCode | None) -> None:
    error = refusal("m:loader", load=lambda _: [item])
    assert error.code is code
    assert "m:loader item 0" in error.message


def test_a_loader_that_raises_is_reported() -> None:
    def broken() -> Iterator[object]:
        yield rows(1), 1
        raise KeyError("lost")

    error = refusal("m:broken", load=lambda _: broken)
    assert error.code is ErrorCode.LOADER_FAILED
    assert "KeyError" in error.message


def test_samples_are_fed_at_the_opt_size() -> None:
    with opened(HELD_OUT, "x:float32[batch=1..8,1,8,8]") as found:
        sizes = [len(batch.names) for batch in found]
    assert (set(sizes[:-1]), sum(sizes)) == ({4}, 450)


def test_a_fixed_batch_is_filled_up_and_the_filling_does_not_count(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=rows(10), y=np.arange(10))
    with opened(tmp_path, "x:float32[4,1,4,4]") as found:
        batches = list(found)
    assert [batch.feed["x"].shape[0] for batch in batches] == [4, 4, 4]
    assert [len(batch.names) for batch in batches] == [4, 4, 2]
    assert np.concatenate([batch.labels for batch in batches]).tolist() == list(range(10))
    assert batches[2].feed["x"][:, 0, 0, 0].tolist() == [8, 9, 9, 9]


def test_samples_of_other_sizes_are_not_put_together() -> None:
    items = [(np.zeros((1, size), np.int64), size) for size in (3, 3, 5, 3)]
    with opened("m:l", "ids:int64[batch=1..4,seq=2..8]", load=lambda _: items) as found:
        assert [batch.feed["ids"].shape for batch in found] == [(2, 3), (1, 5), (1, 3)]


def test_a_label_may_be_an_array_a_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=rows(6), target=np.arange(12.0).reshape(6, 2))
    with opened(tmp_path) as found:
        assert next(iter(found)).labels.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_memory_does_not_grow_with_the_samples() -> None:
    import tracemalloc

    def peak(count: int) -> int:
        items = ((np.zeros((1, 256, 256), "f"), 0) for _ in range(count))
        found = opened("m:l", "x:float32[batch=1..8,1,256,256]", load=lambda _: items)
        tracemalloc.start()
        assert sum(len(batch.names) for batch in found) == count
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        found.close()
        return most

    assert peak(64) < 1.5 * peak(8)
