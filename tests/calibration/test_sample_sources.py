"""Every kind of calibration data gives the samples that were saved."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from modelc.calibration.calibration_report import FindingKind
from modelc.core.errors import ErrorCode, UsageError

from .conftest import Asked, found, needed, normal, normals, photo

ONE, TWO = ("x:float32[batch,6]",), ("ids:int64[batch,seq]", "mask:int64[batch,seq]")


def fed(asked: Asked, source: object, preprocess: str | None = None) -> list[dict[str, np.ndarray]]:
    """Every feed, nothing held out."""
    opened = asked.open(source, hold_out=0, preprocess=preprocess)
    return [dict(feed) for feed in opened]


def save_npz(path: Path, array: np.ndarray) -> None:
    np.savez(path.with_suffix(".npz"), x=array)


def save_positional(path: Path, array: np.ndarray) -> None:
    np.savez(path.with_suffix(".npz"), array)


def save_npy(path: Path, array: np.ndarray) -> None:
    np.save(path.with_suffix(".npy"), array)


def save_pt(path: Path, array: np.ndarray) -> None:
    torch.save(torch.from_numpy(array), path.with_suffix(".pt"))


def save_pt_tuple(path: Path, array: np.ndarray) -> None:
    torch.save((torch.from_numpy(array), torch.tensor(3)), path.with_suffix(".pt"))


def save_pt_dict(path: Path, array: np.ndarray) -> None:
    torch.save({"x": torch.from_numpy(array), "label": 3}, path.with_suffix(".pth"))


def save_safetensors(path: Path, array: np.ndarray) -> None:
    save_file({"x": torch.from_numpy(array)}, path.with_suffix(".safetensors"))


SAVERS = [
    save_npy, save_npz, save_positional, save_pt, save_pt_tuple, save_pt_dict, save_safetensors,
]  # fmt: skip


@pytest.mark.parametrize("save", SAVERS)
@pytest.mark.parametrize("batched", [True, False])
def test_each_format_gives_what_was_saved(
    tmp_path: Path, save: Callable[[Path, np.ndarray], None], batched: bool
) -> None:
    arrays = normals(3, 1, 6)
    for index, array in enumerate(arrays):
        save(tmp_path / f"{index}", array if batched else array[0])
    feeds = fed(Asked(*ONE), tmp_path)
    np.testing.assert_array_equal(np.stack([feed["x"] for feed in feeds]), np.stack(arrays))


@pytest.mark.parametrize("save", SAVERS)
def test_a_file_of_many_samples_is_cut_into_them(
    tmp_path: Path, save: Callable[[Path, np.ndarray], None]
) -> None:
    array = normal(50, 6)
    save(tmp_path / "all", array)
    feeds = fed(Asked("x:float32[batch=1..8,6]"), tmp_path)
    assert {feed["x"].shape for feed in feeds} == {(1, 6)}
    np.testing.assert_array_equal(np.concatenate([feed["x"] for feed in feeds]), array)


def test_a_single_file_is_a_source(tmp_path: Path) -> None:
    np.save(tmp_path / "all.npy", normal(50, 6))
    opened = Asked(*ONE).open(tmp_path / "all.npy", samples=30, hold_out=5)
    assert (len(opened), opened.record.found, opened.record.kind) == (30, 50, "folder")


def test_bfloat16_comes_as_float32(tmp_path: Path) -> None:
    save_file({"x": torch.ones(1, 6, dtype=torch.bfloat16)}, tmp_path / "a.safetensors")
    (feed,) = fed(Asked(*ONE), tmp_path)
    assert feed["x"].dtype == np.float32


def test_inputs_go_by_name_whatever_their_order_in_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", label=1, mask=np.ones(5, np.int64), ids=np.arange(5))
    asked = Asked(*TWO)
    (feed,) = fed(asked, tmp_path)
    assert list(feed) == ["ids", "mask"]
    np.testing.assert_array_equal(feed["ids"], np.arange(5)[None])
    assert "label (1)" in needed(asked.look(tmp_path), FindingKind.SURPLUS).detail


def test_nested_inputs_go_by_dotted_names(tmp_path: Path) -> None:
    torch.save({"inputs": {"image": torch.ones(1, 2)}}, tmp_path / "a.pt")
    (feed,) = fed(Asked("inputs.image:float32[batch,2]"), tmp_path)
    assert feed["inputs.image"].shape == (1, 2)


def test_npy_is_rejected_where_there_are_two_inputs(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((1, 5), np.int64))
    finding = needed(Asked(*TWO).look(tmp_path), FindingKind.NAMES)
    assert finding.files == ("a.npy",)
    assert "ids, mask" in finding.detail


def test_pickles_are_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (marker,)  # type: ignore[return-value]  # what pickle calls

    torch.save({"x": Bomb()}, tmp_path / "a.pt")
    np.save(tmp_path / "b.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "c.npz", x=np.array([Bomb()], dtype=object))
    for name in ("a.pt", "b.npy", "c.npz"):
        assert needed(Asked(*ONE).look(tmp_path / name), FindingKind.UNREADABLE).files == (name,)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.pt", "a.safetensors", "a.png"])
def test_a_link_to_nowhere_is_unreadable(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(tmp_path / "gone")
    report = Asked("x:float32[batch,3,4,4]").look(tmp_path)
    assert needed(report, FindingKind.UNREADABLE).files == (name,)


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.pt", "a.safetensors", "a.png"])
@pytest.mark.parametrize("content", [b"", b"no such file format", b"PK\x03\x04" + bytes(40)])
def test_garbage_is_unreadable_in_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    finding = needed(Asked("x:float32[batch,3,4,4]").look(tmp_path), FindingKind.UNREADABLE)
    assert finding.files == (name,)
    assert "\n" not in finding.detail


def test_image_folders_are_read_in_sorted_order_and_labels_ignored(tmp_path: Path) -> None:
    for index, place in enumerate(["b/1.png", "a/2.JPG", "a/10.png", ".cache/3.png"]):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        photo(index).save(tmp_path / place)
    (tmp_path / "labels.txt").write_text("1\n")
    (tmp_path / "a" / "2.json").write_text("{}")
    (tmp_path / ".hidden.png").write_bytes(b"")
    (tmp_path / "again").symlink_to(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path)
    report = Asked("x:float32[batch,3,40,48]").look(tmp_path)
    assert (report.read, report.exit_code) == (3, 0)
    assert needed(report, FindingKind.SKIPPED).detail.endswith("1 hidden, 1 .txt, 1 .json")


def test_images_without_preprocessing_follow_the_signature_and_it_is_noted(tmp_path: Path) -> None:
    gray = Image.fromarray(np.full((16, 16), 255, np.uint8))
    gray.save(tmp_path / "a.png")
    asked = Asked("x:float32[batch=1..8,8,8,1]")
    (feed,) = fed(asked, tmp_path)
    np.testing.assert_array_equal(feed["x"], np.ones((1, 8, 8, 1), np.float32))
    told = needed(asked.look(tmp_path), FindingKind.ASSUMED).detail
    assert "resize=8x8,layout=NHWC,channels=gray,scale=1/255" in told


def test_images_for_a_byte_input_are_not_scaled(tmp_path: Path) -> None:
    photo(1).save(tmp_path / "a.png")
    (feed,) = fed(Asked("x:uint8[3,40,48]"), tmp_path)
    np.testing.assert_array_equal(feed["x"], np.asarray(photo(1)).transpose(2, 0, 1))


@pytest.mark.parametrize("inputs", [("x:float32[batch,6]",), TWO])
def test_images_for_other_inputs_are_rejected(tmp_path: Path, inputs: tuple[str, ...]) -> None:
    photo(1).save(tmp_path / "a.png")
    with pytest.raises(UsageError, match="image"):
        Asked(*inputs).look(tmp_path)


def test_the_kind_with_the_most_files_is_used_and_the_rest_is_noted(tmp_path: Path) -> None:
    photo(1).save(tmp_path / "preview.png")
    for index, array in enumerate(normals(3, 1, 6)):
        np.save(tmp_path / f"{index}.npy", array)
    report = Asked(*ONE).look(tmp_path)
    assert report.read == 3
    assert needed(report, FindingKind.MIXED).detail.startswith("1 images")


def test_preprocessing_of_arrays_is_noted_to_have_no_effect(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", normal(1, 6))
    report = Asked(*ONE).look(tmp_path, preprocess="imagenet")
    assert "--preprocess" in needed(report, FindingKind.ASSUMED).detail


def test_a_folder_without_samples_is_an_error_that_counts_what_is_there(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.csv"):
        (tmp_path / name).write_text("")
    with pytest.raises(UsageError, match=r"2 \.txt, 1 \.csv") as refusal:
        Asked(*ONE).look(tmp_path)
    assert refusal.value.code is ErrorCode.NO_SAMPLES
    assert ".npz" in refusal.value.hint


def test_a_folder_that_is_not_there_is_an_error_with_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "calib").mkdir()
    with pytest.raises(UsageError, match="calbi") as refusal:
        Asked(*ONE).look(tmp_path / "calbi")
    assert refusal.value.code is ErrorCode.NOT_FOUND
    assert "calib" in refusal.value.hint


def png(image: Image.Image) -> bytes:
    blob = io.BytesIO()
    image.save(blob, "PNG")
    return blob.getvalue()


def npy(array: np.ndarray) -> bytes:
    blob = io.BytesIO()
    np.save(blob, array)
    return blob.getvalue()


def shard(path: Path, members: Mapping[str, bytes] | Iterable[tuple[str, bytes]]) -> Path:
    pairs = members.items() if isinstance(members, Mapping) else members
    with tarfile.open(path, "w") as archive:
        for name, data in pairs:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def test_shards_are_grouped_by_key_over_several_files(tmp_path: Path) -> None:
    for part in range(2):
        members: dict[str, bytes] = {}
        for index in range(3):
            key = f"train/{part}{index}"
            members |= {f"{key}.png": png(photo(10 * part + index)), f"{key}.cls": b"3"}
        shard(tmp_path / f"s{part}.tar", members)
    asked = Asked("x:uint8[batch,3,40,48]")
    feeds = fed(asked, tmp_path, preprocess="raw")
    wanted = [np.asarray(photo(seed)).transpose(2, 0, 1) for seed in (0, 1, 2, 10, 11, 12)]
    np.testing.assert_array_equal(np.concatenate([feed["x"] for feed in feeds]), np.stack(wanted))
    report = asked.look(tmp_path, preprocess="raw")
    assert (report.kind, report.found, report.skipped) == ("shards", 6, {".cls": 6})


def test_members_that_name_an_input_belong_to_it(tmp_path: Path) -> None:
    ids, ones = np.arange(5), np.ones(5, np.int64)
    path = shard(tmp_path / "a.tar", {"7.mask.npy": npy(ones), "7.ids.npy": npy(ids)})
    (feed,) = fed(Asked(*TWO), path)
    np.testing.assert_array_equal(feed["ids"][0], ids)
    np.testing.assert_array_equal(feed["mask"][0], ones)


def test_an_image_and_a_named_member_make_one_sample(tmp_path: Path) -> None:
    members = {"7.png": png(photo(1)), "7.scale.npy": npy(np.array([2.0], np.float32))}
    asked = Asked("image:uint8[batch,3,40,48]", "scale:float32[batch,1]")
    (feed,) = fed(asked, shard(tmp_path / "a.tar", members), preprocess="raw")
    assert {name: array.shape for name, array in feed.items()} == {
        "image": (1, 3, 40, 48),
        "scale": (1, 1),
    }


def test_a_named_mask_in_a_shard_is_ignored(tmp_path: Path) -> None:
    members = {"7.png": png(photo(1)), "7.seg.png": png(photo(2))}
    report = Asked("x:uint8[batch,3,40,48]").look(shard(tmp_path / "a.tar", members))
    assert (report.exit_code, report.skipped) == (0, {".seg.png": 1})


def test_two_images_of_one_key_are_an_error(tmp_path: Path) -> None:
    members = {"7.jpg": png(photo(1)), "7.png": png(photo(2))}
    report = Asked("x:uint8[batch,3,40,48]").look(shard(tmp_path / "a.tar", members))
    assert "7.jpg, 7.png" in needed(report, FindingKind.NAMES).detail


def test_nothing_is_written_where_a_shard_says(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    path = shard(
        inside / "a.tar", {"../../evil.npy": npy(normal(1, 6)), "/abs.npy": npy(normal(6))}
    )
    before = sorted(tmp_path.rglob("*"))
    assert len(fed(Asked(*ONE), path)) == 2
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("save", SAVERS)
def test_every_format_is_read_in_a_shard(
    tmp_path: Path, save: Callable[[Path, np.ndarray], None]
) -> None:
    array = normal(1, 6)
    save(tmp_path / "a", array)
    (path,) = tmp_path.iterdir()
    (feed,) = fed(Asked(*ONE), shard(tmp_path / "s.tar", {path.name: path.read_bytes()}))
    np.testing.assert_array_equal(feed["x"], array)


def test_a_cut_shard_is_named_and_what_is_before_the_cut_is_read(tmp_path: Path) -> None:
    members = [(f"{index}.npy", npy(array)) for index, array in enumerate(normals(4, 1, 6))]
    path = shard(tmp_path / "a.tar", members)
    path.write_bytes(path.read_bytes()[:3200])
    report = Asked(*ONE).look(path)
    finding = needed(report, FindingKind.UNREADABLE)
    assert any(name.startswith("a.tar") for name in finding.files)
    assert report.used + report.held_out >= 2


def test_a_compressed_archive_is_rejected_by_name(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("0.npy"))
    finding = needed(Asked(*ONE).look(tmp_path), FindingKind.UNREADABLE)
    assert finding.files == ("a.tar",)


def test_samples_without_a_fault_say_nothing_of_shards(tmp_path: Path) -> None:
    members = {f"{index:02}.npy": npy(array) for index, array in enumerate(normals(40, 1, 6))}
    report = Asked(*ONE).look(shard(tmp_path / "a.tar", members))
    assert (report.findings, report.read) == ((), 40)
    assert found(report, FindingKind.SKIPPED) is None
