"""The files, variables and packages that a result depends on.

A run tracks them while it reads them, and later runs compare them.
"""

from __future__ import annotations

import glob
import hashlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import source_from_cache
from pathlib import Path
from typing import BinaryIO

from ...core.errors import UsageError
from ...core.records import Dependencies, sha256_of
from .environment import describe_installed, is_installed_code, list_loaded_packages
from .file_digests import FileDigests, is_own_code

ABSENT = "absent"  # an opened file that did not exist
_VARIABLE = "env:"
UNSURE = "unsure"  # changed during the run, or unknown: equal to no digest


def find_unmet_dependency(needs: Dependencies, root: Path, digests: FileDigests) -> str:
    """Describe the first changed dependency of a result; return an empty string if none changed.

    Args:
        needs: the recorded dependencies.
        root: the folder that its paths are relative to.
        digests: the cached digests of files.
    """
    kinds = (_find_changed_file, _find_changed_package, _find_changed_declared)
    return next((told for kind in kinds for told in kind(needs, root, digests)), "")


def _find_changed_file(needs: Dependencies, root: Path, digests: FileDigests) -> Iterator[str]:
    for name, then in needs.files.items():
        if then == UNSURE:
            yield f"{name}: what was read of it cannot be known again"
            continue
        now = digest_now(root / name, digests.of)
        if now != then:
            yield _describe_change(name, then, now)


def _find_changed_package(needs: Dependencies, _: Path, digests: FileDigests) -> Iterator[str]:
    for name, then in needs.packages.items():
        now = digests.once(f"package {name}", partial(describe_installed, name))
        if now != then:
            versions = (then.partition(" ")[0], now.partition(" ")[0] or "not installed")
            yield f"the package {name} changed: {' -> '.join(versions)}"


def _find_changed_declared(needs: Dependencies, root: Path, digests: FileDigests) -> Iterator[str]:
    for entry, then in needs.declared.items():
        if digest_declared(entry, root, digests.of) != then:
            yield f"what depends names with {entry!r} changed"


def merge_dependencies(one: Dependencies, other: Dependencies) -> Dependencies:
    """Merge dependencies; a file with two different digests becomes `UNSURE`."""
    files = dict(one.files)
    for name, digest in other.files.items():
        files[name] = merge_digests(files.get(name, digest), digest)
    return Dependencies(
        files=files,
        packages=_merge_mappings(one.packages, other.packages),
        declared=_merge_mappings(one.declared, other.declared),
    )


def _merge_mappings(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Merge mappings; different values of one name become `UNSURE`."""
    shared = {name: told if one.get(name, told) == told else UNSURE for name, told in other.items()}
    return {**one, **shared}


def merge_digests(one: str, other: str) -> str:
    """Return the digest if both are equal, else `UNSURE`."""
    return one if one == other else UNSURE


def digest_now(path: Path, digest: Callable[[Path], str] = sha256_of) -> str:
    """Return the SHA-256 of a file, `ABSENT` if it is missing or `UNSURE` if it is not readable."""
    try:
        if path.is_file():
            return digest(path)
        return UNSURE if path.exists() else ABSENT
    except OSError:
        return UNSURE


def digest_declared(entry: str, root: Path, digest: Callable[[Path], str] = sha256_of) -> str:
    """Return one digest over the names and contents of an entry of `depends`.

    Args:
        entry: a glob relative to `root`, in which a folder stands for all files below it; or
            `env:NAME`, an environment variable.
        root: the folder of modelc.toml.
        digest: the digest function for one file.
    """
    if entry.startswith(_VARIABLE):
        value = os.environ.get(entry.removeprefix(_VARIABLE))
        parts = [ABSENT if value is None else value]
    else:
        parts = [
            f"{path.as_posix()}\0{digest_now(path, digest)}"
            for path in list_declared_files(entry, root)
        ]
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()


def list_declared_files(entry: str, root: Path) -> list[Path]:
    """Return the sorted files that match a glob, including the files below matching folders."""
    named = glob.glob(entry, root_dir=root, recursive=True)  # noqa: PTH207 - an entry may be absolute
    found: set[Path] = set()
    for path in (root / name for name in named):
        below = path.rglob("*") if path.is_dir() else [path]
        found |= {one for one in below if one.is_file() and "__pycache__" not in one.parts}
    return sorted(found)


def check_declared_entries(entries: Sequence[str], root: Path) -> None:
    """Check that each entry of `depends` matches something.

    Raises:
        UsageError: an entry matches no file below the folder.
    """
    for entry in entries:
        if entry == _VARIABLE or (
            not entry.startswith(_VARIABLE) and not list_declared_files(entry, root)
        ):
            raise UsageError(
                f"depends: {entry!r} names no file in {root}",
                hint="give files, globs such as configs/*.yaml, or env:NAME",
            )


def _describe_change(name: str, then: str, now: str) -> str:
    if now == ABSENT:
        return f"{name} is gone"
    if then == ABSENT:
        return f"{name} is new"
    return f"{name} changed"


@dataclass
class ReadLog:
    """The digests of all files that this process has read, by absolute path.

    The log outlives a run: the next run does not repeat what a module reads at import.
    """

    files: dict[str, str] = field(default_factory=dict)
    stamps: dict[str, tuple[int, ...]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)


class ReadTracker:
    """Record the files that are opened while the tracker is active.

    Args:
        root: the project folder; paths are relative to it.
        keyed: files and folders that the cache keys cover. Their parent folders count as part of
            the project.
        ours: folders that modelc writes to, such as output and cache.
        declared: the entries of `depends`.
        read: earlier reads; None uses the log of this process.
    """

    def __init__(
        self,
        root: Path,
        *,
        keyed: Iterable[Path] = (),
        ours: Iterable[Path] = (),
        declared: Iterable[str] = (),
        read: ReadLog | None = None,
    ) -> None:
        self.read = _PROCESS_READS if read is None else read
        self._root = os.path.realpath(root)
        self._keyed = tuple(os.path.realpath(path) for path in keyed)
        self._ours = tuple(os.path.realpath(path) for path in ours)
        self._places = (self._root, *(str(Path(place).parent) for place in self._keyed))
        self._declared = {entry: digest_declared(entry, root) for entry in declared}
        self._busy = threading.local()
        self._process = os.getpid()
        self._of_workers: BinaryIO = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115 - open until close()

    def on_open(self, name: object, flags: object) -> None:
        """Record an opened file. Never raise: an exception would end the user's call."""
        if getattr(self._busy, "now", False) or not isinstance(name, (str, bytes, os.PathLike)):
            return
        self._busy.now = True
        try:
            self._record_read(
                os.path.realpath(os.fsdecode(name)), flags if isinstance(flags, int) else 0
            )
        except Exception as error:  # noqa: BLE001 - record it as unsure
            self._note(f"{name!r}: {error}", UNSURE)
        finally:
            self._busy.now = False

    def _record_read(self, path: str, flags: int) -> None:
        path = _source_file(path)
        if not self._counts(path):
            return
        makes = flags & (os.O_WRONLY | os.O_CREAT) and not Path(path).exists()
        if flags & os.O_TRUNC or makes:
            if path not in self.read.files:
                self.read.written.add(path)  # this run writes its content
            return
        if flags & os.O_WRONLY or path in self.read.written or Path(path).is_dir():
            return
        now = _stat_stamp(path)
        if path not in self.read.files or self.read.stamps.get(path) != now:
            self.read.stamps[path] = now
            self._note(path, digest_now(Path(path)))

    def _counts(self, path: str) -> bool:
        """Return whether the path is in the project and not installed, modelc's own or keyed."""
        if not _is_below(path, self._places) or is_installed_code(path) or is_own_code(Path(path)):
            return False
        return not (_is_below(path, self._ours) or _is_below(path, self._keyed))

    def _note(self, name: str, digest: str) -> None:
        if os.getpid() != self._process:  # in the forked worker of a loader
            line = f"{digest} {name}\n".encode(errors="surrogateescape")
            self._of_workers.write(line)
            return
        self.read.files[name] = merge_digests(self.read.files.get(name, digest), digest)

    def needs(self) -> Dependencies:
        """Return the reads so far, with the loaded modules and their packages."""
        self._busy.now = True
        try:
            self._track_workers()
            self._add_modules()
            files = {self._relative(name): one for name, one in sorted(self.read.files.items())}
            return Dependencies(
                files=files, packages=list_loaded_packages(), declared=self._declared
            )
        finally:
            self._busy.now = False

    def _track_workers(self) -> None:
        size = os.fstat(self._of_workers.fileno()).st_size
        lines = os.pread(self._of_workers.fileno(), size, 0).decode(errors="surrogateescape")
        for line in filter(None, lines.split("\n")):
            digest, _, name = line.partition(" ")
            self._note(name, digest)

    def _add_modules(self) -> None:
        """Add the user's modules, including those that were loaded before tracking began."""
        for module in list(sys.modules.values()):
            name = getattr(module, "__file__", None)
            if not isinstance(name, str) or is_installed_code(name):
                continue
            path = os.path.realpath(name)
            known = path in self.read.files or is_installed_code(path) or is_own_code(Path(path))
            if not known and Path(path).is_file():
                self._note(path, digest_now(Path(path)))

    def _relative(self, name: str) -> str:
        path = Path(name)
        near = path.relative_to(self._root) if path.is_relative_to(self._root) else path
        return near.as_posix()

    def close(self) -> None:
        """Release the file that collects reads of workers."""
        self._of_workers.close()


_PROCESS_READS = ReadLog()
_active: list[ReadTracker] = []
_hooked: list[bool] = []


@contextmanager
def track_reads(
    root: Path,
    *,
    keyed: Iterable[Path] = (),
    ours: Iterable[Path] = (),
    declared: Iterable[str] = (),
    read: ReadLog | None = None,
) -> Iterator[ReadTracker]:
    """Track the reads of this process inside the block; see `ReadTracker` for the arguments."""
    if not _hooked:
        sys.addaudithook(_on_audit_event)  # a hook cannot be removed, so all runs share one
        _hooked.append(True)
    tracker = ReadTracker(root, keyed=keyed, ours=ours, declared=declared, read=read)
    _active.append(tracker)
    try:
        yield tracker
    finally:
        _active.remove(tracker)
        tracker.close()


def collect_imported_dependencies(root: Path) -> Dependencies:
    """Return the loaded user modules and packages, for a process without tracked reads."""
    with closing(ReadTracker(root, read=ReadLog())) as tracker:
        return tracker.needs()


def _on_audit_event(event: str, args: tuple[object, ...]) -> None:
    if event == "open" and _active:
        for tracker in tuple(_active):
            tracker.on_open(args[0], args[2])


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(f"{place}{os.sep}") for place in places)


def _source_file(path: str) -> str:
    """Return the source of a compiled file if it exists, else the path itself."""
    if not path.endswith(".pyc"):
        return path
    try:
        source = source_from_cache(path)
    except ValueError:
        return path
    return source if Path(source).is_file() else path


def _stat_stamp(path: str) -> tuple[int, ...]:
    try:
        found = Path(path).stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
