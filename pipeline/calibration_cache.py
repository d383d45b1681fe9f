"""What calibrations gave, kept in the user's cache folder under a key of all that went into them.

An entry holds the quantized model, as no library of the three lets its statistics alone be taken
out and put back. A changed weight, sample, option or version is another key.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..converters import quantizers
from ..converters.model_files import files_of
from ..core.contract import Quantized
from ..core.digest import sha256_of
from ..core.errors import first_line
from ..core.whole import flush_file, flush_folder
from .environment import environment

if TYPE_CHECKING:
    from .quantizing import Quantization

_ENTRY = "entry.json"
_DRAFT = ".draft-"
_DAY = 86400.0
LIMIT = 10 * 10**9  # bytes of all entries; what was used least recently goes first


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What an entry's record says: the files by name with their SHA-256, and the result."""

    model: str
    files: dict[str, str]
    versions: dict[str, str]
    options: dict[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Found:
    """A result from the cache, or what is wrong with the entry."""

    result: Quantized | None = None
    fault: str = ""


def key_of(work: Quantization) -> str:
    """SHA-256 over the model, the samples, the options and the versions of all that took part."""
    parts = [
        __version__,
        *_code(),
        *(f"{name}={version}" for name, version in sorted(environment().items())),
        *(f"{file.name}:{sha256_of(file)}" for file in files_of(work.parent)),
        *(str(spec) for spec in work.signature.inputs),
        work.quantizer.NAME,
        work.consumer,
        str(work.method),
        *sorted(work.keep),
        work.calibration.record.digest,
    ]
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


def _code() -> Iterator[str]:
    """Digests of our own quantizers: between two releases they change under one version."""
    for file in sorted(Path(quantizers.__file__).parent.glob("*.py")):
        yield f"{file.name}:{sha256_of(file)}"


class CalibrationCache:
    """A folder of results by key. Entries are written aside and renamed: whole or not there."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self._folder = folder
        self._limit = limit

    def take(self, key: str, folder: Path) -> Found | None:
        """Copy the entry's model into `folder`; None where there is no entry.

        A file that is gone or changed makes the entry faulty: it is removed, and said so.
        """
        import msgspec

        place = self._folder / key
        try:
            raw = (place / _ENTRY).read_bytes()
        except FileNotFoundError:
            return self._drop(place, "incomplete") if place.exists() else None
        try:
            entry = msgspec.json.decode(raw, type=Entry)
            names = {entry.model, *entry.files}
            if any(Path(name).name != name for name in names):
                return self._drop(place, "unreadable")
            for name, digest in entry.files.items():
                shutil.copyfile(place / name, folder / name)
                if sha256_of(folder / name) != digest:
                    return self._drop(place, f"changed ({name})")
        except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
            return self._drop(place, f"unreadable ({first_line(error, limit=80)})")
        with suppress(OSError):  # a folder that may only be read serves as well
            os.utime(place)
        result = Quantized(
            path=folder / entry.model,
            versions=entry.versions,
            options=entry.options,
            notes=entry.notes,
        )
        return Found(result=result)

    def _drop(self, place: Path, fault: str) -> Found:
        shutil.rmtree(place, ignore_errors=True)
        return Found(fault=fault)

    def keep(self, key: str, result: Quantized) -> None:
        """Store a result; where the folder cannot be written, it is not."""
        with suppress(OSError):  # a read-only home, a full disk, another run that was first
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=_DRAFT, dir=self._folder) as name:
                draft = Path(name) / key
                draft.mkdir()
                _write(result, draft)
                for path in draft.iterdir():
                    flush_file(path)
                flush_folder(draft)
                draft.rename(self._folder / key)
            self._shrink(self._folder / key)

    def _shrink(self, newest: Path) -> None:
        """Remove what was used least recently, beyond the limit, and drafts that runs left."""
        entries = [path for path in self._folder.iterdir() if path.is_dir() and path != newest]
        ages = {place: _used(place) for place in entries}
        for place in entries:
            if place.name.startswith(_DRAFT) and time.time() - ages[place] > _DAY:
                shutil.rmtree(place, ignore_errors=True)
        finished = [place for place in entries if not place.name.startswith(_DRAFT)]
        left = self._limit - _size(newest)
        for place in sorted(finished, key=ages.__getitem__, reverse=True):
            left -= _size(place)
            if left < 0:
                shutil.rmtree(place, ignore_errors=True)


def _write(result: Quantized, draft: Path) -> None:
    """The model's files and the record of them."""
    import msgspec

    files = files_of(result.path)
    for file in files:
        shutil.copyfile(file, draft / file.name)
    entry = Entry(
        model=result.path.name,
        files={file.name: sha256_of(file) for file in files},
        versions=dict(result.versions),
        options=dict(result.options),
        notes=result.notes,
    )
    (draft / _ENTRY).write_bytes(msgspec.json.encode(entry))


def _used(place: Path) -> float:
    """When it was used last, in seconds; another run may have removed it."""
    try:
        return place.stat().st_mtime
    except OSError:
        return 0.0


def _size(place: Path) -> int:
    """Bytes of an entry; 0 where another run has removed it."""
    try:
        return sum(path.stat().st_size for path in place.iterdir())
    except OSError:
        return 0
