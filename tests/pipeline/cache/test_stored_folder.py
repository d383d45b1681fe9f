"""Folders that travel by digest arrive whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.core.records import FileRecord
from modelc.pipeline.cache.remote_files import RemoteFiles, blob_name, open_remote_files
from modelc.pipeline.cache.stored_folder import (
    StoredFolder,
    fetch_files,
    is_inside,
    place_folder,
    replace_results,
    store_folder,
)
from modelc.pipeline.manifest_file import read_manifest, write_manifest

from ...reasons import has_code
from .conftest import record


@pytest.fixture
def files(tmp_path: Path) -> RemoteFiles:
    return open_remote_files(f"file://{tmp_path}/far")


@pytest.fixture
def stored(tmp_path: Path, files: RemoteFiles) -> StoredFolder:
    """An output folder of a run on another host, as it was stored."""
    there = tmp_path / "there"
    (there / "logs").mkdir(parents=True)
    (there / "model.fake").write_bytes(b"new weights")
    (there / "logs" / "x.log").write_text("said")
    (there / ".modelc.lock").write_text("")
    write_manifest(record(there / "model.fake"), there)
    return store_folder(there, "net", files)


def test_hidden_files_stay(stored: StoredFolder) -> None:
    assert [one.name for one in stored.files] == ["logs/x.log", "manifest.json", "model.fake"]


def test_a_damaged_file_is_refused_and_no_folder_is_left(
    stored: StoredFolder, files: RemoteFiles, tmp_path: Path
) -> None:
    digest = stored.files[-1].sha256
    files.write(blob_name(digest), b"torn")
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.CORRUPT_FILE)):
        place_folder(stored, files, tmp_path / "here" / "net")
    assert list((tmp_path / "here").iterdir()) == []


def test_a_name_that_leads_outside_is_refused(files: RemoteFiles, tmp_path: Path) -> None:
    evil = FileRecord(name="../evil", size=0, sha256="0" * 64)
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.UNSAFE_PATH)):
        fetch_files(StoredFolder(name="net", files=(evil,)), files, tmp_path / "here")


def test_a_digest_that_is_a_path_reads_and_removes_nothing(
    files: RemoteFiles, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.write_bytes(b"1")
    files.write("blobs/x", b"")
    evil = FileRecord(name="a", size=0, sha256="../private")
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.CORRUPT_FILE)):
        fetch_files(StoredFolder(name="net", files=(evil,)), files, tmp_path / "here")
    assert private.read_bytes() == b"1"
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("name", ["", "/a", "a/../b", "C:\\a", "..\\a", "a\0b"])
def test_these_names_are_not_inside(name: str) -> None:
    assert not is_inside(name)


def test_results_replace_those_of_before_in_one_change(
    stored: StoredFolder, files: RemoteFiles, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.fake").write_bytes(b"old weights")
    (out / "notes.txt").write_text("of the user")
    write_manifest(record(out / "old.fake"), out)
    manifest = replace_results(stored, files, out)
    assert manifest == read_manifest(out)
    assert (out / "model.fake").read_bytes() == b"new weights"
    assert (out / "logs" / "x.log").read_text() == "said"
    names = {path.name for path in out.iterdir()}
    assert names == {"model.fake", "manifest.json", "logs", "notes.txt"}


def test_a_file_of_the_user_in_the_way_is_an_error(
    stored: StoredFolder, files: RemoteFiles, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.fake").write_bytes(b"of the user")
    with pytest.raises(UsageError, check=has_code(ErrorCode.FILE_EXISTS)):
        replace_results(stored, files, out)
    assert (out / "model.fake").read_bytes() == b"of the user"


def test_without_a_manifest_logs_come_alone(files: RemoteFiles, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "logs").mkdir(parents=True)
    (there / "logs" / "x.log").write_text("said")
    (there / "half").write_text("half")
    out = tmp_path / "out"
    out.mkdir()
    assert replace_results(store_folder(there, "net", files), files, out) is None
    found = [path.name for path in out.rglob("*") if path.is_file()]
    assert found == ["x.log"]
