"""Folders that travel by digest arrive whole, or not at all."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.core.records import FileRecord, is_as_recorded, record_of
from modelc.pipeline.cache.remote_files import RemoteFiles, blob_name, open_remote_files
from modelc.pipeline.cache.stored_folder import (
    StoredFolder,
    fetch_files,
    place_folder,
    replace_results,
    store_folder,
)
from modelc.pipeline.manifest_file import COMMIT_FOLDER, read_manifest, write_manifest

from ...reasons import has_code
from .conftest import record

# Brings a stored folder to an output folder again and again, until standard input is closed.
BRING = """
import contextlib, select, sys
from pathlib import Path
import msgspec
from modelc.core.errors import UsageError
from modelc.pipeline.cache.remote_files import open_remote_files
from modelc.pipeline.cache.stored_folder import StoredFolder, replace_results
folder = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=StoredFolder)
while not select.select([sys.stdin], [], [], 0.001)[0]:
    try:
        replace_results(folder, open_remote_files(sys.argv[2]), Path(sys.argv[3]))
    except UsageError as error:
        assert error.code == "folder-busy", error
"""


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


@pytest.mark.parametrize("name", [".modelc.commit/commit.json", "logs/.x", "../evil"])
def test_a_hidden_file_or_one_outside_is_refused(
    files: RemoteFiles, tmp_path: Path, name: str
) -> None:
    evil = StoredFolder(name="net", files=(FileRecord(name=name, size=0, sha256="0" * 64),))
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.UNSAFE_PATH)):
        place_folder(evil, files, tmp_path / "here")
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.UNSAFE_PATH)):
        replace_results(evil, files, tmp_path / "out")
    assert not (tmp_path / "here").exists()


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


def test_a_file_that_changes_while_it_is_stored_is_not_stored(
    files: RemoteFiles, tmp_path: Path
) -> None:
    path = tmp_path / "model.fake"
    path.write_bytes(b"before")
    known = record_of(path)
    path.write_bytes(b"after!")
    with pytest.raises(UsageError, check=has_code(ErrorCode.FILE_CHANGED)):
        files.put_blob(path, known)
    assert files.read(blob_name(known.sha256)) is None


@pytest.fixture
def writers(files: RemoteFiles, tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that bring results of one model to `out`, each those of another run."""
    found = []
    for letter in "ab":
        there = tmp_path / letter
        there.mkdir()
        for name in ("model.fake", "more.fake"):
            (there / name).write_bytes(letter.encode() * (1 << 16))
        manifest = record(there / "model.fake")
        (model,) = manifest.artifacts
        both = (*model.files, record_of(there / "more.fake"))
        write_manifest(replace(manifest, artifacts=(replace(model, files=both),)), there)
        place = tmp_path / f"{letter}.json"
        place.write_bytes(msgspec.json.encode(store_folder(there, "net", files)))
        command = [sys.executable, "-c", BRING, str(place), f"file://{tmp_path}/far"]
        found.append(subprocess.Popen([*command, str(tmp_path / "out")], stdin=subprocess.PIPE))
    yield found
    for one in found:
        one.communicate(b"")


def test_two_processes_that_bring_the_same_model_leave_no_mixture(
    writers: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Files fit the manifest, but while a commit is under way, which readers can see."""
    out, names = tmp_path / "out", ("model.fake", "more.fake")
    seen: set[str] = set()
    until = time.monotonic() + 1.0
    while time.monotonic() < until or len(seen) < 2:
        if not (out / "manifest.json").is_file():
            continue
        before, manifest = _look_at_manifest(out), read_manifest(out)
        digests = {hashlib.sha256((out / name).read_bytes()).hexdigest() for name in names}
        if before == _look_at_manifest(out) and not before[-1]:
            assert len(digests) == 1
            assert manifest is not None
            assert {one.sha256 for one in manifest.files} == digests
            seen |= digests
    for one in writers:
        one.communicate(b"")
        assert one.returncode == 0
    last = read_manifest(out)
    assert last is not None
    assert all(is_as_recorded(out / one.name, one) for one in last.files)
    assert {one.name for one in out.iterdir()} == {*names, "manifest.json"}


def _look_at_manifest(out: Path) -> tuple[int, int, bool]:
    found = (out / "manifest.json").stat()
    return found.st_ino, found.st_mtime_ns, (out / COMMIT_FOLDER).exists()


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
