"""Maintenance of the cache touches only its own files in the folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from modelc.pipeline.cache.result_store import ResultStore, collect_garbage, shrink_to, verify_store
from modelc.pipeline.cache.store_layout import CacheEntry, StoreLayout, list_results

from .conftest import KEY

Make = Callable[..., tuple[CacheEntry, dict[str, Path]]]
DIGEST = "ab" + "1" * 62
KEEPERS: dict[str, Callable[[StoreLayout], object]] = {
    "verify": verify_store,
    "collect": lambda layout: collect_garbage(layout, limit=0, older_than=0.0),
    "shrink": lambda layout: shrink_to(layout, 0),
}


@pytest.fixture(params=KEEPERS)
def keep_house(request: pytest.FixtureRequest) -> Callable[[StoreLayout], object]:
    return KEEPERS[request.param]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder of the user's, some of whose files are named as digests are."""
    folder = tmp_path / "mine"
    for name in ("thesis.tex", DIGEST, f"{DIGEST}.json", "ab/notes.txt", f"ab/{DIGEST}"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("the user's")
    return folder


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "link", ["blobs", "blobs/ab", "entries", f"entries/{KEY}", "drafts", "drafts/ab", ""]
)
def test_nothing_behind_a_link_is_touched(
    tmp_path: Path, mine: Path, link: str, keep_house: Callable[[StoreLayout], object], entry: Make
) -> None:
    before = files_of(mine)
    store = ResultStore(tmp_path / "store")
    place = store.layout.folder / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(mine)
    keep_house(store.layout)
    store.put(*entry(b"weights"))
    keep_house(store.layout)
    assert before <= files_of(mine)


def test_a_damaged_result_is_not_removed_through_a_link(
    tmp_path: Path, entry: Make, place: Path
) -> None:
    store = ResultStore(tmp_path / "store")
    store.put(*entry(b"weights"))
    digest = hashlib.sha256(b"weights").hexdigest()
    theirs = tmp_path / "theirs"
    (store.layout.folder / "blobs" / digest[:2]).rename(theirs)
    (store.layout.folder / "blobs" / digest[:2]).symlink_to(theirs)
    (theirs / digest).write_bytes(b"damaged")
    (stored,) = store.entries(KEY)
    assert not store.take(stored, place)
    assert (theirs / digest).read_bytes() == b"damaged"


def test_files_of_a_project_whose_folder_serves_as_cache_stay(
    tmp_path: Path, keep_house: Callable[[StoreLayout], object], entry: Make
) -> None:
    folder = tmp_path / "store"
    theirs = {
        "blobs/ab/photo.png", f"blobs/cd/{DIGEST}", f"blobs/{DIGEST}", "entries/one/a.json",
        f"entries/{KEY}/notes.json", f"entries/{KEY}/notes.txt", "drafts/chapter/one.txt",
    }  # fmt: skip
    for name in theirs:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("the user's")
    (folder / "blobs" / "empty").mkdir()
    store = ResultStore(folder)
    assert keep_house(store.layout) in ((), 0, None)
    store.put(*entry(b"weights"))
    keep_house(store.layout)
    assert theirs <= files_of(folder)
    assert (folder / "blobs" / "empty").is_dir()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_not_waited_for(
    tmp_path: Path, keep_house: Callable[[StoreLayout], object]
) -> None:
    layout = StoreLayout(folder=tmp_path / "store")
    for pipe in (layout.place(KEY) / f"{DIGEST}.json", layout.blob(DIGEST)):
        pipe.parent.mkdir(parents=True)
        os.mkfifo(pipe)
    keep_house(layout)
    assert list_results(layout) == ()
