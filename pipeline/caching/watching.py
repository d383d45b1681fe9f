"""What a run reads beside its order: the user's code and files, found while they are opened.

Python tells of every file that it opens and every folder that it lists (`sys.addaudithook`). What a
native library opens by itself does not show: checkpoints, samples and calibration data, which such
libraries read, are in the keys of the steps.

A doubt is told as one: what cannot be known gets a digest that nothing has, so that the result is
made anew the next time.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import source_from_cache
from pathlib import Path
from typing import BinaryIO

from ...core.records import Needs
from .asking import USER, asker
from .loaded_packages import loaded_packages
from .looking import LOOKS, looks_told
from .missing import Missing, missing_heard
from .needs import ABSENT, PRESENT, UNSURE, digest_now, joined, names_now
from .own_code import is_own
from .places import is_theirs
from .variables import Variables, variables_heard

_OPENS = frozenset({"open", "sqlite3.connect", "ctypes.dlopen"})
_LISTS = frozenset({"os.listdir", "os.scandir"})
_UNKNOWABLE = {"subprocess.Popen": "program", "socket.connect": "network"}


@dataclass
class Read:
    """What was read in this process so far, digest by absolute path; of folders the names in it.

    It outlives a run: what one read of a module's data at its import is not read again by the next.
    """

    files: dict[str, str] = field(default_factory=dict)
    stamps: dict[str, tuple[int, ...]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    variables: Variables = field(default_factory=Variables)
    missing: Missing = field(default_factory=Missing)


class Watching:
    """Hears what is read while it is active; `needs` tells it at any time.

    Args:
        root: what paths are told relative to, where they lie below it.
        keyed: files and folders whose bytes are in the keys of the steps; only the user's own code
            makes them a need by reading them.
        ours: folders that modelc itself writes to: output and cache.
        read: what was heard before; None is all that this process heard.
    """

    def __init__(
        self,
        root: Path,
        *,
        keyed: Iterable[Path] = (),
        ours: Iterable[Path] = (),
        read: Read | None = None,
    ) -> None:
        self._read = _READ if read is None else read
        self._root = Path(os.path.realpath(root))
        self._keyed = _real(keyed)
        self._ours = _real(ours)
        self._temporary = _real([Path(tempfile.gettempdir())])
        self._began = time.time_ns()
        self._busy = threading.local()
        self._looked_at: set[str] = set()  # files of modules
        self._process = os.getpid()
        self._told: BinaryIO = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115 - for as long as it watches

    def hear(self, event: str, args: tuple[object, ...]) -> None:
        """Take in one event of the interpreter; nothing is raised from here."""
        if getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            self._take_in(event, args)
        except Exception as error:  # noqa: BLE001 - it would end the user's own call: told as a doubt
            self._note(f"{event}: {error}", UNSURE)
        finally:
            self._busy.now = False

    def _take_in(self, event: str, args: tuple[object, ...]) -> None:
        if event in _UNKNOWABLE:
            self._left(_UNKNOWABLE[event], args)
            return
        path = _path_of(args[0])
        if path is None:
            return
        if event in _LISTS:
            self._listed(path)
        elif event == LOOKS:
            self._looked_for(path, there=bool(args[1]))
        elif event == "open":
            flags = args[2]
            self._opened(path, flags if isinstance(flags, int) else 0)
        elif os.sep in os.fsdecode(str(args[0])):  # a name alone is looked up by the system
            self._opened(path, 0)

    def _left(self, what: str, args: tuple[object, ...]) -> None:
        """Another program or host, if the user's code asks: what comes from there nobody knows."""
        named = args[0] if what == "program" else args[1]
        if what == "network":
            if not isinstance(named, tuple):  # a pipe of this host, by its path
                return
            named = named[0]
        if asker() == USER:
            self._note(f"{what} {named!s}", UNSURE)

    def _opened(self, path: str, flags: int) -> None:
        if is_theirs(path):  # most are: the modules of packages
            return
        makes = flags & (os.O_WRONLY | os.O_CREAT) and not Path(path).exists()
        if flags & os.O_TRUNC or makes:
            if path not in self._read.files:
                self._read.written.add(path)  # what is in it then comes from this run
            return
        path = _source_of(path)
        if flags & os.O_WRONLY or path in self._read.written or self._is_aside(path):
            return
        now = _stamp(path)
        if path in self._read.files and self._read.stamps.get(path) == now:
            return
        if Path(path).is_dir() or (asker() != USER and not self._counts(path)):
            return
        self._read.stamps[path] = now
        self._note(path, digest_now(Path(path)))

    def _listed(self, path: str) -> None:
        if not self._is_aside(path) and asker(reads=False) == USER:
            self._note(f"{path.rstrip(os.sep)}/", names_now(Path(path)))

    def _looked_for(self, path: str, *, there: bool) -> None:
        """Whether there is such a file may decide what the code does, though it opens none."""
        made_up = Path(path).name.startswith("<")  # a name of code that is in no file
        if made_up or is_theirs(path) or path in self._read.written:
            return
        if asker(reads=False) != USER or self._is_aside(path):
            return
        if not (there and path in self._read.files):
            self._note(path, PRESENT if there else ABSENT)

    def _note(self, name: str, digest: str) -> None:
        if os.getpid() != self._process:  # a worker of a loader, which was forked off
            self._told.write(f"{digest} {name}\n".encode(errors="surrogateescape"))
            return
        before = self._read.files.get(name, digest)
        self._read.files[name] = digest if before == ABSENT else joined(before, digest)

    def _is_aside(self, path: str) -> bool:
        """Whether it is none of the user's: installed, a device, modelc's, or made by this run."""
        real = os.path.realpath(path)
        if is_theirs(path) or is_theirs(real) or is_own(Path(real)):
            return True
        return self._is_in(real, self._ours) or self._is_passing(path, real)

    def _counts(self, path: str) -> bool:
        """Of what is read for modelc: what lies in the project or beside what the order names.

        Other files that a framework reads, in a home folder say, are its own. What the keys of the
        steps have the bytes of is not needed twice.
        """
        beside = tuple(str(Path(place).parent) for place in self._keyed)
        return self._is_in(path, (str(self._root), *beside)) and not self._is_in(path, self._keyed)

    def _is_passing(self, path: str, real: str) -> bool:
        """Whether it is a temporary file that was made after the run began."""
        if Path(path).is_relative_to(self._root) or not self._is_in(real, self._temporary):
            return False
        try:
            return Path(path).stat().st_ctime_ns > self._began
        except OSError:
            return True

    def _is_in(self, path: str, places: tuple[str, ...]) -> bool:
        real = os.path.realpath(path)
        return any(real == place or real.startswith(f"{place}{os.sep}") for place in places)

    @property
    def read(self) -> Read:
        """What was heard, also by those that watched before in this process."""
        return self._read

    def needs(self) -> Needs:
        """What was read so far, with the modules that are loaded and their packages."""
        self._busy.now = True
        try:
            self._hear_workers()
            self._add_modules()
            files = {self._relative(name): one for name, one in sorted(self._read.files.items())}
            return Needs(
                files=files,
                packages=loaded_packages(),
                variables=dict(sorted(self._read.variables.read.items())),
                missing={
                    name: tuple(sorted(map(self._relative, folders)))
                    for name, folders in sorted(self._read.missing.looked_in.items())
                },
            )
        finally:
            self._busy.now = False

    def _hear_workers(self) -> None:
        size = os.fstat(self._told.fileno()).st_size
        lines = os.pread(self._told.fileno(), size, 0).decode(errors="surrogateescape").split("\n")
        for line in filter(None, lines):
            digest, _, name = line.partition(" ")
            self._note(name, digest)

    def _add_modules(self) -> None:
        """The user's modules, also those that were loaded before anyone listened."""
        for module in list(sys.modules.values()):
            name = getattr(module, "__file__", None)
            if not isinstance(name, str) or name in self._looked_at or is_theirs(name):
                continue
            self._looked_at.add(name)
            path = _source_of(os.path.abspath(name))  # noqa: PTH100 - as it is opened
            known = path in self._read.files or not Path(path).is_file()
            if not known and not self._is_aside(path):
                self._note(path, digest_now(Path(path)))

    def _relative(self, name: str) -> str:
        if not Path(name).is_absolute():
            return name
        path = Path(name)
        near = path.relative_to(self._root) if path.is_relative_to(self._root) else path
        return f"{near.as_posix()}/" if name.endswith("/") else near.as_posix()

    def close(self) -> None:
        """Hear nothing more."""
        self._told.close()


_READ = Read()
_active: list[Watching] = []
_hooked: list[bool] = []


@contextmanager
def watching(
    root: Path,
    *,
    keyed: Iterable[Path] = (),
    ours: Iterable[Path] = (),
    read: Read | None = None,
) -> Iterator[Watching]:
    """Watch what this process reads until the end of the block; arguments as of `Watching`."""
    if not _hooked:
        sys.addaudithook(_heard)  # it cannot be taken away again: one for all runs
        _hooked.append(True)
    watched = Watching(root, keyed=keyed, ours=ours, read=read)
    _active.append(watched)
    try:
        with (
            looks_told(watched.hear),
            variables_heard(watched.read.variables),
            missing_heard(watched.read.missing),
        ):
            yield watched
    finally:
        _active.remove(watched)
        watched.close()


def _heard(event: str, args: tuple[object, ...]) -> None:
    if event in _OPENS or event in _LISTS or event in _UNKNOWABLE:
        for watched in tuple(_active):
            watched.hear(event, args)


def _path_of(name: object) -> str | None:
    """The absolute path of what is opened; None for a handle, or for nothing."""
    if name is None:
        return str(Path.cwd())
    if not isinstance(name, (str, bytes, os.PathLike)):
        return None
    return os.path.abspath(os.fsdecode(name))  # noqa: PTH100 - resolve() would follow links


def _source_of(path: str) -> str:
    """The source of compiled Python code, where that is beside it."""
    if not path.endswith(".pyc"):
        return path
    try:
        source = source_from_cache(path)
    except ValueError:
        return path
    return source if Path(source).is_file() else path


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = Path(path).stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _real(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(os.path.realpath(path) for path in paths)
