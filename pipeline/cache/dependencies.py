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

from ...core.errors import ErrorCode, UsageError
from ...core.records import Dependencies, sha256_of
from .environment import describe_installed, is_installed_code, list_loaded_packages
from .file_digests import FileDigests, file_stamp, is_own_code

ABSENT = "absent"  # an opened file that did not exist
_VARIABLE = "env:"
UNSURE = "unsure"  # changed during the run, or unknowable: equal to no digest


def find_unmet_dependency(needs: Dependencies, root: Path, digests: FileDigests) -> str:
    """Return the first changed dependency of a result; empty if none changed.

    Args:
        needs: the dependencies tracked when the result was built.
        root: the folder that their paths are relative to.
        digests: the cache of file digests.
    """
    kinds = (_find_changed_file, _find_changed_package, _find_changed_declared)
    return next((change for kind in kinds for change in kind(needs, root, digests)), "")


def _find_changed_file(needs: Dependencies, root: Path, digests: FileDigests) -> Iterator[str]:
    for name, then in needs.files.items():
        if then == UNSURE:
            yield f"{name} changed while it was read, or is not a plain file"
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
            yield f"depends: {entry!r} changed"


def merge_dependencies(one: Dependencies, other: Dependencies) -> Dependencies:
    """Merge two sets of dependencies; a file that they read with different content is `UNSURE`."""
    return Dependencies(
        files=_merge_mappings(one.files, other.files),
        packages=_merge_mappings(one.packages, other.packages),
        declared=_merge_mappings(one.declared, other.declared),
    )


def _merge_mappings(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Merge two mappings; values that differ become `UNSURE`."""
    return {**one, **{name: merge_digests(one.get(name, now), now) for name, now in other.items()}}


def merge_digests(one: str, other: str) -> str:
    """Return the digest if two reads of a file agree, and `UNSURE` otherwise."""
    return one if one == other else UNSURE


def digest_now(path: Path, digest: Callable[[Path], str] = sha256_of) -> str:
    """Return the SHA-256 of a file; `ABSENT` if it is missing, `UNSURE` if not a plain file."""
    try:
        if path.is_file():
            return digest(path)
        return UNSURE if path.exists() else ABSENT
    except OSError:
        return UNSURE


def digest_declared(entry: str, root: Path, digest: Callable[[Path], str] = sha256_of) -> str:
    """Return one digest over the names and contents that an entry of `depends` matches.

    Args:
        entry: a glob relative to `root`, where a folder includes all files below it; or `env:NAME`,
            an environment variable.
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
    """Return the files that a glob matches, and those below matching folders; sorted."""
    named = glob.glob(entry, root_dir=root, recursive=True)  # noqa: PTH207 - maybe absolute
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
                f"depends: {entry!r} matches no file in {root}",
                hint="give files, globs such as configs/*.yaml, or env:NAME",
                code=ErrorCode.NOT_FOUND,
            )


def _describe_change(name: str, then: str, now: str) -> str:
    how = "was removed" if now == ABSENT else "is new" if then == ABSENT else "changed"
    return f"{name} {how}"


@dataclass
class ReadLog:
    """The files read in this process so far, digest by absolute path.

    It outlives a run, because data that a module reads at import is not read again by the next run.
    """

    files: dict[str, str] = field(default_factory=dict)
    stamps: dict[str, str] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)


class ReadTracker:
    """Records the files that are opened while it is active.

    Args:
        root: the project folder; paths are relative to it.
        keyed: files and folders that are part of the keys of the steps. Their siblings count as
            part of the project.
        ours: folders that modelc itself writes to: output and cache.
        declared: entries of `depends`.
        read: earlier reads; None shares the log of this process.
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
        self._of_workers: BinaryIO = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115 - see `close`

    def on_open(self, name: object, flags: object) -> None:
        """Record an opened file; never raises, as an error would end the user's call."""
        if getattr(self._busy, "now", False) or not isinstance(name, (str, bytes, os.PathLike)):
            return
        self._busy.now = True
        try:
            self._record_read(
                os.path.realpath(os.fsdecode(name)), flags if isinstance(flags, int) else 0
            )
        except Exception as error:  # noqa: BLE001 - unreadable, so it cannot be compared later
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
                self.read.written.add(path)  # its content comes from this run
            return
        if flags & os.O_WRONLY or path in self.read.written or Path(path).is_dir():
            return
        now = file_stamp(Path(path))
        if path not in self.read.files or self.read.stamps.get(path) != now:
            self.read.stamps[path] = now
            self._note(path, digest_now(Path(path)))

    def _counts(self, path: str) -> bool:
        """Whether a project file counts: not installed, not modelc's own and not part of a key."""
        if not _is_below(path, self._places) or is_installed_code(path) or is_own_code(Path(path)):
            return False
        return not (_is_below(path, self._ours) or _is_below(path, self._keyed))

    def _note(self, name: str, digest: str) -> None:
        if os.getpid() != self._process:  # a forked worker of a data loader
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
            files = {
                Path(name.removeprefix(f"{self._root}{os.sep}")).as_posix(): digest
                for name, digest in sorted(self.read.files.items())
            }
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
        """Add the user's modules, including those loaded before the tracker was active."""
        for module in list(sys.modules.values()):
            name = getattr(module, "__file__", None)
            if not isinstance(name, str) or is_installed_code(name):
                continue
            path = os.path.realpath(name)
            known = path in self.read.files or is_installed_code(path) or is_own_code(Path(path))
            if not known and Path(path).is_file():
                self._note(path, digest_now(Path(path)))

    def close(self) -> None:
        """Stop tracking."""
        self._of_workers.close()


_PROCESS_READS = ReadLog()
_active: list[ReadTracker] = []
_hooked: list[bool] = []


@contextmanager
def track_reads(tracker: ReadTracker) -> Iterator[ReadTracker]:
    """Track what this process reads within the block."""
    if not _hooked:
        sys.addaudithook(_on_audit_event)  # audit hooks cannot be removed, so all runs share one
        _hooked.append(True)
    _active.append(tracker)
    try:
        yield tracker
    finally:
        _active.remove(tracker)
        tracker.close()


def collect_imported_dependencies(root: Path) -> Dependencies:
    """Return the loaded user modules and packages as dependencies, without tracked reads."""
    with closing(ReadTracker(root, read=ReadLog())) as tracker:
        return tracker.needs()


def _on_audit_event(event: str, args: tuple[object, ...]) -> None:
    if event == "open" and _active:
        for tracker in tuple(_active):
            tracker.on_open(args[0], args[2])


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(f"{place}{os.sep}") for place in places)


def _source_file(path: str) -> str:
    """Return the source of a .pyc file if it exists, else the path itself."""
    if not path.endswith(".pyc"):
        return path
    try:
        source = source_from_cache(path)
    except ValueError:
        return path
    return source if Path(source).is_file() else path
