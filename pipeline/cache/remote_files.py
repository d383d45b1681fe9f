"""Files at an fsspec URL, written so that no reader finds half of one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.atomic_write import flush_file
from ...core.errors import ErrorCode, MissingError, UsageError, first_line
from ...core.installation import hint_for_extra
from ...core.records import FileRecord, sha256_of
from .store_layout import is_digest

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_LOCAL_PROTOCOLS = {"file", "local"}  # the others put whole objects, which appear at once
_DRAFTS = "drafts"


class RemoteFiles:
    """Files below a root, by relative names; each operation raises the error of its file system.

    On a folder that hosts share, files are drafted and renamed. An object store shows an object
    only when it is complete.
    """

    def __init__(self, files: AbstractFileSystem, root: str) -> None:
        self._files: Any = files  # fsspec has few annotations
        self._root = root.rstrip("/")
        names = files.protocol if isinstance(files.protocol, tuple) else (files.protocol,)
        shared = not _LOCAL_PROTOCOLS.isdisjoint(names)
        self._folder = Path(self._root) if shared else None

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        try:
            return bytes(self._files.cat_file(self._path(name)))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file, replacing an existing one."""
        if self._folder is None:
            self._make_parent(name)
            self._files.pipe_file(self._path(name), data)
            return
        with self._draft(data) as draft:
            draft.replace(self._place(name))

    def create(self, name: str, data: bytes) -> bool:
        """Write a new file; False if it exists. Of writers with different data, one succeeds."""
        if self._folder is None:
            self._make_parent(name)
            try:
                self._files.pipe_file(self._path(name), data, mode="create")
            except Exception:
                found = self.read(name)  # what an unmet condition raises differs
                if found is None:
                    raise
                return found == data
            return True
        with self._draft(data) as draft:
            try:
                os.link(draft, self._place(name))
            except FileExistsError:
                return False
        return True

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the entries of a folder; empty if there is none."""
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in found)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._files.rm_file(self._path(name))

    def put_blob(self, path: Path, file: FileRecord) -> None:
        """Store a local file under its digest, unless it is there with its whole size.

        Raises:
            UsageError: another process has changed the file since its digest was computed.
        """
        name = blob_name(file.sha256)
        if self._size(name) == file.size:
            return
        if self._folder is None:
            self._make_parent(name)
            self._files.put_file(str(path), self._path(name))
            try:
                _check_stored(path, file, path)
            except UsageError:
                self.remove(name)
                raise
            return
        with self._draft(path) as draft:
            _check_stored(draft, file, path)
            draft.replace(self._place(name))

    def get_blob(self, file: FileRecord, place: Path) -> bool:
        """Copy a stored file to a path and verify its digest; remove it if that differs."""
        name = blob_name(file.sha256)
        self._files.get_file(self._path(name), str(place))
        if sha256_of(place) == file.sha256:
            return True
        place.unlink()
        with suppress(Exception):  # this host may only read; each file system has its own errors
            self.remove(name)
        return False

    def _size(self, name: str) -> int | None:
        try:
            return int(self._files.info(self._path(name))["size"])
        except FileNotFoundError:
            return None

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _make_parent(self, name: str) -> None:
        self._files.makedirs(self._path(name).rsplit("/", 1)[0], exist_ok=True)

    def _place(self, name: str) -> Path:
        place = Path(self._path(name))
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    @contextmanager
    def _draft(self, content: bytes | Path) -> Iterator[Path]:
        """Yield a flushed draft on the same file system; remove it at the end."""
        draft = self._place(f"{_DRAFTS}/{secrets.token_hex(16)}")
        try:
            if isinstance(content, Path):
                self._files.put_file(str(content), str(draft))
            else:
                draft.write_bytes(content)
            flush_file(draft)
            yield draft
        finally:
            draft.unlink(missing_ok=True)


def _check_stored(copy: Path, file: FileRecord, path: Path) -> None:
    """Check that a copy of the file at `path` has the digest of the record."""
    if sha256_of(copy) != file.sha256:
        raise UsageError(
            f"{path} changed while it was stored",
            hint="run it again when nothing else writes to its folder",
            code=ErrorCode.FILE_CHANGED,
        )


def blob_name(digest: str) -> str:
    """Return the name of a file with that digest.

    Raises:
        ValueError: it is not a digest; records of strangers may have a path there.
    """
    if not is_digest(digest):
        raise ValueError(f"{digest[:80]!r} is not a digest")
    return f"blobs/{digest[:2]}/{digest}"


def open_remote_files(url: str, option: str = "remote-cache") -> RemoteFiles:
    """Open the files at an fsspec URL: `s3://bucket/modelc`, `file:///mnt/cache` or a folder.

    Raises:
        MissingError: a package that this kind of URL requires is not installed.
        UsageError: the URL is invalid or of an unknown kind.
    """
    try:
        import fsspec
    except ImportError as error:
        raise MissingError(
            f"--{option} needs fsspec, which is not installed",
            hint=hint_for_extra("remote"),
            option=option,
            code=ErrorCode.NOT_INSTALLED,
        ) from error
    from fsspec.registry import known_implementations

    scheme, _, rest = url.partition(":")
    if scheme.lower() in known_implementations and rest and not rest.startswith(("//", ":")):
        place = rest if scheme.lower() == "file" else rest.lstrip("/")
        raise UsageError(
            f"--{option} {url} is not a URL: it has no //",
            hint=f"write {scheme.lower()}://{place}",
            option=option,
            code=ErrorCode.INVALID_VALUE,
        )
    protocol = url.partition("://")[0] if "://" in url else "file"
    try:
        files, root = fsspec.url_to_fs(url)
    except ImportError as error:
        module = str(known_implementations.get(protocol, {}).get("class", "")).partition(".")[0]
        raise MissingError(
            f"--{option} {url} needs {module or protocol}, which is not installed",
            hint=f"pip install {module or protocol}",
            option=option,
            code=ErrorCode.NOT_INSTALLED,
        ) from error
    except Exception as error:
        raise UsageError(
            f"--{option} {url} cannot be opened: {first_line(error)}",
            hint="give an fsspec URL: s3://bucket/folder, gs://..., or a shared folder",
            option=option,
            code=ErrorCode.UNSUPPORTED,
        ) from error
    return RemoteFiles(files, str(root))
