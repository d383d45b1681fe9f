"""A remote store is read on a local miss; its content is verified and its faults are no errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from modelc.core.errors import ErrorCode, MissingError, UsageError
from modelc.core.manifest import Manifest
from modelc.pipeline.cache.remote_files import RemoteFiles
from modelc.pipeline.cache.remote_store import RemoteStore, open_remote
from modelc.pipeline.cache.result_store import StoredEntry
from modelc.pipeline.cache.step_cache import StepCache
from modelc.pipeline.cache.store_layout import CacheEntry, encode_entry, entry_name

from ...reasons import has_code
from .conftest import KEY, Told, record

Make = Callable[..., tuple[CacheEntry, dict[str, Path]]]


@pytest.fixture(params=["folder", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A remote store on a local folder, as a path and as a URL, and in memory."""
    import fsspec

    places = {
        "folder": str(tmp_path / "far"),
        "file": f"file://{tmp_path}/far",
        "memory": "memory://far",
    }
    yield places[request.param]
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def made(tmp_path: Path) -> Manifest:
    """The record of a folder with one artifact."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.fake").write_bytes(b"weights")
    return record(tmp_path / "out" / "model.fake")


@pytest.fixture
def cache(url: str, tmp_path: Path, told: Told) -> Callable[[str], StepCache]:
    """`cache("a")`: that machine's cache folder, before the one remote."""
    return lambda name: StepCache(tmp_path / name, tell=told, remote=open_remote(url, told))


def any_of(_: Manifest) -> bool:
    return True


def found(cache: StepCache, key: str = KEY) -> list[StoredEntry]:
    return list(cache.candidates(key, any_of))


def far(url: str) -> tuple[Any, str]:
    import fsspec

    files, root = fsspec.url_to_fs(url)
    return files, root


def test_a_result_of_one_machine_is_found_by_another(
    cache: Callable[[str], StepCache], made: Manifest, tmp_path: Path, place: Path, told: Told
) -> None:
    assert cache("a").keep(made, tmp_path / "out", "w.pt") == 1
    (stored,) = found(cache("b"))
    assert cache("b").store.take(stored, place)
    assert (place / "model.fake").read_bytes() == b"weights"
    assert told == []


def test_a_local_entry_is_not_fetched(
    cache: Callable[[str], StepCache], made: Manifest, tmp_path: Path, url: str
) -> None:
    cache("a").keep(made, tmp_path / "out", "w.pt")
    files, root = far(url)
    files.rm(root, recursive=True)
    assert len(found(cache("a"))) == 1


@pytest.mark.parametrize("content", [b"weightX", b""])
def test_a_changed_file_is_reported_and_a_miss_until_the_next_upload(
    cache: Callable[[str], StepCache],
    made: Manifest,
    tmp_path: Path,
    url: str,
    told: Told,
    content: bytes,
) -> None:
    cache("a").keep(made, tmp_path / "out", "w.pt")
    files, root = far(url)
    (blob,) = files.find(f"{root}/blobs")
    files.pipe_file(blob, content)
    assert found(cache("b")) == []
    (line,) = told
    assert "model.fake" in line
    assert "changed" in line
    cache("c").keep(made, tmp_path / "out", "w.pt")
    assert len(found(cache("b"))) == 1


@pytest.mark.parametrize("spoil", [lambda raw: raw[:-5], lambda raw: raw.replace(b"w.pt", b"v.pt")])
def test_a_changed_entry_is_reported_and_removed(
    cache: Callable[[str], StepCache], made: Manifest, tmp_path: Path, url: str, told: Told,
    spoil: Callable[[bytes], bytes],
) -> None:  # fmt: skip
    cache("a").keep(made, tmp_path / "out", "w.pt")
    files, root = far(url)
    (path,) = files.find(f"{root}/entries")
    files.pipe_file(path, spoil(files.cat_file(path)))
    assert found(cache("b")) == []
    (line,) = told
    assert "entry" in line
    assert "changed" in line
    assert files.find(f"{root}/entries") == []


def test_an_entry_that_names_a_file_outside_its_folder_writes_none(
    cache: Callable[[str], StepCache], entry: Make, tmp_path: Path, url: str, told: Told
) -> None:
    raw = encode_entry(entry()[0]).replace(b'"model.fake"', b'"../../evil"')
    files, root = far(url)
    files.makedirs(f"{root}/entries/{KEY}", exist_ok=True)
    files.pipe_file(f"{root}/entries/{KEY}/{entry_name(raw)}.json", raw)
    assert found(cache("b")) == []
    assert "outside" in told[0]
    assert not list(tmp_path.rglob("evil"))


UNREACHABLE = "unreachable host"


class Broken:
    """A file system whose every call fails, as one without a network does."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        def fail(*_: object, **__: object) -> object:
            raise ConnectionError(UNREACHABLE)

        return fail


def test_a_failing_remote_is_reported_once_per_operation_and_no_error(
    made: Manifest, tmp_path: Path, told: Told
) -> None:
    cache = StepCache(
        tmp_path / "a", tell=told, remote=RemoteStore(RemoteFiles(Broken(), "far"), told)
    )
    assert found(cache) == []
    assert cache.keep(made, tmp_path / "out", "w.pt") == 1
    assert found(cache, "cd" * 32) == []
    listed, written = told
    assert "list" in listed
    assert "write" in written
    assert all(UNREACHABLE in line for line in told)


def test_a_missing_package_of_a_url_is_named_with_its_command() -> None:
    from importlib.util import find_spec

    if find_spec("s3fs") is not None:
        pytest.skip("s3fs is installed")
    with pytest.raises(
        MissingError, check=has_code(ErrorCode.NOT_INSTALLED, option="remote-cache", naming="s3fs")
    ) as error:
        open_remote("s3://bucket/modelc")
    assert error.value.hint.split() == ["pip", "install", "s3fs"]


def test_a_url_of_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, option="remote-cache")):
        open_remote("nonsense://x")


@pytest.mark.parametrize(
    ("url", "right"), [("S3:/bucket", "s3://bucket"), ("file:/mnt/cache", "file:///mnt/cache")]
)
def test_a_url_with_one_slash_is_no_local_folder(url: str, right: str) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, naming=url)) as error:
        open_remote(url)
    assert error.value.hint == f"write {right}"
