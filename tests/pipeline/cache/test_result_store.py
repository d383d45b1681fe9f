"""The store returns exactly what was put or nothing, stays within its limit and can be shared."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from modelc.core.records import Dependencies
from modelc.pipeline.cache.result_store import (
    ResultStore,
    StoredEntry,
    collect_garbage,
    verify_store,
)
from modelc.pipeline.cache.store_layout import CacheEntry, encode_entry, entry_name

from .conftest import KEY, OTHER, Told

Make = Callable[..., tuple[CacheEntry, dict[str, Path]]]


def only(store: ResultStore, key: str = KEY) -> StoredEntry:
    (stored,) = store.entries(key)
    return stored


def test_an_entry_is_copied_out_of_the_store(store: ResultStore, entry: Make, place: Path) -> None:
    made, sources = entry(b"weights")
    assert store.put(made, sources)
    assert not list(store.entries(OTHER))
    assert only(store).entry == made
    assert store.take(only(store), place)
    assert (place / "model.fake").read_bytes() == b"weights"
    (place / "model.fake").write_bytes(b"changed")
    assert store.take(only(store), place)
    assert (place / "model.fake").read_bytes() == b"weights"


def test_files_that_are_the_same_are_kept_once(store: ResultStore, entry: Make) -> None:
    store.put(*entry(b"w" * 9000))
    store.put(*entry(b"w" * 9000, key=OTHER))
    assert len(list(store.layout.blobs())) == 1


def test_one_key_may_have_several_results(store: ResultStore, entry: Make) -> None:
    store.put(*entry(b"1", needs=Dependencies(files={"a.py": "1" * 64})))
    store.put(*entry(b"2", needs=Dependencies(files={"a.py": "2" * 64})))
    assert len(list(store.entries(KEY))) == 2


@pytest.mark.parametrize("content", [b"weightX", b"wei", b""])
def test_a_damaged_file_is_reported_removed_and_a_miss(
    store: ResultStore, entry: Make, place: Path, told: Told, content: bytes
) -> None:
    store.put(*entry(b"weights"))
    (blob,) = store.layout.blobs()
    blob.write_bytes(content)
    assert not store.take(only(store), place)
    assert not list(store.entries(KEY))
    assert not blob.exists()
    (line,) = told
    assert "(model.fake)" in line


def test_a_missing_file_is_a_miss(store: ResultStore, entry: Make, place: Path, told: Told) -> None:
    store.put(*entry())
    (blob,) = store.layout.blobs()
    stored = only(store)
    blob.unlink()
    assert not store.take(stored, place)
    assert "incomplete" in told[0]
    assert not list(store.entries(KEY))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw[:-9],
        lambda _: b"",
        lambda raw: raw.replace(b"w.pt", b"v.pt"),
        lambda _: b"\xff\xfe",
    ],
)
def test_a_damaged_entry_is_reported_removed_and_a_miss(
    store: ResultStore, entry: Make, told: Told, spoil: Callable[[bytes], bytes]
) -> None:
    store.put(*entry())
    path = only(store).path
    path.write_bytes(spoil(path.read_bytes()))
    assert not list(store.entries(KEY))
    assert len(told) == 1
    assert not path.exists()


def plant(store: ResultStore, raw: bytes, key: str = KEY) -> None:
    """Lay an entry there as its writer would, whatever is in it."""
    path = store.layout.place(key) / f"{entry_name(raw)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b'"model.fake"', b'"../model.fake"', "unsafe"),
        (b'"model.fake"', b'"/etc/model.fake"', "unsafe"),
        (b'"model.fake"', b'"C:\\\\model.fake"', "unsafe"),
        (b'"artifact":"fake"', b'"artifact":"other"', "inconsistent"),
        (KEY.encode(), OTHER.encode(), "another step's"),
        (b'"files":[{', b'"files":[],"x":[{', "inconsistent"),
        (b'"size":', b'"size":"', "unreadable"),
    ],
)
def test_a_foreign_entry_is_reported_and_a_miss(
    store: ResultStore, entry: Make, told: Told, old: bytes, new: bytes, fault: str
) -> None:
    raw = encode_entry(entry()[0])
    assert old in raw
    plant(store, raw.replace(old, new))
    assert not list(store.entries(KEY))
    assert fault in told[0]


def test_an_entry_whose_manifest_has_other_digests_is_a_miss(
    store: ResultStore, entry: Make, told: Told
) -> None:
    good, bad = entry(b"good")[0], entry(b"evil")[0]
    raw = encode_entry(good)
    plant(store, raw.replace(good.files[0].sha256.encode(), bad.files[0].sha256.encode(), 1))
    assert not list(store.entries(KEY))
    assert "inconsistent" in told[0]


def test_a_file_that_changed_since_its_record_is_not_stored(
    store: ResultStore, entry: Make, told: Told
) -> None:
    made, sources = entry(b"weights")
    sources["model.fake"].write_bytes(b"WEIGHTS")
    assert not store.put(made, sources)
    assert not list(store.entries(KEY))
    assert "model.fake changed" in told[0]


def test_a_folder_that_cannot_be_written_is_reported_once(
    entry: Make, tmp_path: Path, told: Told
) -> None:
    (tmp_path / "file").write_text("")
    store = ResultStore(tmp_path / "file" / "store", tell=told)
    assert not store.put(*entry())
    assert not store.put(*entry())
    assert len(told) == 1
    assert not list(store.entries(KEY))


def test_a_full_disk_is_reported_and_leaves_nothing(
    entry: Make, tmp_path: Path, told: Told
) -> None:
    if os.geteuid() != 0 or not Path("/dev/full").exists():
        pytest.skip("needs to mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("needs to mount a small file system")
    try:
        store = ResultStore(small / "store", tell=told)
        assert not store.put(*entry(b"w" * 200_000))
        assert os.strerror(errno.ENOSPC) in told[0]
        assert not list(store.entries(KEY))
        assert not [path for path in (small / "store" / "drafts").iterdir() if path.is_dir()]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def fill(store: ResultStore, entry: Make, count: int, size: int = 100_000) -> list[str]:
    """Entries of that many bytes, each used a second after the one before; their keys."""
    keys = [f"{number:064x}" for number in range(count)]
    for number, key in enumerate(keys):
        store.put(*entry(bytes([number]) * size, key=key))
        for stored in store.entries(key):
            os.utime(stored.path, (number, number))
    return keys


def there(store: ResultStore, keys: list[str]) -> list[bool]:
    return [bool(list(store.entries(key))) for key in keys]


def test_beyond_the_limit_the_least_recently_used_entry_is_removed(
    entry: Make, tmp_path: Path, place: Path
) -> None:
    store = ResultStore(tmp_path / "store", limit=250_000)
    keys = fill(store, entry, 2)
    store.take(only(store, keys[0]), place)  # used: now the other one is the oldest
    store.put(*entry(b"new" * 33_000, key=OTHER))
    assert there(store, [*keys, OTHER]) == [True, False, True]
    assert len(list(store.layout.blobs())) == 2


def test_an_entry_larger_than_the_limit_stays_until_the_next(entry: Make, tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "store", limit=1000)
    keys = fill(store, entry, 2)
    assert there(store, keys) == [False, True]


def test_an_entry_can_be_evicted_while_it_is_copied(
    entry: Make, tmp_path: Path, place: Path
) -> None:
    store = ResultStore(tmp_path / "store")
    store.put(*entry(b"weights"))
    stored = only(store)
    with ExitStack() as held:
        ((_, stream),) = store._open_files(stored, held)
        collect_garbage(store.layout, limit=0)
        assert not list(store.layout.blobs())
        assert stream.read() == b"weights"
    assert not store.take(stored, place)


def test_garbage_is_collected_by_size_and_by_age(store: ResultStore, entry: Make) -> None:
    keys = fill(store, entry, 3)
    os.utime(only(store, keys[1]).path)
    assert collect_garbage(store.layout, limit=10**9, older_than=3600) > 100_000
    assert there(store, keys) == [False, True, False]
    assert collect_garbage(store.layout, limit=0) > 100_000
    assert store.layout.size() == 0


def test_verify_names_and_removes_damaged_files_only(store: ResultStore, entry: Make) -> None:
    keys = fill(store, entry, 3)
    assert verify_store(store.layout) == ()
    wrong = only(store, keys[0]).entry.files[0].sha256
    store.layout.blob(wrong).write_bytes(b"\0" * 99_999 + b"\1")
    only(store, keys[1]).path.write_bytes(b"{}")
    told = verify_store(store.layout)
    assert len(told) == 3  # the file, the entry that has lost it, the entry that is none
    assert there(store, keys) == [False, False, True]
    assert verify_store(store.layout) == ()


def test_the_draft_of_a_killed_writer_is_removed_by_the_next(
    store: ResultStore, entry: Make
) -> None:
    code = (
        "import os, sys; from pathlib import Path\n"
        "from modelc.pipeline.cache.store_layout import StoreLayout\n"
        "with StoreLayout(folder=Path(sys.argv[1])).draft() as draft:\n"
        "    (draft / 'half').write_text('half'); os.kill(os.getpid(), 9)\n"
    )
    store.put(*entry())
    subprocess.run([sys.executable, "-c", code, str(store.layout.folder)], check=False)
    drafts = store.layout.folder / "drafts"
    assert [path.name for path in drafts.rglob("half")] == ["half"]
    store.put(*entry(b"2", key=OTHER))
    assert not list(drafts.iterdir())


def test_the_draft_of_an_active_writer_stays(store: ResultStore, entry: Make) -> None:
    with store.layout.draft() as draft:
        store.put(*entry())
        assert draft.is_dir()


@pytest.mark.slow
def test_two_writers_that_are_killed_at_random_leave_no_lock_and_nothing_wrong(
    store: ResultStore, entry: Make, place: Path
) -> None:
    worker = Path(__file__).with_name("store_worker.py")
    chance = random.Random(0)
    kills = 0
    for _ in range(20):
        runs = [
            subprocess.Popen(
                [sys.executable, str(worker), str(store.layout.folder), str(chance.random())],
                stdout=subprocess.PIPE,
            )
            for _ in range(2)
        ]
        for run in runs:
            assert run.stdout is not None
            assert run.stdout.readline() == b"ready\n"
        time.sleep(chance.uniform(0.05, 0.8))
        for run in runs:
            run.kill()
            run.communicate()
            kills += run.returncode == -signal.SIGKILL
    assert kills == 40, "a worker found something wrong"
    began = time.monotonic()
    assert store.put(*entry())
    assert time.monotonic() - began < 5, "a lock stayed"
    assert not list((store.layout.folder / "drafts").iterdir())
    seen = 0
    for path, _ in store.layout.entries():
        (stored,) = [one for one in store.entries(path.parent.name) if one.path == path]
        assert store.take(stored, place)
        seen += 1
    assert seen > 1
    assert not [line for line in verify_store(store.layout) if line.startswith("file")]
