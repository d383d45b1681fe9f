"""Fetch a checkpoint from the Hugging Face Hub into its cache, at one commit."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.atomic_write import atomic_write
from ..core.errors import CheckpointError, ErrorCode, ModelcError, UsageError
from ..core.events import Advanced, Finished, Noted, Started, Tell
from ..core.hub_ids import HubId, HubOrigin, is_commit
from ..core.records import sha256_of, size_text
from .hub_cache import find_cached, resolve_cached, snapshot_folder
from .hub_errors import HubUnreachableError, answer_error, translate_hub_error
from .hub_files import select_files

if TYPE_CHECKING:
    import httpx2

_TIMEOUT = 30.0  # seconds without an answer
_LOOK_UP_TIMEOUT = 10.0
_PACE = 0.2  # seconds between two reports of progress
_DEFAULT_REVISION = "main"
_SHOWN = 12  # digits of a commit in messages
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """A file as the hub lists it: bytes, and the SHA-256 of a large one or git's SHA-1."""

    size: int
    sha256: str = ""
    git_sha1: str = ""


@dataclass(frozen=True, kw_only=True)
class HubListing:
    """A commit with all of its files by name."""

    origin: HubOrigin
    files: Mapping[str, HubFile]


@dataclass(frozen=True, kw_only=True)
class HubFetch:
    """A checkpoint to fetch, with a listener for its size and the progress.

    `allow_pickle` also takes files that may be pickles or programs.
    """

    hub: HubId
    tell: Tell
    allow_pickle: bool = False

    def run(self, *, cached_first: bool = False) -> tuple[HubOrigin, Path]:
        """Return the commit of the revision, and its checkpoint in the hub's cache.

        What is not in the cache is downloaded. If the hub cannot be reached, the commit is the one
        that the cache knows the revision by. With `cached_first`, a commit that is in the cache
        needs no listing of the hub.

        Raises:
            UsageError: the repository, the revision or the place does not exist.
            ConsentError: there are only pickles, without consent.
            CheckpointError: no access, no network, or a file that is not as the hub lists it.
        """
        if cached_first and is_commit(self.hub.revision):
            origin = self.hub.pin(self.hub.revision)
            place = find_cached(origin)
            if place is not None:
                return origin, place
        try:
            with _use_client():
                listing = _look_up(self.hub)
        except HubUnreachableError as error:
            return self._use_cache(error)
        names = select_files(listing.files, self.hub, allow_pickle=self.allow_pickle)
        missing = [name for name in names if not _is_cached(name, listing)]
        self._announce(listing, names, missing)
        if missing:
            _check_room(listing, missing)
            with _use_client(listing.origin.commit):
                self._download(missing, listing)
        return listing.origin, snapshot_folder(listing.origin) / listing.origin.place

    def _use_cache(self, error: HubUnreachableError) -> tuple[HubOrigin, Path]:
        """Return the cached commit of the revision.

        Raises:
            HubUnreachableError: it is not in the cache.
        """
        origin = resolve_cached(self.hub)
        place = None if origin is None else find_cached(origin)
        if origin is None or place is None:
            raise error
        if not error.offline:
            text = f"{error.message}; using {origin.commit[:_SHOWN]} from the cache"
            self.tell(Noted(text=text, warning=True))
        elif not is_commit(self.hub.revision):
            text = f"{self.hub.id} is {origin.commit[:_SHOWN]} in the cache (HF_HUB_OFFLINE)"
            self.tell(Noted(text=text))
        return origin, place

    def _announce(self, listing: HubListing, names: Sequence[str], missing: Sequence[str]) -> None:
        """Report the commit of a branch, and what is downloaded."""
        commit = listing.origin.commit
        at = "" if self.hub.revision == commit else f" is {commit[:_SHOWN]}"
        size = size_text(_size_of(listing, missing))
        rest = f"{len(missing)} of {len(names)} files to download, {size}"
        if missing or at:
            self.tell(Noted(text=f"{self.hub.id}{at}: {rest if missing else 'in the cache'}"))

    def _download(self, names: Sequence[str], listing: HubListing) -> None:
        """Download files one after the other, and compare them with the listing.

        Raises:
            ModelcError: one could not be downloaded; those before it stay in the cache.
        """
        total = _size_of(listing, names)
        step, began, passed = f"download {self.hub.repo}", time.perf_counter(), False
        bar = _make_bar(_ByteCount(step, total, self.tell))
        self.tell(Started(step=step))
        try:
            for name in names:
                _download_file(name, self.hub, listing, bar)
            passed = True
        finally:
            seconds = round(time.perf_counter() - began, 3)
            self.tell(Finished(step=step, passed=passed, seconds=seconds, detail=size_text(total)))


def _look_up(hub: HubId) -> HubListing:
    """Ask the hub for the commit of a revision and its files."""
    from huggingface_hub import HfApi

    api = HfApi(library_name="modelc")
    doing = "look up the files"
    try:
        found = api.model_info(
            hub.repo, revision=hub.revision or None, files_metadata=True, timeout=_LOOK_UP_TIMEOUT
        )
        files = {
            one.rfilename: HubFile(
                size=int(one.size or 0),
                sha256="" if one.lfs is None else one.lfs.sha256,
                git_sha1=one.blob_id or "",
            )
            for one in found.siblings or ()
        }
    except Exception as error:  # noqa: BLE001 - huggingface_hub raises anything at garbage
        raise translate_hub_error(error, hub, doing) from None
    commit = found.sha or ""
    if not is_commit(commit) or (is_commit(hub.revision) and commit != hub.revision):
        raise answer_error(hub, doing, f"the hub names the commit {commit[:80]!r}")
    _keep_revision(hub, commit)
    return HubListing(origin=hub.pin(commit), files=files)


def _keep_revision(hub: HubId, commit: str) -> None:
    """Write what a revision stands for to the cache, for runs without a network, as the hub does.

    The cache may be read-only.
    """
    if hub.revision == commit:
        return
    folder = snapshot_folder(hub.pin(commit)).parent.parent
    path = folder / "refs" / (hub.revision or _DEFAULT_REVISION)
    with suppress(OSError):
        if not path.is_file() or path.read_text(encoding="utf-8") != commit:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, commit.encode())


def _is_cached(name: str, listing: HubListing) -> bool:
    """Whether the cache has a file of the commit, as the listing describes it.

    It is a link to a blob that the cache names by the digest of the hub. Where the system has no
    links, the size has to do: the cache gives a file its name once it is complete.
    """
    place, expected = snapshot_folder(listing.origin) / name, listing.files[name]
    try:
        is_whole = place.stat().st_size == expected.size
        blob = place.readlink().name if place.is_symlink() else ""
    except OSError:
        return False
    digests = [one for one in (expected.sha256, expected.git_sha1) if len(one) == len(blob)]
    return is_whole and (not digests or blob in digests)


def _size_of(listing: HubListing, names: Sequence[str]) -> int:
    return sum(listing.files[name].size for name in names)


def _check_room(listing: HubListing, names: Sequence[str]) -> None:
    """Check that the disk has room for what is downloaded.

    Raises:
        UsageError: it has not.
    """
    size, folder = _size_of(listing, names), snapshot_folder(listing.origin)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if size > free:
        raise UsageError(
            f"{listing.origin.id} has {size_text(size)} to download, and {folder} has "
            f"{size_text(free)} free",
            hint="free space on the disk, or use a folder on another one: HF_HOME=FOLDER",
            code=ErrorCode.NOT_WRITABLE,
        )


class _ByteCount:
    """Counts bytes for the progress of a download."""

    def __init__(self, step: str, total: int, tell: Tell) -> None:
        self._step, self._total, self._tell = step, total, tell
        self._done, self._last = 0, 0.0

    def add(self, count: float) -> None:
        """Count bytes; they are taken back where a part is downloaded again."""
        self._done += int(count)
        now = time.monotonic()
        if now - self._last >= _PACE:
            self._last = now
            done = max(0, min(self._done, self._total))
            self._tell(Advanced(step=self._step, done=done, total=self._total, in_bytes=True))


def _make_bar(count: _ByteCount) -> type:
    """Return a class in place of tqdm's that counts the bytes and draws nothing."""

    class SilentBar:
        """What huggingface_hub calls of a progress bar."""

        def __init__(self, *_: object, **options: Any) -> None:
            self.n, self.total = 0, options.get("total")

        def __enter__(self) -> SilentBar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, by: float | None = 1) -> None:
            count.add(by or 0)

        def update_transfer(self, by: float | None = 1) -> None:
            """Of the network: counted already."""

        def __getattr__(self, name: str) -> Any:
            """Ignore what only draws: refresh, close, set_postfix_str."""
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *_, **__: None

    return SilentBar


def _download_file(name: str, hub: HubId, listing: HubListing, bar: type) -> None:
    from huggingface_hub import hf_hub_download

    commit, expected = listing.origin.commit, listing.files[name]
    place = snapshot_folder(listing.origin) / name
    stale = place.exists()  # not as listed
    try:
        place.unlink(missing_ok=True)  # huggingface_hub keeps a link to another blob
        path = Path(
            hf_hub_download(
                hub.repo, name, revision=commit, tqdm_class=bar, force_download=stale,
                library_name="modelc",
            )
        )  # fmt: skip
    except ModelcError as error:
        raise error from None
    except Exception as error:  # noqa: BLE001 - as above
        raise translate_hub_error(error, hub, f"download {name}") from None
    if path != place:
        raise answer_error(hub, f"download {name}", "the hub gave the file of another commit")
    if not _is_as_listed(path, expected):
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise answer_error(hub, f"download {name}", "its bytes are not those that the hub lists")


def _is_as_listed(path: Path, expected: HubFile) -> bool:
    """Whether a file has the listed size and digest."""
    if path.stat().st_size != expected.size:
        return False
    if expected.sha256:
        return sha256_of(path) == expected.sha256
    return not expected.git_sha1 or _git_sha1_of(path) == expected.git_sha1


def _git_sha1_of(path: Path) -> str:
    """Return the SHA-1 by which git knows the content of a file."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as stream:
        while block := stream.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _use_client(commit: str = "") -> Iterator[None]:
    """Give huggingface_hub's client a timeout and a check of its answers, and silence its logs.

    The ETag becomes the name of a file in the cache, and the commit that of a folder.
    """
    from huggingface_hub import get_session
    from huggingface_hub.utils import logging

    def check(response: httpx2.Response) -> None:
        _check_headers(response, commit)

    client, level = get_session(), logging.get_verbosity()
    hooks, timeout = client.event_hooks, client.timeout
    client.event_hooks = {**hooks, "response": [*hooks["response"], check]}
    client.timeout = _TIMEOUT
    logging.set_verbosity_error()  # type: ignore[no-untyped-call] # untyped there
    try:
        yield
    finally:
        client.event_hooks, client.timeout = hooks, timeout
        logging.set_verbosity(level)


def _check_headers(response: httpx2.Response, commit: str) -> None:
    """Check the headers that huggingface_hub makes paths of.

    Raises:
        CheckpointError: one leads out of the cache, or to another commit.
    """
    if response.request.method != "HEAD":
        return
    headers = response.headers
    tag = headers.get("X-Linked-Etag") or headers.get("ETag") or ""
    name = tag.lstrip("W/").strip('"')
    named = headers.get("X-Repo-Commit") or commit
    if not set(name) & set("/\\:\0") and name not in (".", "..") and named == commit:
        return
    raise CheckpointError(
        f"the hub's answer names the file {name[:80]!r} of the commit {named[:80]!r}, which is not "
        "in its cache's folder",
        hint="check HF_ENDPOINT: this server may be malicious",
        code=ErrorCode.UNSAFE_PATH,
    )
