"""SHA-256 digests of files, cached by stat data so that a warm run reads no file.

Also the digest of modelc's own source.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.records import sha256_of

if TYPE_CHECKING:
    import sqlite3

DIGEST_FILE = "digests.sqlite3"
_CLOCK_TICK = 2 * 10**9  # nanoseconds; the coarsest file system clock in use, FAT's
_LOCK_TIMEOUT = 5.0  # seconds to wait for another process that writes
_TABLES = (
    "CREATE TABLE IF NOT EXISTS digest (path TEXT PRIMARY KEY, stamp TEXT, sha256 TEXT)",
    "CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY)",
)


class FileDigests:
    """Cache of file digests in a small database of the cache folder, or in memory without one.

    As a context manager, it writes new digests at the end. It works without a database that cannot
    be used, and removes a file that is not a database.
    """

    def __init__(self, folder: Path | None, *, now: Callable[[], int] = time.time_ns) -> None:
        self._path = None if folder is None else folder / DIGEST_FILE
        self._now = now
        self._learned: dict[str, tuple[str, str]] = {}
        self._recorded: dict[str, tuple[str, str] | None] = {}
        self._asked: dict[str, tuple[str, dict[str, str]]] = {}
        self._noted: dict[str, str] = {}
        self._facts: set[str] = set()
        self._database = _open_database(self._path)

    def __enter__(self) -> FileDigests:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def of(self, path: Path) -> str:
        """Return the SHA-256 of a file.

        Raises:
            OSError: it does not exist or cannot be read.
        """
        name = str(path.absolute())
        began = self._now()
        before = path.stat()
        stamp = self._noted[name] = _encode_stamp(before)
        recorded = self._find_recorded(name)
        if recorded is not None and recorded[0] == stamp:
            return recorded[1]
        digest = sha256_of(path)
        settled = max(before.st_mtime_ns, before.st_ctime_ns) < began - _CLOCK_TICK
        if settled and _encode_stamp(path.stat()) == stamp:
            self._learned[name] = (stamp, digest)
        return digest

    def of_tree(self, folder: Path, *, less: tuple[Path, ...] = ()) -> str:
        """Return one digest over names and contents of all files below a folder, following links.

        Args:
            folder: the root folder.
            less: files and folders to exclude.

        Raises:
            OSError: a file cannot be read.
        """
        digest = hashlib.sha256()
        apart = {one.resolve() for one in less}
        around = {one.parent for one in apart}  # excluded files change their stat data
        found: list[Path] = []
        for place, files in _walk_files(folder, apart):
            found += files
            if place.resolve() not in around:
                self._noted[str(place.absolute())] = _encode_stamp(place.stat())
        for path in sorted(found):
            digest.update(f"{path.relative_to(folder).as_posix()}\0{self.of(path)}\n".encode())
        return digest.hexdigest()

    def once(self, name: str, ask: Callable[[], str]) -> str:
        """Call `ask` once per run and name, and return its result; it is not stored."""
        if name not in self._asked:
            noted, self._noted = self._noted, {}
            try:
                self._asked[name] = (ask(), self._noted)
            finally:
                self._noted = noted
        answer, of_it = self._asked[name]
        self._noted.update(of_it)
        return answer

    def holds(self, fact: str, check: Callable[[], bool]) -> bool:
        """Return whether a fact holds, which is checked once and for all.

        Args:
            fact: what holds, with the digests of everything that it depends on.
            check: finds out; only a fact that holds is remembered.
        """
        name = hashlib.sha256(fact.encode()).hexdigest()
        if name in self._facts or self._select("SELECT 1 FROM fact WHERE name = ?", name):
            return True
        if not check():
            return False
        self._facts.add(name)
        return True

    @contextmanager
    def note_reads(self) -> Iterator[dict[str, str]]:
        """Collect the stat data, by path, of all files digested within the block."""
        noted: dict[str, str] = {}
        self._noted = noted
        try:
            yield noted
        finally:
            self._noted = {}

    def close(self) -> None:
        """Write new digests to the database."""
        if self._database is None:
            return
        import sqlite3

        rows = [(path, *recorded) for path, recorded in self._learned.items()]
        # On a full disk or a long lock, later runs compute the digests again.
        with suppress(sqlite3.Error), self._database:
            self._database.executemany("INSERT OR REPLACE INTO digest VALUES (?, ?, ?)", rows)
            facts = [(name,) for name in self._facts]
            self._database.executemany("INSERT OR IGNORE INTO fact VALUES (?)", facts)
        self._database.close()
        self._database = None

    def _find_recorded(self, name: str) -> tuple[str, str] | None:
        if name in self._learned:
            return self._learned[name]
        if name not in self._recorded:
            rows = self._select("SELECT stamp, sha256 FROM digest WHERE path = ?", name)
            self._recorded[name] = (str(rows[0][0]), str(rows[0][1])) if rows else None
        return self._recorded[name]

    def _select(self, query: str, *values: str) -> list[tuple[object, ...]]:
        """Return the rows of a query; none without a database."""
        if self._database is None:
            return []
        import sqlite3

        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.OperationalError:  # another process holds a long lock
            return []
        except sqlite3.DatabaseError:
            self._forget()
            return []

    def _forget(self) -> None:
        """Continue without the database after it broke."""
        if self._database is not None:
            self._database.close()
        self._database = None
        if self._path is not None:
            _remove_database(self._path)


def first_changed(noted: Mapping[str, str]) -> str:
    """Return the first path whose stat data changed; empty if none did."""
    return next((name for name, then in noted.items() if file_stamp(Path(name)) != then), "")


def file_stamp(path: Path) -> str:
    """Return stat data that change with the content; empty if the file does not exist."""
    try:
        return _encode_stamp(path.stat())
    except OSError:
        return ""


def _encode_stamp(found: os.stat_result) -> str:
    parts = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return " ".join(map(str, parts))


def _open_database(path: Path | None) -> sqlite3.Connection | None:
    if path is None or path.is_symlink():  # the target of a link does not belong to modelc
        return None
    import sqlite3

    for _ in range(2):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(path, timeout=_LOCK_TIMEOUT, check_same_thread=False)
        except (OSError, sqlite3.Error):
            return None
        try:
            for table in _TABLES:
                database.execute(table)
        except sqlite3.OperationalError:  # a long lock, or a folder without write permission
            return database if _is_readable(database) else None
        except sqlite3.DatabaseError:  # not a database
            database.close()
            _remove_database(path)
        else:
            return database
    return None


def _is_readable(database: sqlite3.Connection) -> bool:
    import sqlite3

    try:
        database.execute("SELECT 1 FROM digest LIMIT 1").fetchone()
    except sqlite3.Error:
        database.close()
        return False
    return True


def _remove_database(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _walk_files(folder: Path, less: set[Path]) -> Iterator[tuple[Path, list[Path]]]:
    """Yield folders with their files, following links; each folder at most once despite cycles."""
    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        here = Path(place)
        state = here.stat()
        if (state.st_dev, state.st_ino) in seen or _is_excluded(here, less):
            folders.clear()
            continue
        seen.add((state.st_dev, state.st_ino))
        paths = map(here.joinpath, names)
        yield here, [path for path in paths if path.is_file() and not _is_excluded(path, less)]


def _is_excluded(path: Path, less: set[Path]) -> bool:
    return bool(less) and path.resolve() in less


PACKAGE_ROOT = Path(__file__).resolve().parents[2]
ARTIFACT_PACKAGES = (
    *("calibration", "capture", "checkpoints", "converters"),
    *("core", "pipeline", "validators"),
)
# Requests of these are part of the order, and their output is not part of a result.
OUTPUT_PACKAGES = ("cli", "projects", "reports", "runtimes", "serving", "testing")


def digest_of_code(digests: FileDigests, root: Path = PACKAGE_ROOT) -> str:
    """Return one digest over the source files of the packages that build and judge artifacts."""

    def digest_sources() -> str:
        digest = hashlib.sha256()
        found = (path for name in ARTIFACT_PACKAGES for path in (root / name).rglob("*.py"))
        for path in sorted(found):
            digest.update(f"{path.relative_to(root).as_posix()}\0{digests.of(path)}\n".encode())
        return digest.hexdigest()

    return digests.once(f"code in {root}", digest_sources)


def is_own_code(path: Path, root: Path = PACKAGE_ROOT) -> bool:
    """Whether a file is part of modelc; sample models count as user code."""
    if not path.is_relative_to(root) or path == root:
        return False
    first = path.relative_to(root).parts[0]
    return first in (*ARTIFACT_PACKAGES, *OUTPUT_PACKAGES) or (
        path.parent == root and path.suffix == ".py"
    )
