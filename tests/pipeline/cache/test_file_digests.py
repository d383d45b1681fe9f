"""A digest is cached by the file's stat data, unless those may be too coarse."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from modelc.core.records import sha256_of
from modelc.pipeline.cache.file_digests import DIGEST_FILE, FileDigests, first_changed

LATER = 10 * 10**9


def later() -> int:
    """A clock by which every file of the test is old."""
    return time.time_ns() + LATER


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "w.bin").write_bytes(b"weights")
    return tmp_path / "w.bin"


def falsify(cache: Path) -> None:
    """Replace the digest in the database."""
    import sqlite3

    database = sqlite3.connect(cache / DIGEST_FILE)
    with database:
        assert database.execute("UPDATE digest SET sha256 = 'remembered'").rowcount == 1
    database.close()


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, file: Path) -> None:
    with FileDigests(tmp_path / "cache", now=later) as digests:
        assert digests.of(file) == sha256_of(file)
    falsify(tmp_path / "cache")
    with FileDigests(tmp_path / "cache", now=later) as digests:
        assert digests.of(file) == "remembered"


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path, file: Path) -> None:
    with FileDigests(tmp_path / "cache") as digests:
        digests.of(file)
        before = file.stat()
        file.write_bytes(b"WEIGHTS")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert digests.of(file) == sha256_of(file)
    with pytest.raises(AssertionError):  # no row in the database
        falsify(tmp_path / "cache")


@pytest.mark.parametrize("how", ["written", "replaced"])
def test_a_changed_file_is_read_again(tmp_path: Path, file: Path, how: str) -> None:
    with FileDigests(tmp_path / "cache", now=later) as digests:
        digests.of(file)
    before = file.stat()
    if how == "replaced":
        file.unlink()
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with FileDigests(tmp_path / "cache", now=later) as digests:
        assert digests.of(file) == sha256_of(file)


def test_once_asks_again_in_the_next_run(tmp_path: Path) -> None:
    answers = iter("abc")
    with FileDigests(tmp_path) as digests:
        found = [digests.once(name, lambda: next(answers)) for name in ("one", "one", "other")]
    with FileDigests(tmp_path) as digests:
        found.append(digests.once("one", lambda: next(answers)))
    assert found == ["a", "a", "b", "c"]


def test_a_file_that_is_not_a_database_is_replaced(tmp_path: Path, file: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / DIGEST_FILE).write_bytes(
        b"not a database, though long enough for a header" * 99
    )
    with FileDigests(tmp_path / "cache", now=later) as digests:
        assert digests.of(file) == sha256_of(file)
    falsify(tmp_path / "cache")


def test_a_folder_that_cannot_be_made_is_no_error(file: Path) -> None:
    with FileDigests(file / "cache") as digests:
        assert digests.of(file) == sha256_of(file)


def test_two_processes_write_one_database(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from modelc.pipeline.cache.file_digests import FileDigests\n"
        "later = lambda: time.time_ns() + 10**10\n"
        "mine = Path(sys.argv[1]) / sys.argv[2]; mine.mkdir()\n"
        "for n in range(40):\n"
        "    (mine / str(n)).write_text(str(n))\n"
        "    with FileDigests(Path(sys.argv[1]) / 'cache', now=later) as one:\n"
        "        one.of(mine / str(n))\n"
    )
    runs = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), n]) for n in "ab"]
    assert [run.wait(60) for run in runs] == [0, 0]
    import sqlite3

    database = sqlite3.connect(tmp_path / "cache" / DIGEST_FILE)
    assert database.execute("SELECT count(*) FROM digest").fetchone() == (80,)
    database.close()


def test_the_digest_of_a_tree_depends_on_names_and_bytes_except_of_excluded_files(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "calib"
    (folder / "cats").mkdir(parents=True)
    (folder / "out").mkdir()

    def digest() -> str:
        return FileDigests(None).of_tree(folder, less=(folder / "out",))

    (folder / "cats" / "1.png").write_bytes(b"1")
    seen = [digest()]
    (folder / "out" / "manifest.json").write_text("{}")
    assert digest() == seen[0]
    (folder / "cats" / "1.png").rename(folder / "cats" / "2.png")
    seen.append(digest())
    (folder / "cats" / "2.png").write_bytes(b"2")
    seen.append(digest())
    (folder / "3.png").write_bytes(b"1")
    seen.append(digest())
    assert len(set(seen)) == 4


def test_a_folder_that_links_to_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(b"1")
    (tmp_path / "again").symlink_to(tmp_path)
    assert FileDigests(None).of_tree(tmp_path)


def test_a_file_that_changes_after_it_was_digested_is_found(tmp_path: Path, file: Path) -> None:
    (tmp_path / "other.bin").write_bytes(b"1")
    digests = FileDigests(None)
    digests.of(tmp_path / "other.bin")
    with digests.note_reads() as noted:
        digests.of(file)
    digests.of(tmp_path / "other.bin")
    (tmp_path / "other.bin").write_bytes(b"2")
    assert first_changed(noted) == ""
    content = file.read_bytes()
    file.write_bytes(content)  # back to what it was: meanwhile it may have been another
    assert first_changed(noted) == str(file)


def test_a_new_file_in_a_folder_that_was_digested_is_found(tmp_path: Path) -> None:
    (tmp_path / "data" / "out").mkdir(parents=True)
    (tmp_path / "data" / "more").mkdir()
    digests = FileDigests(None)
    with digests.note_reads() as noted:
        digests.of_tree(tmp_path / "data", less=(tmp_path / "data" / "out",))
    (tmp_path / "data" / "out" / "model.onnx").write_bytes(b"1")
    (tmp_path / "data" / "out").rename(tmp_path / "data" / "moved")
    assert first_changed(noted) == ""
    (tmp_path / "data" / "more" / "new.npy").write_bytes(b"1")
    assert first_changed(noted) == str(tmp_path / "data" / "more")


def test_once_notes_its_reads_for_every_caller(tmp_path: Path, file: Path) -> None:
    digests = FileDigests(None)
    noted = []
    for _ in range(2):
        with digests.note_reads() as found:
            digests.of(tmp_path / "w.bin")
            digests.once("all", lambda: digests.of(file))
        noted.append(found)
    assert noted[0] == noted[1]
    with digests.note_reads() as found:
        digests.once("all", lambda: digests.of(file))
    assert list(found) == [str(file)]
